"""What an attacker would get from a study, for its owner: nothing is changed, and nothing drawn is kept."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil

from blindopt import wire
from blindopt.errors import Busy
from blindopt.formats import npy_files
from curator_service import attacks, store
from curator_service.attacks.worker import Job, PreviewResult, attempt
from curator_service.privacy.choice import Concrete
from curator_service.release.mechanism import Assessment
from curator_service.release.registry import mechanism_of
from curator_service.use_cases.studies import dataset_rows
from curator_service.use_cases.studies.advisories import standing
from curator_service.use_cases.studies.studies import owner_view
from curator_service.vault import Vault
from service_kit.store.database import Connection, Database

log = logging.getLogger("blindopt.trials")
PREVIEW_SECONDS = 3.0
"""What a preview's attacks are sized for."""
DEADLINE_SECONDS = 15.0
"""When they are ended, whatever they do."""
COMMAND_SECONDS = 20.0
WAIT_SECONDS = 1.0
"""How long a preview waits for another's; it holds a thread of the service meanwhile."""
_ONE = threading.Lock()
_SOME = object()


@dataclass(frozen=True, slots=True)
class Preview:
    """What a draft's release would be, what attacks on a trial got, and what was not tried, in words."""

    assessment: Assessment
    findings: list[wire.Finding]
    left_out: str | None


def job_of(db: Connection, vault: Vault, spec: wire.StudyCreate, release: Concrete) -> Job:
    """A draft as its trial takes it."""
    columns, outcome = dataset_rows.places(db, spec)
    return Job(
        study=spec,
        release=release,
        records=vault.records(spec.dataset_id),
        columns=columns,
        outcome=outcome,
        seconds=PREVIEW_SECONDS,
    )


def on_draft(
    job: Job,
    *,
    deadline_s: float = DEADLINE_SECONDS,
    wait_s: float = WAIT_SECONDS,
    run: Callable[[Job, float], PreviewResult] | None = None,
) -> Preview:
    """Assess and attack a draft on a trial release of up to 2,000 rows, until the deadline at most.

    Raises ReleaseImpossible, and Busy while somebody else's trial is under way.
    """
    with _turn(wait_s):
        tried = (run or attempt)(job, deadline_s)
    if tried.fault is not None:
        log.error("fault", extra={"fields": {"trial": tried.fault}})
    findings = [finding for attack in attacks.ATTACKS if (finding := tried.findings.get(attack)) is not None]
    return Preview(tried.assessment or Assessment(), findings, left_out(tried, deadline_s))


@contextmanager
def _turn(wait_s: float) -> Iterator[None]:
    """One trial at a time: each takes a processor and the memory of a process."""
    if not _ONE.acquire(timeout=wait_s):
        raise Busy("a preview is under way, and one is made at a time: try again", seconds=ceil(PREVIEW_SECONDS))
    try:
        yield
    finally:
        _ONE.release()


def left_out(tried: PreviewResult, deadline_s: float = DEADLINE_SECONDS) -> str | None:
    """What an owner might take for harmless because nothing is told of it. Answers that no cap allows are no loss."""
    missing = [attack for attack in attacks.ATTACKS if attack not in tried.findings]
    small = [attack for attack in attacks.ATTACKS[:-1] if tried.findings.get(attack, _SOME) is None]
    if not missing and not small:
        return None
    parts = []
    if missing:
        first = [] if tried.assessment is not None else ["what the data make of the release"]
        why = tried.fault or (
            f"a preview ends after {deadline_s:g} s, and this study is too wide or the machine too busy for it"
        )
        parts.append(f"{', '.join(first + missing)} ({why})")
    if small:
        why = "more rows are needed than the study has, or than a preview draws of one as wide"
        parts.append(f"{', '.join(small)} ({why})")
    told = "; ".join(parts)
    return (
        f"Not tried: {told}. On the curator's machine, `blindopt-curator attack STUDY` takes more rows, and its time."
    )


def on_study(database: Database, vault: Vault, identity: str) -> tuple[wire.StudyOwnerView, list[wire.Finding]]:
    """Attacks on a study as it is: on the Z that left, with its secret row order, where it was released.

    Takes as long as it takes. Raises ReleaseImpossible for a draft that cannot be released.
    """
    with database.read() as db:
        view, release = owner_view(db, identity), store.release_of(db, identity)
        spec, order = view.spec, vault.order(release.id) if release else None
        rows, outcomes = dataset_rows.scaled_rows(db, vault, spec, order), dataset_rows.outcomes(db, vault, spec)
        mechanism = mechanism_of(spec, standing(db, spec, view.report).release)
    if release is None:
        mechanism.assess(rows)  # says in words where nothing can be released
        return view, attacks.on_trial(spec, rows, outcomes, mechanism, seconds=COMMAND_SECONDS)
    z = npy_files.load(vault.candidates(release.id))
    return view, attacks.on_release(spec, rows, outcomes, mechanism, z, seconds=COMMAND_SECONDS)
