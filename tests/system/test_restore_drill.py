"""The rehearsal of a restore, at a small size: `make restore-drill` has the large ones."""

import pytest

from tests import postgres
from tests.system import restore_drill


@pytest.mark.skipif(postgres.ON, reason="it begins with SQLite, and restores into PostgreSQL as well")
def test_a_backup_beside_writers_restores_on_an_empty_machine_with_the_keys_of_its_time(tmp_path, small):
    seconds = restore_drill.drill(tmp_path, 200, small)
    assert len(seconds) == (7 if postgres.why_not() is None else 5)
