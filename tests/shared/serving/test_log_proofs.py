"""Proofs of consistency from what is stored of a log: the same as from all of its leaves, for a few reads."""

import pytest
from sqlalchemy import text

from shared import audit
from shared.errors import LogBroken
from shared.serving.store import logs
from shared.serving.store.base import APPEND_ONLY, METADATA
from shared.serving.store.database import Database
from tests.shared.serving.test_listings import statements
from tests.shared.serving.test_store import NOW

SIZE = 70


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A log of its own, one of a grant of the same size, and another grant's between the records of both."""
    opened = Database(tmp_path_factory.mktemp("proofs") / "x.sqlite", (METADATA,), append_only=APPEND_ONLY)

    def work(db):
        for number in range(SIZE):
            logs.append(db, "test", actor="a", now=NOW, details={"n": number})
            logs.share(db, "grt_1", b"one %d" % number)
            logs.share(db, "grt_2", b"two %d" % number)

    opened.write(work)
    yield opened
    opened.close()


@pytest.mark.parametrize("grant", [None, "grt_1"])
def test_every_proof_to_size_70_is_that_from_all_leaves(grant, database):
    with database.read() as db:
        leaves = [entry.leaf for entry in logs.walk(db, grant)]
        for n in range(1, SIZE + 1):
            for m in range(1, n + 1):
                assert logs.consistency(db, grant, m, n) == audit.consistency(leaves[:n], m), (m, n)


def test_a_proof_reads_as_many_records_as_it_has_nodes_twice_over(database):
    for m, n in ((1, 64), (37, 70), (69, 70), (64, 70), (70, 70)):
        with database.read() as db, statements(database) as asked:
            proof = logs.consistency(db, "grt_1", m, n)
        assert len(asked) <= 2 * len(proof) <= 4 * n.bit_length()


def test_a_record_that_is_not_there_is_told(tmp_path):
    broken = Database(tmp_path / "x.sqlite", (METADATA,))
    broken.write(lambda db: [logs.append(db, "test", actor="a", now=NOW) for _ in range(8)])
    broken.write(lambda db: db.execute(text("DELETE FROM log WHERE seq = 3")))
    with broken.read() as db, pytest.raises(LogBroken, match="record 3"):
        logs.consistency(db, None, 2, 8)
    broken.close()
