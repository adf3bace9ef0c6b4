"""The release of a study, as it ran or would run: what it promises, whether it keeps that, and its report."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

from blindopt import wire
from blindopt.errors import Invalid
from curator_service import store
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy import accounting, cautions, search_noise
from curator_service.privacy.calibration import Concrete, as_run, concrete, failure
from curator_service.privacy.guarantees import belief, confused_within, guarantee, not_protected, of_measured, whole
from curator_service.privacy.protection import of_release
from curator_service.releases.mechanisms.axes import Axes
from curator_service.releases.mechanisms.mechanism import Assessment, Mechanism
from curator_service.releases.mechanisms.registry import MECHANISMS, mechanism_of
from curator_service.store import Reasons, reasons
from service_kit.store.database import Connection

_RECORDS = 350
"""Public records by which rho is computed."""
_REFUTED = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1", delta=0.1, r=1, acknowledge_refuted=True)


@dataclass(frozen=True, slots=True)
class ReleaseStatus:
    """The release of a study, why ``auto`` chose it, whether its claim holds, and why it was withdrawn if it was.

    ``public``: whether the owner declares that nobody in the dataset needs protection; ``sandbox``: whether it is made
    up.
    """

    release: Concrete
    why: str | None
    status: wire.Status
    withdrawn: str | None
    public: bool = False
    sandbox: bool = False

    @property
    def claimed(self) -> Concrete:
        """The release, or one that is refuted in place of a withdrawn one: it promises nothing at no finite price."""
        return _REFUTED if self.status == "withdrawn" else self.release

    def promise(self, spec: wire.StudyCreate) -> str:
        return guarantee(spec, self.release, withdrawn=self.withdrawn, public=self.public, sandbox=self.sandbox)


def release_status(
    db: Connection,
    spec: wire.StudyCreate,
    report: wire.ReleaseReport | None,
    withdrawn: Reasons | None = None,
    dataset: Any = None,
) -> ReleaseStatus:
    """The release of a study: the one that ran if there is a report of it, else the one that would run today.

    ``withdrawn`` and ``dataset``: ``reasons``, and the row of the study's dataset, if the caller has read them.
    """
    if withdrawn is None:
        withdrawn = reasons(db)
    if report is None and spec.release_of is not None:  # that ran already
        report = store.report_of(db, spec.release_of)
    if dataset is None:
        dataset = store.find(db, store.datasets, spec.dataset_id)
    release, why = (
        concrete(spec) if report is None else (as_run(spec, report.mechanism, report.delta, report.r), report.why)
    )
    mechanism = next(mechanism for mechanism in MECHANISMS if mechanism.name == release.mechanism)
    reason = withdrawn.get((mechanism.name, mechanism.version if report is None else report.version))
    status = mechanism.status if reason is None else "withdrawn"
    return ReleaseStatus(release, why, status, reason, public=bool(dataset.public), sandbox=bool(dataset.sandbox))


def report_of(
    spec: wire.StudyCreate,
    rows: ScaledRows,
    mechanism: Mechanism,
    current: ReleaseStatus,
    assessment: Assessment,
    counts: list[int] | None = None,
    points: Sequence[wire.ForecastPoint] = (),
    sample: ScaledRows | None = None,
) -> wire.ReleaseReport:
    """The report of a release of these rows, as it was drawn. ``counts``: of groups, as they were released."""
    rho = rho_of(spec, mechanism, sample)
    return wire.ReleaseReport(
        **promised(spec, current, mechanism, rows.n, points, rho),
        version=mechanism.version,
        n=mechanism.candidates(rows.n) if counts is None else len(counts),
        counts=counts,
        r=mechanism.columns(rows.d),
        search=search_noise.in_words(rho),
        attacks=[],  # only a preview has them
        **asdict(assessment),
    )


def promised(
    spec: wire.StudyCreate,
    current: ReleaseStatus,
    mechanism: Mechanism,
    n: int,
    points: Sequence[wire.ForecastPoint],
    rho: float | None,
) -> dict[str, Any]:
    """What a check and a report of ``n`` records say alike: public values, fields of the wire.

    ``points``: of the public forecast of the draft, if one has been made. ``rho``: as ``rho_of``.
    """
    price = accounting.price(spec, current.claimed)
    return {
        "mechanism": mechanism.name,
        "why": current.why,
        "delta": failure(current.claimed) or None,
        "status": current.status,
        "guarantee": current.promise(spec),
        "not_protected": not_protected(spec, current.claimed),
        "noise_sd": mechanism.noise(len(spec.features)).sd,
        "features": meanings(spec, mechanism, holds=current.status == "sound"),
        "belief": belief(current.claimed, record=whole(spec, current.release), measured=of_measured(spec)),
        "price": price,
        "cautions": cautions.of_study(
            spec, current.release, price, n=n, is_public=current.public, rho=rho, points=points
        ),
    }


def rho_of(spec: wire.StudyCreate, mechanism: Mechanism, sample: ScaledRows | None = None) -> float | None:
    """What a search can learn through a release, as ``search_noise.rho_of``, from public values."""
    d, axes = len(spec.features), getattr(mechanism, "axes", None)
    if sample is None and isinstance(mechanism, Axes):
        return None
    rows = None if sample is None else sample.sample(_RECORDS)
    return search_noise.rho_of(spec.features, mechanism.noise(d), mechanism.columns(d), rows, axes)


def promises(spec: wire.StudyCreate) -> list[wire.PromiseOffer]:
    """A draft's release with either promise; empty where one of them cannot be had."""
    if not isinstance(spec.release, wire.AutoRelease | wire.PlanarLaplaceRelease) or spec.release.rotate:
        return []
    d, offers = len(spec.features), list[wire.PromiseOffer]()
    for promise in ("euclidean", "one_feature"):
        without = {"delta": None} if promise == "one_feature" else {}
        release = spec.release.model_copy(update={"promise": promise} | without)
        study = spec.model_copy(update={"release": release})
        ran = concrete(study)[0]
        try:
            mechanism = mechanism_of(study, ran)
        except Invalid:  # such as planar noise for many features
            return []
        sd = mechanism.noise(d).sd or 0.0
        moves = [float(m) if promise == "one_feature" else sqrt(m) for m in (1, min(2, d), d)]
        offers.append(
            wire.PromiseOffer(
                promise=promise,
                noise_sds=[sd * feature.unit for feature in spec.features],
                epsilons=[float(of_release(study, ran, by)) for by in moves],
                rho=rho_of(study, mechanism),
            )
        )
    return offers


def meanings(spec: wire.StudyCreate, mechanism: Mechanism, *, holds: bool) -> list[wire.FeatureMeaning]:
    """Delta and the standard deviation of the noise in the unit of each feature.

    ``holds``: whether the mechanism's claim does: only then a change of any size is protected.
    """
    sensitivity = getattr(spec.release, "sensitivity", None)
    d, law = len(spec.features), mechanism.noise(len(spec.features))
    sd, confused = law.sd, confused_within(law, mechanism.columns(d), spec.protected_rows)
    if isinstance(mechanism, Axes) and mechanism.spec.axes == "private":
        confused = None  # their axes say something, too
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
