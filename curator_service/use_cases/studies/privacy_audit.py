"""A black-box audit of a study's own mechanisms. It reads the study's settings alone, never a record."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from blindopt import wire
from curator_service.attacks import audit
from curator_service.privacy.answers import concrete_answers
from curator_service.privacy.choice import failure
from curator_service.release.registry import mechanism_of
from curator_service.use_cases.studies.release_status import release_status
from curator_service.use_cases.studies.studies import owner_view
from service_kit.store.database import Database

Part = Literal["release", "answers"]
OnProgress = Callable[[Part, float], None]


@dataclass(frozen=True, slots=True)
class PartAudit:
    """One of the two mechanisms of a study, and its audit; None where it promises nothing that could be checked."""

    part: Part
    mechanism: str
    version: int | None
    audit: audit.Audit | None


def on_study(
    database: Database, identity: str, *, draws: int, confidence: float, on_progress: OnProgress
) -> tuple[wire.StudyOwnerView, list[PartAudit]]:
    """Audit the release mechanism of a study and its answers, as this program would draw them now.

    Each bound is wrong with probability 1 - ``confidence`` at most. Raises ValueError for bad parameters.
    """
    with database.read() as db:
        view = owner_view(db, identity)
        current = release_status(db, view.spec, view.report)
    spec, release, answers = view.spec, current.release, concrete_answers(view.spec.answers)
    mechanism = mechanism_of(spec, release)
    on_release = on_answers = None
    if isinstance(release, wire.SoundRelease) and current.status == "sound":
        claim = audit.Claim(wire.amount(release.epsilon), failure(release))
        on_release = audit.audit_release(
            spec,
            mechanism,
            claim,
            rows=spec.protected_rows,
            draws=draws,
            confidence=confidence,
            on_progress=lambda share: on_progress("release", share),
        )
    if not isinstance(answers, wire.NoAnswerNoise):
        on_answers = audit.audit_answers(
            spec,
            audit.Claim(wire.amount(answers.epsilon)),
            draws=draws,
            confidence=confidence,
            on_progress=lambda share: on_progress("answers", share),
        )
    parts = [
        PartAudit("release", mechanism.name, mechanism.version, on_release),
        PartAudit("answers", answers.mechanism, None, on_answers),
    ]
    return view, parts
