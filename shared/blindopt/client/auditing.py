"""For auditors: verify the log of a party, and compare the logs of both. Offline."""

from dataclasses import dataclass
from pathlib import Path

from blindopt import display
from blindopt.arguments import checked
from blindopt.audit import reconciliation
from blindopt.audit.reconciliation import Difference, Export
from blindopt.client.log_copy import StudyLog
from blindopt.errors import Invalid, LogBroken
from blindopt.formats.text_files import file_errors

SQLITE = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class VerifiedLog(display.Shown):
    """A log that verifies: who keeps it, the key that signs it, its size and root, and the sizes of its shared logs.

    >>> print(bo.verify_log("curator.jsonl").records)  # doctest: +SKIP
    """

    service: str
    key: str
    records: int
    root: str
    shared: dict[str, int]

    def _tables(self) -> list[display.Table]:
        shared = {f"Shared log {grant}": size for grant, size in self.shared.items()}
        return [display.facts({"Kept by": self.service, "Records": self.records, "Root": self.root} | shared)]


@dataclass(frozen=True, slots=True)
class Comparison(display.Shown):
    """The result of comparing two parties' logs.

    >>> assert bo.reconcile("curator.jsonl", "own-loop.sqlite").agree  # doctest: +SKIP
    """

    studies: list[str]
    compared: int
    differences: list[Difference]

    @property
    def agree(self) -> bool:
        """Whether both parties recorded the same."""
        return not self.differences

    def _tables(self) -> list[display.Table]:
        caption = f"{self.compared} exchanges compared, {len(self.differences)} differences"
        return [display.Table(["Where", "What"], [(d.where, d.what) for d in self.differences], caption)]


def read_log(path: str | Path) -> Export:
    """Read an export of a party (``audit export``, ``Study.export``), or the SQLite log of a ``Study``."""
    path = Path(path)
    with file_errors(path), path.open("rb") as file:
        is_sqlite = file.read(len(SQLITE)) == SQLITE
    if not is_sqlite:
        return reconciliation.read(path)
    log = StudyLog(path)
    try:
        return log.export()
    finally:
        log.close()


@checked
def verify_log(path: str | Path, *, key: str | None = None) -> VerifiedLog:
    """Verify every record, hash and signature in a file ``path``.

    Raises LogBroken, which names the first fault, and Invalid for a file that cannot be read.

    ``key`` is the party's verifier key from another source; without it a party could rewrite its whole history.
    """
    export = read_log(path)
    head = reconciliation.verify_export(export, key=key)
    shared = {grant: len(entries) for grant, entries in export.shared.items()}
    return VerifiedLog(export.service, export.key, head.size, head.root, shared)


@checked
def reconcile(first: str | Path, second: str | Path, *, study: str | None = None) -> Comparison:
    """Verify the files ``first`` and ``second`` of a curator and a modeler, and compare their exchanges of a study.

    Without ``study``, of every study that the modeler's side queried. Raises as ``verify_log`` does.
    """
    sides = [read_log(first), read_log(second)]
    for path, side in zip((first, second), sides, strict=True):
        try:
            reconciliation.verify_export(side)
        except LogBroken as error:
            raise LogBroken(f"{path}: {error}") from None
    curators = [side for side in sides if side.is_curators]
    if len(curators) != 1:
        raise Invalid("one file must be of a curator, and the other of a modeler or a Study")
    curator, modeler = curators[0], next(side for side in sides if not side.is_curators)
    studies = sorted(modeler.keys) if study is None else [study]
    compared, differences = 0, []
    for study_id in studies:
        count, more = reconciliation.reconcile(curator, modeler, study_id)
        compared += count
        differences += more
    return Comparison(studies, compared, differences)
