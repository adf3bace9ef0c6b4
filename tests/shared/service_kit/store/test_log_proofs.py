"""Proofs of consistency from what is stored of a log: the same as from all of its leaves, for a few reads."""

import numpy as np
import pytest
from sqlalchemy import text

from blindopt.audit import merkle_log
from blindopt.errors import LogBroken
from service_kit.store import audit_log
from service_kit.store.base import APPEND_ONLY, METADATA
from service_kit.store.database import Database
from tests import postgres
from tests.shared.service_kit.store.test_store import NOW
from tests.shared.service_kit.web.test_listings import statements

SIZE = 70


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A log of its own, one of a grant of the same size, and another grant's between the records of both."""
    path = tmp_path_factory.mktemp("proofs") / "x.sqlite"
    opened = Database(path, (METADATA,), append_only=APPEND_ONLY, url=postgres.address_for(path))

    def work(db):
        for number in range(SIZE):
            audit_log.append(db, "test", actor="a", now=NOW, details={"n": number})
            audit_log.share(db, "grt_1", lambda seq: b"one %d" % seq)
            audit_log.share(db, "grt_2", lambda seq: b"two %d" % seq)

    opened.write(work)
    yield opened
    opened.close()


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("grant", [None, "grt_1"])
def test_every_proof_to_size_34_and_some_to_70_are_those_from_all_leaves(grant, database):
    """Exhaustive across two powers of two, and beyond the third from sizes at its bounds and drawn ones."""
    pairs = [(m, n) for n in range(1, 35) for m in range(1, n + 1)]
    drawn = np.random.default_rng(7).integers(1, SIZE + 1, (40, 2))
    pairs += [(m, n) for n in (63, 64, 65, SIZE) for m in (1, 2, 31, 32, 33, 48, 63, n - 1, n)]
    pairs += [(min(pair), max(pair)) for pair in drawn.tolist()]
    with database.read() as db:
        leaves = [entry.leaf for entry in audit_log.walk(db, grant)]
        for m, n in pairs:
            if m <= n:
                assert audit_log.consistency(db, grant, m, n) == merkle_log.consistency(leaves[:n], m), (m, n)


def test_a_proof_reads_as_many_records_as_it_has_nodes_twice_over(database):
    for m, n in ((1, 64), (37, 70), (69, 70), (64, 70), (70, 70)):
        with database.read() as db, statements(database) as executed:
            proof = audit_log.consistency(db, "grt_1", m, n)
        assert len(executed) <= 2 * len(proof) <= 4 * n.bit_length()


def test_a_record_that_does_not_exist_is_reported(tmp_path):
    path = tmp_path / "x.sqlite"
    broken = Database(path, (METADATA,), url=postgres.address_for(path))
    broken.write(lambda db: [audit_log.append(db, "test", actor="a", now=NOW) for _ in range(8)])
    broken.write(lambda db: db.execute(text("DELETE FROM log WHERE seq = 3")))
    with broken.read() as db, pytest.raises(LogBroken, match="record 3"):
        audit_log.consistency(db, None, 2, 8)
    broken.close()
