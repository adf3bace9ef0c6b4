"""A restore, rehearsed: ``python -m tests.system.restore_drill`` prints how long each step takes.

The curator's log gets as many records as are wanted, and is backed up beside a writer. Its log key is rotated. Then
it is restored on an empty machine with the secrets of the backup's time, also as an earlier version made it, and in
PostgreSQL if there is a server. It must verify, and say the same as the modeler of what both did.
"""

import argparse
import json
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from benchmarks.filled_curator import FilledCurator
from blindopt import wire
from blindopt.audit import reconciliation
from blindopt.client import Owner, Vendor
from blindopt.formats.npy_files import digest
from service_kit.cli.backup import MANIFEST
from tests import postgres
from tests.builders import a_run
from tests.conftest import Service, Small
from tests.system.audit.tampering import Party
from tests.system.crashes import crash_checks as checks

MEASUREMENT = wire.ColumnMeasurement(column="y", direction="maximize")


def drill(folder: Path, records: int, small: Small) -> dict[str, float]:
    """The seconds of each step. Raises AssertionError for a step that does not hold."""
    seconds: dict[str, float] = {}

    def timed(step: str, work: Callable[[], tuple[int, str]]) -> None:
        before = time.monotonic()
        status, output = work()
        seconds[step] = time.monotonic() - before
        assert status == 0, f"{step}: {output}"

    curator, modeler = (Service(name, folder / name).start() for name in ("curator", "modeler"))
    try:
        with Owner(curator.url, curator.token) as owner, Vendor(modeler.url, modeler.token) as vendor:
            dataset = owner.register("small", small.csv, public=True)
            study = owner.release(owner.create_study(checks.draft(small, dataset.id)).id).id
            grant = owner.grant(study, wire.GrantCreate(name="modeler"))
            spec = a_run(curator.url, study, grant.token, algorithm=wire.RandomRows(name="random"), iterations=4)
            assert vendor.wait(vendor.start(spec).id, timeout_s=240).state == "completed"
        curator.stop()
        with _Writer(curator.data, records):  # in the same folder, as the service would
            timed("back up", lambda: checks.command(curator, "backup", str(folder / "backup")))
        shutil.copytree(curator.data / "secrets", folder / "secrets")
        assert checks.command(curator, "key", "rotate", "log")[0] == 0  # the keys of now are others
        theirs = reconciliation.read(checks.export(modeler, folder))
        _as_of_schema_18(folder / "backup", folder / "older")
        for engine, backup in (("SQLite", "backup"), ("SQLite, from schema 18", "older"), ("PostgreSQL", "backup")):
            if engine == "PostgreSQL" and postgres.why_not() is not None:
                continue
            data = folder / engine
            settings = {"DATABASE_URL": postgres.url_of(data)} if engine == "PostgreSQL" else {}
            party, export = Party("curator", data, settings), folder / f"{engine}.jsonl"
            restore = ("restore", str(folder / backup), "--secrets", str(folder / "secrets"))
            timed(f"restore into {engine}", lambda party=party, restore=restore: party.command(*restore))
            timed(f"verify in {engine}", lambda party=party: party.command("audit", "verify"))
            status, output = party.command("audit", "export")
            assert status == 0, output
            export.write_text(output, encoding="utf-8")
            assert len(output.splitlines()) > records
            ours = reconciliation.read(export)
            reconciliation.verify_export(ours)
            assert reconciliation.reconcile(ours, theirs, study)[1] == []
    finally:
        for service in (curator, modeler):
            service.kill()
    return seconds


def _as_of_schema_18(backup: Path, target: Path) -> None:
    """A copy of a backup, as the version before archiving made it."""
    shutil.copytree(backup, target)
    database, manifest = target / "curator.sqlite", target / MANIFEST
    with closing(sqlite3.connect(database)) as db:
        db.execute("DROP TABLE segments")
        db.execute("PRAGMA user_version = 18")
    described = json.loads(manifest.read_text(encoding="utf-8"))
    described["files"][database.name] = digest(database)
    manifest.write_text(json.dumps(described), encoding="utf-8")


class _Writer:
    """Fills a log, and writes on until the block ends."""

    def __init__(self, data: Path, records: int) -> None:
        self._filled, self._is_over = FilledCurator(data), threading.Event()
        self._study, self._grant = self._filled.study("filled", MEASUREMENT)
        size = self._filled.curator.context.audit_trail.head().size
        self._filled.query(self._study, self._grant, max(0, records - size) // 2 + 1)
        self._thread = threading.Thread(target=self._write, args=(records,))

    def _write(self, first: int) -> None:
        while not self._is_over.is_set():
            self._filled.query(self._study, self._grant, 1, first=first)
            first += 1

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._filled.curator.context.close()


def main() -> None:
    from tests.system.crashes.soak import small

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=int, nargs="*", default=[10_000, 100_000])
    for records in parser.parse_args().records:
        with tempfile.TemporaryDirectory() as folder:
            for step, seconds in drill(Path(folder), records, small()).items():
                print(f"{records:,} records: {step} {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
