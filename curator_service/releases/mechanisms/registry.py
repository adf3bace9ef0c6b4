"""The release mechanisms, and the choice of a study's."""

from blindopt import wire
from blindopt.errors import Invalid
from curator_service.datasets.scaling import ScaledRows, rounding_of
from curator_service.privacy.calibration import AXES_MAX, EPSILON_MIN, Concrete, concrete, of_axes, smallest
from curator_service.privacy.noise import PLANAR_FEATURES_MAX
from curator_service.privacy.search_noise import field_of_delta
from curator_service.releases.mechanisms.axes import RECORDS, Axes, PrivateGram
from curator_service.releases.mechanisms.groups import Groups
from curator_service.releases.mechanisms.mechanism import Identity, Mechanism
from curator_service.releases.mechanisms.po_gp_ucb import PoGpUcb
from curator_service.releases.mechanisms.row_noise import (
    PROJECTED_FEATURES_MIN,
    GaussianMechanism,
    GaussianProjection,
    PlanarLaplaceMechanism,
)

MECHANISMS: tuple[type[Mechanism], ...] = (
    PlanarLaplaceMechanism,
    GaussianMechanism,
    GaussianProjection,
    Axes,
    Groups,
    PoGpUcb,
    Identity,
)
"""Those with a proved claim, then the refuted one, then the one without protection."""


def planned_mechanism(study: wire.StudyCreate) -> Mechanism:
    """The mechanism of a study, from public values alone. Raises Invalid if it does not fit the study."""
    spec = concrete(study)[0]
    mechanism = mechanism_of(study, spec)
    _check_refine(study, spec)
    return mechanism


def with_columns(spec: wire.StudyCreate, sample: ScaledRows | None) -> wire.StudyCreate:
    """The study with the number of columns that its public sample determines, if it has one and no number."""
    release, d, k = spec.release, len(spec.features), spec.protected_rows
    if sample is None or not isinstance(release, wire.AxesRelease | wire.AutoRelease) or release.r is not None:
        return spec
    mechanism, law = planned_mechanism(spec), None
    if not isinstance(mechanism, Axes):  # few features: auto adds noise to all of them
        return spec
    if isinstance(release, wire.AutoRelease):
        on_all = smallest(release, d, k)[0]
        law = None if release.delta is None else mechanism_of(spec, on_all).noise(d)
    r = mechanism.of_sample(sample, law).columns(d)
    return spec.model_copy(update={"release": release.model_copy(update={"r": r})})


def refinement_of(study: wire.StudyCreate) -> PlanarLaplaceMechanism:
    """The mechanism of the second draw of each measured record: that of the release, pure, and for one record."""
    release = study.release
    assert study.refine is not None
    assert isinstance(release, wire.PlanarLaplaceRelease | wire.AutoRelease)
    epsilon = wire.amount(study.refine.epsilon)
    return PlanarLaplaceMechanism(epsilon, release.sensitivity, _rounding(study, release), promise=release.promise)


def _check_refine(study: wire.StudyCreate, spec: Concrete) -> None:
    """Raise Invalid for a study whose measured records cannot leave again."""
    if study.refine is None:
        return
    if isinstance(spec, wire.GroupsRelease):
        raise Invalid.at("refine", "a study of groups sends no record, so none can leave again: leave refine out")
    if not isinstance(spec, wire.PlanarLaplaceRelease):
        only = "measured records leave again only with the noise of planar_laplace"
        raise Invalid.at("refine", f"{only}, and this release is {spec.mechanism}: take that one, or leave refine out")
    if spec.rotate:
        why = "the curator does not keep the rotation, so a second draw cannot be turned alike"
        raise Invalid.at("release.rotate", f"must be false with refine: {why}")
    if study.privacy_unit != "row":
        raise Invalid.at("privacy_unit", "must be row with refine: both draws are of one record")
    if study.refine.persons is None:
        raise Invalid.at("refine.persons", "is missing: say how many persons may be refined, or cap budget.queries")


def mechanism_of(study: wire.StudyCreate, spec: Concrete, sample: ScaledRows | None = None) -> Mechanism:
    """The mechanism of a concrete release, calibrated to all rows of a person. Raises Invalid where it does not fit.

    ``sample``: the rows of the public sample that the release names, without which it has no axes.
    """
    d, k = len(study.features), study.protected_rows
    match spec:
        case wire.IdentityRelease():
            return Identity()
        case wire.GroupsRelease():
            return Groups.of(study, spec)
        case wire.PoGpUcbRelease():
            return PoGpUcb(wire.amount(spec.epsilon), spec.delta, spec.sensitivity, spec.r)
        case wire.GaussianRelease():
            rounding = _rounding(study, spec)
            return GaussianMechanism(wire.amount(spec.epsilon), spec.delta, spec.sensitivity, rounding, spec.rotate, k)
        case wire.PlanarLaplaceRelease():
            if spec.promise == "one_feature":
                _check_one_feature(spec)
            elif d > PLANAR_FEATURES_MAX:
                if isinstance(study.release, wire.AutoRelease):
                    raise Invalid.at("release.delta", f"is missing: {d} features need a delta, such as 1e-6")
                limit = f"planar_laplace is for {PLANAR_FEATURES_MAX} features at most: for these {d} take gaussian"
                raise Invalid.at("release.mechanism", f"{limit}, with a delta such as 1e-6")
            rounding = _rounding(study, spec)
            epsilon = wire.amount(spec.epsilon)
            return PlanarLaplaceMechanism(epsilon, spec.sensitivity, rounding, spec.rotate, k, spec.delta, spec.promise)
        case wire.GaussianProjectionRelease():
            return _projection(study, spec, d)
        case wire.AxesRelease():
            axes = _axes(study, spec, d)
            return axes if sample is None else axes.of_sample(sample)


def _check_one_feature(spec: wire.PlanarLaplaceRelease) -> None:
    """Raise Invalid for what the promise of one feature at a time cannot have."""
    if spec.delta is not None:
        raise Invalid.at("release.delta", "gains next to nothing with promise one_feature: leave it out")
    if spec.rotate:
        why = "its noise is not alike in all directions, so turned candidates have another law than the vendor reads"
        raise Invalid.at("release.rotate", f"must be false with promise one_feature: {why}")


def _projection(study: wire.StudyCreate, spec: wire.GaussianProjectionRelease, d: int) -> Mechanism:
    if d < PROJECTED_FEATURES_MIN:
        better = "planar_laplace or gaussian keeps every feature and needs no more noise"
        raise Invalid.at(
            "release.r", f"a projection is for {PROJECTED_FEATURES_MIN} features or more, not {d}: {better}"
        )
    if study.protected_rows > 1:
        reason = (
            f"gaussian_projection is proved for one record of a person, not for {study.protected_rows}: take gaussian"
        )
        raise Invalid.at("release.mechanism", reason)
    if spec.r >= d:
        raise Invalid.at(
            "release.r", f"a projection to r columns needs r smaller than the {d} features: or take gaussian"
        )
    rounding = _rounding(study, spec)
    mechanism = GaussianProjection(wire.amount(spec.epsilon), spec.delta, spec.sensitivity, spec.r, rounding)
    if mechanism.slack(d) > 1e-3 * spec.sensitivity:
        raise _too_small(study)
    return mechanism


def _axes(study: wire.StudyCreate, spec: wire.AxesRelease, d: int) -> Axes:
    if d < 2 or (spec.r or 2) > d:
        raise Invalid.at("release.r", f"axes are for 2 features or more, and at most as many as these {d}")
    if (spec.r or 0) > AXES_MAX and spec.r != d:
        raise Invalid.at("release.r", f"there are {AXES_MAX} axes at most: leave r out")
    if spec.delta is None and (spec.r or 0) > AXES_MAX:
        raise Invalid.at("release.delta", f"is missing: noise on all {d} features needs one, such as 1e-6")
    axes = Axes(spec, d, _rounding(study, spec), study.protected_rows)
    if axes.slack(d) > 1e-3 * spec.sensitivity:
        raise _too_small(study)
    if spec.axes == "private":
        if of_axes(spec)[0] < EPSILON_MIN:
            raise Invalid.at("release.epsilon", "is too small for private axes, which use a fifth of it")
        PrivateGram.of(axes, RECORDS)  # before a charge
    return axes


def _rounding(study: wire.StudyCreate, spec: wire.LocalRelease) -> float:
    rounding = rounding_of(study.features, getattr(spec, "promise", "euclidean"))
    if rounding > 1e-3 * spec.sensitivity:
        raise _too_small(study)
    return rounding


def _too_small(study: wire.StudyCreate) -> Invalid:
    field = field_of_delta(study)
    name = field.rpartition(".")[2].replace("_", " ")
    return Invalid.at(field, f"{name} is too small against the features' ranges for double precision")
