"""The candidates that a grant gets: zeros stand for those whose record was withheld before the grant was made.

A candidate keeps its number, so that it is the same record to each grant, and in each study that reads the release.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from blindopt import wire
from blindopt.errors import RecordChanged, StateConflict
from blindopt.formats import npy_files, release_files
from curator_service import store
from curator_service.budget.file_use import check_order
from curator_service.datasets.records import withheld_records
from curator_service.privacy.prices import is_groups
from curator_service.studies.release_cache import Released
from curator_service.vault import Vault
from service_kit.store import audit_log
from service_kit.store.database import Connection

LEFT_OUT = "candidates.left_out"
"""Kind of a record in the log. Nothing else stores what a grant does not get."""


@dataclass(frozen=True, slots=True)
class Download:
    """The digest and the parts of what a grant gets, and the numbers of the candidates left out, in order."""

    sha256: str
    parts: list[wire.ReleasePart]
    left_out: list[int] = field(default_factory=list)


def of_grant(db: Connection, released: Released, grant_id: str) -> Download:
    for record in audit_log.of_kind(db, LEFT_OUT, about=grant_id):
        if (details := record["details"])["grant_id"] == grant_id:
            parts = [wire.ReleasePart.model_validate(part) for part in details["parts"]]
            return Download(details["sha256"], parts, details["left_out"])
    return Download(released.sha256, released.report.parts)


def of_next_grant(db: Connection, vault: Vault, study_id: str, before: Download | None = None) -> Download | None:
    """What a grant gets from now on, if records were withheld; ``before``, if it leaves out the same.

    Reads the whole file. Raises StateConflict if every record was withheld, RecordChanged for another file, or another
    order, than was published.
    """
    release, spec = store.release_of(db, study_id), store.spec_of(db, study_id)
    if release is None or is_groups(spec) or store.is_erased(db, study_id):
        return None
    if not (withheld := withheld_records(db, vault, spec.dataset_id)):
        return None
    left_out = np.flatnonzero(np.isin(vault.order(release.id), withheld)).tolist()
    if not left_out or (before is not None and before.left_out == left_out):
        return before if left_out else None
    if len(left_out) == release.n:
        raise StateConflict("every record of the release was withheld: there is no candidate for a grant")
    check_order(db, vault, study_id)
    path, parts = vault.candidates(release.id), wire.ReleaseReport.model_validate_json(release.report).parts
    if release_files.digest(path, parts) != release.sha256:
        raise RecordChanged("the stored candidates are not the ones that were published")
    zeros = npy_files.bytes_of(path, left_out)
    return Download(release_files.digest(path, parts, zeros), release_files.stored_parts(path, parts, zeros), left_out)


def record(
    db: Connection, study_id: str, grant_ids: Iterable[str], download: Download | None, *, actor: str, now: datetime
) -> None:
    """Record what these grants get, for good; None: the whole release."""
    if download is not None:
        parts = [part.model_dump() for part in download.parts]
        gets = {"study_id": study_id, "sha256": download.sha256, "parts": parts, "left_out": download.left_out}
        for grant_id in grant_ids:
            audit_log.append(db, LEFT_OUT, actor=actor, now=now, details={"grant_id": grant_id} | gets)
