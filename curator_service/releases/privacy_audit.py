"""A signed transcript of whether a study's noise has the law that it promises. It reads settings, never a record."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from blindopt import wire
from blindopt.audit import signed_documents
from blindopt.audit.merkle_log import Json
from curator_service.privacy.answers import concrete_answers
from curator_service.privacy.calibration import failure
from curator_service.releases.attacks import fit
from curator_service.releases.mechanisms.registry import mechanism_of
from curator_service.releases.release_status import release_status
from curator_service.studies.studies import owner_view
from service_kit.context.context import ServiceContext


def audit_study(context: ServiceContext, study_id: str, draws: int) -> Json:
    """Draw the noise of a study's release and answers as this program would now, and sign how it fits its laws."""
    with context.database.read() as db:
        view = owner_view(db, study_id)
        current = release_status(db, view.spec, view.report)
    spec, answers = view.spec, concrete_answers(view.spec.answers)
    mechanism = mechanism_of(spec, current.release)
    release: dict[str, Any] = {"part": "release", "mechanism": mechanism.name, "version": mechanism.version}
    if isinstance(current.release, wire.SoundRelease) and current.status == "sound":
        claim = {"epsilon": current.release.epsilon, "delta": failure(current.release)}
        release |= {"claimed": claim} | _in_fields(fit.of_release(spec, mechanism, draws))
    answered: dict[str, Any] = {"part": "answers", "mechanism": answers.mechanism}
    if not isinstance(answers, wire.NoAnswerNoise):
        claim = {"epsilon": answers.epsilon, "delta": 0.0}
        answered |= {"claimed": claim} | _in_fields(fit.of_answers(spec, draws))
    trail = context.audit_trail
    transcript = {
        "study_id": view.id,
        "spec_sha256": view.spec_sha256,
        "made_at": context.clock().isoformat(),
        "log_key": context.signer.verifier.vkey,
        "checkpoint": trail.sign(trail.head()),
        "versions": {name: _version(name) for name in ("blindopt-services", "opendp", "dp-accounting", "numpy")}
        | {"python": platform.python_version()},
        "draws": draws,
        "p_min": fit.P_MIN,
        "parts": [release, answered],
        "contradicts": release.get("contradicts", False) or answered.get("contradicts", False),
    }
    signature = signed_documents.sign(context.signer, wire.AUDIT_TITLE, transcript)
    return {"transcript": transcript, "signature": signature}


def _in_fields(fits: list[fit.Fit]) -> dict[str, Any]:
    statistics = [{"statistic": each.statistic, "p": each.p} for each in fits]
    return {"statistics": statistics, "contradicts": any(each.contradicts for each in fits)}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a checkout on the path
        return "checkout"
