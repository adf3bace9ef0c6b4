"""The floors of an exchange write the rows of the curator's own tables, whatever columns they get."""

import asyncio
import hashlib
import json
from contextlib import closing

import pytest

from benchmarks import floor, straight_line
from blindopt import wire
from blindopt.audit import merkle_log
from blindopt.audit.merkle_log import Exchange
from curator_service import app
from curator_service.settings import Settings

GRANT, PATH = "grt_" + "0" * 16, "/v1/studies/std_" + "0" * 16 + "/queries"


@pytest.fixture
def model(tmp_path):
    """The database of a curator."""
    built = app.build(Settings(data_dir=tmp_path / "curator"))
    built.state.context.database.close()
    return str(tmp_path / "curator" / "curator.sqlite")


def check_counts(rows):
    for table, count in (("ledger", 3), ("queries", 3), ("replies", 3), ("log", 6), ("shared", 3)):
        assert rows.db.execute(f"SELECT count(*) FROM {table}").fetchone() == (count,)


def test_the_floor_of_an_exchange_fits_the_tables_of_this_version(model, tmp_path):
    rows = floor.Rows(str(tmp_path / "floor.sqlite"), model)
    with closing(rows.db):
        for number in range(3):
            reply, note = rows.add(GRANT, f"key-{number}", "0" * 64, '{"rows":[{"row":1}]}')
            assert len(reply) == 414
            assert note.startswith(b"curator/grt_")
        check_counts(rows)


def test_the_straight_line_records_what_a_curator_does(model, tmp_path):
    """A reply that the library reads, the leaf that both parties hash, canonical records, and each check at work."""
    rows = straight_line.Rows(str(tmp_path / "straight.sqlite"), model)
    rows.db.execute(
        "INSERT INTO tokens (kid, principal, role, name, secret_sha256, created_at, expires_at) "
        "VALUES ('kid', ?, 'modeler', 'm', ?, '', '')",
        (GRANT, hashlib.sha256(b"secret").digest()),
    )

    def ask(number, secret="secret", row=7):
        sent, body = [], json.dumps({"rows": [{"row": row}]}).encode()
        headers = [
            (b"authorization", f"Bearer blindopt_kid.{secret}".encode()),
            (b"content-type", b"application/json"),
            (b"idempotency-key", b"key-%d" % number),
            (b"content-length", b"%d" % len(body)),
        ]
        scope = {"type": "http", "method": "POST", "path": PATH, "headers": headers, "client": ("127.0.0.1", 1)}

        async def receive():
            return {"type": "http.request", "body": body}

        async def send(message):
            sent.append(message)

        asyncio.run(application(scope, receive, send))
        start, reply = sent
        assert start["status"] == 201
        return reply["body"], hashlib.sha256(body).hexdigest(), dict(start["headers"])[b"x-request-id"].decode()

    application = straight_line.Curator(rows)
    with closing(rows.db):
        for number in range(3):
            reply, request_sha256, request_id = ask(number)
        for wrong in ({"number": 2}, {"number": 3, "secret": "guess"}, {"number": 3, "row": 1_000}):
            with pytest.raises(AssertionError):
                ask(**wrong)
        check_counts(rows)
        answer = wire.QueryReply.model_validate_json(reply)
        assert [(a.row, a.y) for a in answer.answers] == [(7, 1.75)]
        (leaf,) = rows.db.execute("SELECT body FROM shared WHERE seq = 2").fetchone()
        assert (
            leaf
            == Exchange(
                study_id=floor.STUDY,
                grant_id=GRANT,
                position=2,
                request_id=request_id,
                method="POST",
                path=PATH,
                idempotency_key="key-2",
                request_sha256=request_sha256,
                status=201,
                reply_sha256=hashlib.sha256(reply).hexdigest(),
            ).body
        )
        for (record,) in rows.db.execute("SELECT body FROM log").fetchall():
            assert merkle_log.canonical(json.loads(record)) == record
