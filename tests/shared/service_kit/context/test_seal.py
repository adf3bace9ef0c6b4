"""Whether a seal key is the one of a database."""

import pytest
from cryptography.fernet import Fernet

from blindopt.errors import StateConflict
from service_kit.context.keys import Seal


@pytest.fixture
def seals(tmp_path):
    """The right one, and another one."""
    return Seal(Fernet.generate_key(), tmp_path), Seal(Fernet.generate_key(), tmp_path)


def test_a_key_that_opens_nothing_is_refused_and_one_changed_value_stops_nothing(seals):
    right, other = seals
    values = [right.close(b"first"), right.close(b"second")]
    right.check(values)
    right.check([values[0][:-1] + b"x", values[1]])
    with pytest.raises(StateConflict, match="put back the key that belongs to this database"):
        other.check(values)


def test_where_nothing_is_sealed_every_key_fits(seals):
    for seal in seals:
        seal.check([])
