"""Attacks on a study, previewed for its owner: nothing is changed, and what is drawn is thrown away.

Each finding is judged against blind guessing. The thresholds are constants, so that a level says the same of every
study (docs/privacy.md, "What attacks recover").
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType

from blindopt import wire
from blindopt.errors import Busy
from blindopt.formats import npy_files
from blindopt.wire import Finding, RiskLevel, Verdict
from curator_service import store
from curator_service.datasets import records
from curator_service.datasets.records import withheld_records
from curator_service.privacy.calibration import Concrete
from curator_service.privacy.prices import is_groups
from curator_service.releases.attacks import groups, trial
from curator_service.releases.attacks.averaging import ENDLESS
from curator_service.releases.attacks.scene import percent
from curator_service.releases.attacks.worker import PROGRAM, Job, PreviewResult, Published, attempt
from curator_service.releases.mechanisms.axes import SAMPLE_ROWS
from curator_service.releases.mechanisms.mechanism import Assessment
from curator_service.releases.mechanisms.registry import mechanism_of
from curator_service.releases.report import release_status
from curator_service.studies.studies import owner_view
from curator_service.vault import Vault
from service_kit.runner.runner import Kind, Runner, Task
from service_kit.store.database import Connection, Database

log = logging.getLogger("blindopt.trials")
PREVIEW_SECONDS = 3.0
"""The time that the attacks of a preview are sized for."""
DEADLINE_SECONDS = 15.0
"""The time after which they are ended."""
COMMAND_SECONDS = 20.0
WAIT_SECONDS = 1.0
"""How long a preview waits for another's; it holds a thread of the service meanwhile."""
_CENTRES = (
    "Not tried: what the groups' centres show of a record, which use a part of epsilon. On the curator's machine, "
    "`blindopt-curator audit-privacy STUDY` draws them."
)
_SECOND_DRAWS = "Not tried: what second draws of measured records show, which use epsilon {epsilon} each."


@dataclass(frozen=True, slots=True)
class Preview:
    """The assessment of a draft's release, the findings of attacks on it, and in words what was not tried.

    The most harmful finding is first.
    """

    assessment: Assessment
    findings: list[wire.Finding]
    not_tried: str | None

    @property
    def verdict(self) -> wire.Verdict | None:
        return verdict(self.findings, complete=self.not_tried is None)


def job_of(
    db: Connection, vault: Vault, spec: wire.StudyCreate, release: Concrete, published: str | None = None
) -> Job:
    """The preview of a draft, or attacks on the release with the id ``published``, as a job for its worker process."""
    columns, outcome = records.column_indices(db, spec)
    sample = records.sample_rows(db, vault, spec, is_drawn=published is not None)
    return Job(
        study=spec,
        release=release,
        records=vault.records(spec.dataset_id),
        columns=columns,
        outcome=outcome,
        withheld=withheld_records(db, vault, spec.dataset_id),
        published=None
        if published is None
        else Published(candidates=vault.candidates(published), order=vault.order_file(published)),
        seconds=PREVIEW_SECONDS,
        sample=None if sample is None else vault.records(getattr(spec.release, "sample_dataset_id", "")),
        sample_columns=[] if sample is None else sample.columns,
        sample_order=[] if sample is None else sample.thinned(SAMPLE_ROWS).order.tolist(),
    )


class Previews:
    """Previews of drafts, and attacks on releases: one at a time."""

    def __init__(self, runner: Runner) -> None:
        self._kind = runner.add(Kind("preview", PROGRAM, seconds=DEADLINE_SECONDS))

    def make(self, study_id: str, job: Job, wait_s: float = WAIT_SECONDS) -> Preview:
        """Assess a draft, and attack a release of up to 2,000 rows that is drawn for this, until the deadline at most.

        Or attack the published release of the job. Raises ReleaseImpossible, and Busy while another preview is made.
        """
        busy = Busy("a preview is under way, and one is made at a time: try again", seconds=ceil(PREVIEW_SECONDS))
        with self._kind.held(Task(self._kind, study_id, study_id), wait_s, busy) as task:
            return preview_of(job, attempt(task, job), self._kind.seconds)


def preview_of(job: Job, tried: PreviewResult, deadline_s: float = DEADLINE_SECONDS) -> Preview:
    """A preview of what was tried within a deadline."""
    if tried.fault is not None:
        log.error("fault", extra={"fields": {"trial": tried.fault}})
    applicable = groups.ATTACKS if is_groups(job.study) else trial.ATTACKS
    left_out = [not_tried(tried, deadline_s, applicable)]
    if isinstance(job.release, wire.GroupsRelease) and isinstance(job.release.cells, wire.PrivateCells):
        left_out.append(_CENTRES)
    if job.study.refine is not None:
        left_out.append(_SECOND_DRAWS.format(epsilon=job.study.refine.epsilon))
    words = " ".join(filter(None, left_out)) or None
    return Preview(tried.assessment or Assessment(), judged(trial.in_order(tried.findings.items())), words)


def not_tried(
    tried: PreviewResult, deadline_s: float = DEADLINE_SECONDS, applicable: Sequence[str] = trial.ATTACKS
) -> str | None:
    """The attacks that were not tried, which an owner might take for harmless; not those on answers that no cap allows.

    None if all that are ``applicable`` were tried.
    """
    missing = [attack for attack in applicable if attack not in tried.findings]
    small = [attack for attack in applicable[:-1] if attack in tried.findings and tried.findings[attack] is None]
    if not missing and not small:
        return None
    why_not = []
    if missing:
        first = [] if tried.assessment is not None else ["what the data make of the release"]
        why = tried.fault or (
            f"a preview ends after {deadline_s:g} s, and this study is too wide or the machine too busy for it"
        )
        why_not.append(f"{', '.join(first + missing)} ({why})")
    if small:
        why = "they need more records than the study has, or than a preview draws of a study as wide"
        why_not.append(f"{', '.join(small)} ({why})")
    return (
        f"Not tried: {'; '.join(why_not)}. On the curator's machine, `blindopt-curator attack STUDY` takes more "
        "records, and its time."
    )


def on_study(database: Database, vault: Vault, study_id: str) -> tuple[wire.StudyOwnerView, list[wire.Finding]]:
    """Attack a study: the published Z with its secret row order, or a release that is drawn for this if it is a draft.

    No deadline ends it. Raises ReleaseImpossible for a draft that cannot be released.
    """
    with database.read() as db:
        view, release = owner_view(db, study_id), store.release_of(db, study_id)
        spec, order = view.spec, vault.order(release.id) if release else None
        rows, outcomes = records.scaled_rows(db, vault, spec, order), records.outcomes(db, vault, spec)
        sample = records.sample_rows(db, vault, spec, is_drawn=release is not None)
        mechanism = mechanism_of(spec, release_status(db, spec, view.report).release, sample)
    z = None if release is None else npy_files.load(vault.candidates(release.id))
    if z is None:
        mechanism.assess(rows)  # raises ReleaseImpossible, which says why
    return view, trial.in_order(trial.one_by_one(spec, rows, outcomes, mechanism, z, seconds=COMMAND_SECONDS))


THRESHOLDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "known_rows": (0.05, 0.25),
        "known_rows_noisy": (0.05, 0.25),
        "linkage": (0.05, 0.25),
        "membership": (0.1, 0.25),
        "column_space": (1.0, 3.0),
        "averaging": (0.5, 0.9),
    }
)
"""By attack, from where on its harm is notable, and high: how much its success exceeds that of a blind guess.

For column_space, the epsilon that the attack proves.
"""
_HEADLINES: Mapping[str, str] = MappingProxyType(
    {
        "known_rows": "somebody who knows a few records rebuilds {share} of the others",
        "known_rows_noisy": "somebody who knows some records roughly rebuilds {share} of the others roughly",
        "linkage": "somebody who knows a record finds its candidate in {share} of cases",
        "membership": "somebody who has a record says correctly in {share} of cases whether it is in the data",
        "column_space": "two values of a record that should look alike are distinguished in {share} of cases",
        "averaging": "the vendor learns outcomes to within {rest} of what it would guess without a query",
    }
)
_LOW = "Low risk: no attack did much better than a blind guess. A better attack may exist."


def harm(finding: Finding) -> float:
    """The harm of a finding on the scale of its attack's thresholds; 0 where the attack did no better than blindly."""
    if finding.attack == "column_space":
        return finding.figure
    return max(0.0, (finding.success or 0.0) - (finding.blind or 0.0))


def level(finding: Finding) -> RiskLevel:
    notable, high = THRESHOLDS[finding.attack]
    return "high" if harm(finding) >= high else "notable" if harm(finding) >= notable else "low"


def judged(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with their levels, the most harmful first."""
    leveled = [finding.model_copy(update={"level": level(finding)}) for finding in findings]
    ranks = {"low": 0, "notable": 1, "high": 2}
    return sorted(leveled, key=lambda f: (ranks[level(f)], harm(f) / THRESHOLDS[f.attack][1]), reverse=True)


def verdict(findings: Sequence[Finding], *, complete: bool = True) -> Verdict | None:
    """The verdict on findings; None without any. ``complete``: whether every attack was tried."""
    if not findings:
        return None
    worst = judged(findings)[0]
    incomplete = "" if complete else " Not every attack was tried."
    if level(worst) == "low":
        return Verdict(level="low", sentence=_LOW + incomplete)
    share = worst.success or 0.0
    said = _HEADLINES[worst.attack].format(share=percent(share), rest=percent(1 - share))
    if worst.attack == "averaging" and share == 1:
        said = "the vendor learns the exact outcome of each record that it queries"
        if ENDLESS in worst.sentence:
            said = "no cap limits the answers, so the vendor can query until it knows an outcome as exactly as it likes"
    grade = level(worst)
    return Verdict(level=grade, sentence=f"{grade.capitalize()} risk: {said}.{incomplete}")
