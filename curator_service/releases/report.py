"""What a release promises: the report of one that was drawn, and the public values that a check says as well."""

from dataclasses import asdict
from typing import Any

from blindopt import wire
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy import accounting, cautions, search_noise
from curator_service.privacy.calibration import failure
from curator_service.privacy.guarantees import belief, confused_within, not_protected, whole
from curator_service.releases.mechanisms.mechanism import Assessment, Mechanism
from curator_service.releases.release_status import ReleaseStatus


def report_of(
    spec: wire.StudyCreate,
    rows: ScaledRows,
    mechanism: Mechanism,
    current: ReleaseStatus,
    assessment: Assessment,
    counts: list[int] | None = None,
) -> wire.ReleaseReport:
    """The report of a release of these rows, as it was drawn. ``counts``: of groups, as they were released."""
    return wire.ReleaseReport(
        **promised(spec, current, mechanism, rows.n),
        version=mechanism.version,
        n=mechanism.candidates(rows.n) if counts is None else len(counts),
        counts=counts,
        r=mechanism.columns(rows.d),
        search=search_noise.in_words(noise_ratio(spec, mechanism)),
        attacks=[],  # only a preview has them
        **asdict(assessment),
    )


def promised(spec: wire.StudyCreate, current: ReleaseStatus, mechanism: Mechanism, n: int) -> dict[str, Any]:
    """What a check and a report of ``n`` records say alike: public values, fields of the wire."""
    price = accounting.price(spec, current.claimed)
    noise = noise_ratio(spec, mechanism)
    return {
        "mechanism": mechanism.name,
        "why": current.why,
        "delta": failure(current.claimed) or None,
        "status": current.status,
        "guarantee": current.promise(spec),
        "not_protected": not_protected(spec, current.claimed),
        "noise_sd": mechanism.noise(len(spec.features)).sd,
        "features": meanings(spec, mechanism, holds=current.status == "sound"),
        "belief": belief(current.claimed, record=whole(spec, current.release)),
        "price": price,
        "cautions": cautions.of_study(spec, current.release, price, n=n, is_public=current.public, noise=noise),
    }


def noise_ratio(spec: wire.StudyCreate, mechanism: Mechanism) -> float | None:
    """How far the noise of a release moves a record, over the distance of two points of the box; None without noise."""
    d = len(spec.features)
    return search_noise.of_box(spec.features, mechanism.noise(d).sd, mechanism.columns(d))


def meanings(spec: wire.StudyCreate, mechanism: Mechanism, *, holds: bool) -> list[wire.FeatureMeaning]:
    """Delta and the standard deviation of the noise in the unit of each feature.

    ``holds``: whether the mechanism's claim does: only then a change of any size is protected.
    """
    sensitivity = getattr(spec.release, "sensitivity", None)
    d, law = len(spec.features), mechanism.noise(len(spec.features))
    sd, confused = law.sd, confused_within(law, d, spec.protected_rows)
    return [
        wire.FeatureMeaning(
            column=feature.column,
            sensitivity=_hidden(sensitivity, feature, mechanism) if holds else None,
            # A column of a projection is no feature: its noise has no feature's unit.
            noise_sd=sd * feature.unit if sd is not None and mechanism.columns(d) == d else None,
            confused=confused * feature.unit if confused is not None and holds else None,
        )
        for feature in spec.features
    ]


def _hidden(sensitivity: float | None, feature: wire.Feature, mechanism: Mechanism) -> float | None:
    """The change of a feature that is hidden, in its unit: of groups, all that the bounds allow."""
    if mechanism.whole_records:
        return feature.upper - feature.lower
    return sensitivity * feature.unit if sensitivity else None
