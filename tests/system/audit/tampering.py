"""What the tests of tampering share: copies of two parties' folders, and hands that change them with plain sqlite3.

Whoever holds a service's folder can do all of this: drop the triggers, write any row, make every hash anew,
sign with the party's own key.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blindopt.audit import merkle_log
from blindopt.audit.checkpoints import Checkpoint, Signer
from blindopt.audit.merkle_log import Head
from service_kit.context.keys import signer
from tests import beside, postgres
from tests.system.crashes.crash_checks import command

Record = dict[str, Any]


@dataclass
class Party:
    """A stopped service's folder. ``command`` runs its command line there."""

    name: str
    data: Path
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        prefix = f"BLINDOPT_{self.name.upper()}_"
        chosen = {"DATA_DIR": str(self.data)} | postgres.settings_for(self.data) | self.settings
        return {prefix + k: v for k, v in chosen.items()}

    @property
    def database(self) -> Path:
        return self.data / f"{self.name}.sqlite"

    @property
    def signer(self) -> Signer:
        return signer(self.data / "secrets" / "log.key", self.name)

    def command(self, *arguments: str) -> tuple[int, str]:
        return command(self, *arguments)

    def copy(self, folder: Path) -> "Party":
        beside.copytree(self.data, folder)
        return Party(self.name, folder, self.settings)

    @contextmanager
    def open(self) -> Iterator[Any]:
        """The database with its triggers dropped; what was done to it is committed."""
        with closing(beside.connect(self.database)) as db:
            beside.drop_triggers(db)
            yield db
            db.commit()

    def rows(self, query: str, *values: object) -> list[Any]:
        with closing(beside.connect(self.database)) as db:
            rows: list[Any] = db.execute(query, values).fetchall()
            return rows

    def export(self, path: Path) -> Path:
        code, output = self.command("audit", "export")
        assert code == 0, output
        path.write_text(output, encoding="utf-8")
        return path

    def records(self, grant: str | None = None) -> list[Record]:
        """A log, parsed."""
        entries = (
            self.rows("SELECT body FROM log ORDER BY seq")
            if grant is None
            else self.rows("SELECT body FROM shared WHERE grant_id = ? ORDER BY seq", grant)
        )
        return [json.loads(body) for (body,) in entries]

    def keep_checkpoint(self) -> None:
        """Sign the log as it is now, in the file that the service holds its log against at its start."""
        head = head_of([merkle_log.canonical(record) for record in self.records()])
        (self.data / "checkpoint").write_text(self.signer.sign(Checkpoint(f"{self.signer.name}/log", head)))

    def rewrite(self, change: Callable[[list[Record]], list[Record]], grant: str | None = None) -> None:
        """A whole history anew: records changed at will, places, hashes and frontiers made to fit."""
        member = "seq" if grant is None else "position"
        bodies = [
            merkle_log.canonical({**r, member: position}) for position, r in enumerate(change(self.records(grant)))
        ]
        with self.open() as db:
            table, more = ("log", ()) if grant is None else ("shared", (grant,))
            db.execute(f"DELETE FROM {table}" + ("" if grant is None else " WHERE grant_id = ?"), more)
            marks = ", ".join("?" * (4 + len(more)))
            db.executemany(f"INSERT INTO {table} VALUES ({marks})", [(*more, *row) for row in rows_of(bodies)])


def rows_of(bodies: list[bytes]) -> list[tuple[int, bytes, bytes, bytes]]:
    """Place, body, leaf and frontier of each record of a log."""
    rows, peaks = [], b""
    for position, body in enumerate(bodies):
        leaf = hashlib.sha256(b"\0" + body).digest()
        peaks = merkle_log.grow(peaks, position, leaf)
        rows.append((position, body, leaf, peaks))
    return rows


def head_of(bodies: list[bytes]) -> Head:
    peaks = b""
    for position, body in enumerate(bodies):
        peaks = merkle_log.grow(peaks, position, hashlib.sha256(b"\0" + body).digest())
    return Head(len(bodies), merkle_log.root(peaks).hex())


def receipts_under(party: Party, forger: Signer, grant: str) -> None:
    """Put receipts by ``forger`` in the place of the curator's, for the shared log as it is now."""
    bodies = [merkle_log.canonical(record) for record in party.records(grant)]
    with party.open() as db:
        db.execute("DELETE FROM receipts WHERE grant_id = ?", (grant,))
        for position, body in enumerate(bodies):
            note = forger.sign(Checkpoint(f"{forger.name}/{grant}", head_of(bodies[: position + 1])))
            db.execute("INSERT INTO receipts VALUES (?, ?, ?, ?)", (grant, position, body, note))


def lines(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_lines(path: Path, records: list[Record]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in records), encoding="utf-8")
    return path


def as_header(position: object, note: str) -> str:
    """A receipt as it travels."""
    return f"{position} {base64.b64encode(note.encode()).decode()}"
