"""Edit the databases of running services: ``python -m tests.system.crashes.soak_edits``.

A curator and a modeler run as real processes, with a finished run and a study whose cap is used up. Each edit is made
with plain sqlite3 beside them. Within a minute it must be named, and it must not be acted on, while another study
answers. Then it is taken back, and the next verification must find nothing. Exits 1 with the first that does not hold.
"""

import argparse
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx

from blindopt import wire
from blindopt.client import Owner, StudyClient, Vendor
from blindopt.errors import BlindoptError
from tests.builders import a_run
from tests.conftest import Service
from tests.system.crashes import crash_checks as checks
from tests.system.crashes.soak import small

NAMED_SECONDS = 60.0
TRIALS = 5
LAST = "seq = (SELECT max(seq) FROM ledger WHERE study_id = '{used}')"
EDITS = {
    "curator": {
        "a closed study is open": "UPDATE studies SET state = 'open' WHERE id = '{closed}'",
        "a released study is a draft": "UPDATE studies SET state = 'draft' WHERE id = '{used}'",
        "a cap is raised": "UPDATE studies SET spec = replace(spec, 'es\":6', 'es\":9') WHERE id = '{used}'",
        "a report says otherwise": "UPDATE releases SET report = report || ' ' WHERE study_id = '{used}'",
        "a total is lowered": f"UPDATE ledger SET total = 0, total_plays = 0 WHERE {LAST}",
        "a line is gone": f"DELETE FROM ledger WHERE {LAST}",
        "a cap of the file is raised": "UPDATE tuning_ledger SET cap_epsilon = '9999'",
        "a file's cap is gone": "DELETE FROM tuning_ledger",
        "an answer is another": "UPDATE replies SET body = CAST(replace(body, '\"y\":', '\"y\":1') AS BLOB)"
        " WHERE principal = '{grant}' AND idempotency_key LIKE '%:2'",
        "an answer that is requested again is another": "UPDATE replies SET body = CAST(replace(body, '\"y\":',"
        " '\"y\":1') AS BLOB) WHERE principal = '{grant}' AND idempotency_key = 'first'",
        "an answer that is requested again is gone": "DELETE FROM replies WHERE principal = '{grant}' AND"
        " idempotency_key = 'first'",
        "a modeler is an owner": "UPDATE tokens SET role = 'owner' WHERE principal = '{grant}'",
        "a grant is of another study": "UPDATE tokens SET study_id = '{free}' WHERE principal = '{grant}'",
    },
    "modeler": {
        "a trial's y": "UPDATE trials SET y = y + 1 WHERE number = 3",
        "a trial's row": "UPDATE trials SET row = (row + 1) % 400 WHERE number = 3",
        "a run's seed": "UPDATE runs SET spec = json_set(spec, '$.seed', 1)",
        "a receipt is gone": "DELETE FROM receipts WHERE seq = 3",
    },
}


@contextmanager
def _opened(service: Service) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(service.database, timeout=30)) as db:
        yield db
        db.commit()


def _edit(service: Service, statement: str) -> Callable[[], None]:
    """Make an edit; return what takes it back."""
    table = statement.split()[2 if statement.startswith("DELETE") else 1]
    with _opened(service) as db:
        columns = ", ".join(row[1] for row in db.execute(f"PRAGMA table_info({table})"))
        rows = db.execute(f"SELECT {columns} FROM {table}").fetchall()
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        assert db.execute(statement).rowcount > 0, statement
        for _, sql in triggers:
            db.execute(sql)

    def take_back() -> None:
        with _opened(service) as db:
            for name, _ in triggers:
                db.execute(f"DROP TRIGGER {name}")
            marks = ", ".join("?" * (columns.count(",") + 1))
            db.executemany(f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({marks})", rows)
            for _, sql in triggers:
                db.execute(sql)

    return take_back


def _wait(client: httpx.Client) -> tuple[float, list[str]]:
    """Wait until there are findings; how long it took."""
    begun = time.monotonic()
    while not (named := client.get("/v1/audit/verification").json()["findings"]):
        assert time.monotonic() - begun < NAMED_SECONDS, f"nothing is named after {NAMED_SECONDS:.0f} s"
        time.sleep(0.5)
    return time.monotonic() - begun, named


def _check_sound(client: httpx.Client) -> None:
    """Verify everything on request, as the audit page does: nothing is wrong."""
    while (reply := client.post("/v1/audit:verify")).status_code == 503:  # the one in the background is under way
        time.sleep(0.5)
    assert reply.json()["sound"], reply.json()
    assert client.get("/v1/audit/verification").json()["findings"] == []


def _code(token: str, url: str, study: str, key: str) -> str:
    """Query a study; the code of the refusal, or `answered`, with the answer after it."""
    query = wire.QueryRequest.model_validate({"rows": [{"row": 1}]})
    try:
        with StudyClient(url, token, study, timeout_s=240) as client:
            reply, _ = client.ask(query, key=key)
    except BlindoptError as error:
        return error.code
    return f"answered {reply.model_dump_json()}"


def _begin(curator: Service, modeler: Service) -> dict[str, str]:
    """Three studies, one of them used up by a run and one closed; ids and tokens by name."""
    names: dict[str, str] = {}
    with (
        Owner(curator.url, curator.token, timeout_s=240) as owner,
        Vendor(modeler.url, modeler.token, timeout_s=240) as vendor,
    ):
        data = small()
        dataset = owner.register("small", data.csv, public=True).id
        other = owner.register("other", data.csv + data.csv.splitlines(keepends=True)[-1], public=True).id
        for name in ("used", "free", "closed"):
            answers = 1 + TRIALS if name == "used" else 10_000
            study = owner.create_study(
                checks.draft(data, other if name == "free" else dataset, epsilon="0.5", answers=answers)
            ).id
            owner.release(study)
            granted = owner.grant(study, wire.GrantCreate(name=name))
            names |= {name: study, f"{name}_token": granted.token}
            names.setdefault("grant", granted.id)
        names["first"] = _code(names["used_token"], curator.url, names["used"], "first")
        owner.close_study(names["closed"])
        owner.change_caps(dataset, wire.DatasetCaps(epsilon="1000", delta=None))
        chosen = {"algorithm": wire.RandomRows(name="random"), "iterations": TRIALS - 1}
        spec = a_run(curator.url, names["used"], names["used_token"], **chosen)
        assert vendor.wait(vendor.start(spec).id, timeout_s=240).trials == TRIALS
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        services = {
            name: Service(name, Path(temporary) / name, {"VERIFY_HOURS": "24"}, fresh=True)
            for name in ("curator", "modeler")
        }
        try:
            for service in services.values():
                service.start()
            _try_all(services)
        finally:
            for service in services.values():
                if service.process is not None and service.process.poll() is None:
                    service.kill()


def _try_all(services: dict[str, Service]) -> None:
    curator = services["curator"]
    names, number = _begin(curator, services["modeler"]), 0
    with curator.http(curator.token) as owner, services["modeler"].http(services["modeler"].token) as vendor:
        for party, client in (("curator", owner), ("modeler", vendor)):
            for what, statement in EDITS[party].items():
                _check_sound(client)
                charged = curator.rows("SELECT count(*) FROM log WHERE kind = 'charge'")[0][0]
                take_back, free = _edit(services[party], statement.format(**names)), 0
                for study in ("used", "closed"):
                    number += 1
                    code = _code(names[f"{study}_token"], curator.url, names[study], f"x{number}")
                    assert not code.startswith("answered"), what
                again = _code(names["used_token"], curator.url, names["used"], "first")
                assert again in (names["first"], "record_changed"), what
                took, named = _wait(client)
                number += 1
                code = _code(names["free_token"], curator.url, names["free"], f"x{number}")
                free += code.startswith("answered")
                assert free == 1, f"{what}: another study does not answer"
                assert curator.rows("SELECT count(*) FROM log WHERE kind = 'charge'")[0][0] == charged + free, what
                print(f"{party}: {what}: named after {took:.1f} s: {named[0]}", flush=True)
                take_back()
            _check_sound(client)


if __name__ == "__main__":
    sys.exit(main())
