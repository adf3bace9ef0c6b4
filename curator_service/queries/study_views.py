"""A study as a modeler may see it."""

from blindopt import wire
from curator_service import store
from curator_service.privacy.guarantees import not_protected
from curator_service.releases.mechanisms.registry import mechanism_of
from curator_service.releases.report import release_status
from curator_service.studies import downloads
from curator_service.studies.release_cache import ReleasedStudies
from curator_service.studies.study_caps import changes_of
from service_kit.context.context import ServiceContext
from service_kit.store.database import Connection


def view_of(
    db: Connection, context: ServiceContext, studies: ReleasedStudies, limits: wire.Limits, grant_id: str, study_id: str
) -> wire.StudyView:
    """The study as the modeler of a grant may see it. Raises StudyNotOpen before the release, and Erased."""
    released, state = studies.of(db, study_id), store.state_of(db, study_id)
    download = downloads.of_grant(db, released, grant_id)
    current = release_status(db, released.spec, released.report)
    changes = changes_of(db, study_id)
    spec, mechanism = released.spec, mechanism_of(released.spec, current.release)
    claims = current.claimed if isinstance(current.claimed, wire.SoundRelease) else None
    return wire.StudyView(
        id=study_id,
        state="closed" if state == "closed" else "open",
        n=released.n,
        r=released.r,
        parts=download.parts,
        left_out=download.left_out,
        release_id=released.id,
        release_sha256=download.sha256,
        mechanism=mechanism.name,
        status=current.status,
        epsilon=claims.epsilon if claims else None,
        delta=getattr(claims, "delta", None),
        sensitivity=getattr(claims, "sensitivity", None),
        noise=mechanism.noise(len(spec.features)),
        answers=wire.concrete_answers(spec.answers),
        privacy_unit=spec.privacy_unit,
        budget=spec.budget,
        budget_changes=changes,
        grant_id=grant_id,
        log_key=context.signer.verifier.vkey,
        direction=spec.measurement.direction,
        measurement_source=spec.measurement.source,
        measurement_noise_variance=spec.measurement.noise_variance,
        kernel=spec.kernel,
        limits=limits,
        reply_after_ms=spec.reply_after_ms,
        guarantee=current.promise(spec),
        not_protected=not_protected(spec, current.claimed),
        sandbox=current.sandbox,
    )
