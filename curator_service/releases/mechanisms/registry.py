"""The release mechanisms, and the choice of a study's."""

from blindopt import wire
from blindopt.errors import Invalid
from curator_service.datasets.scaling import rounding_of
from curator_service.privacy.calibration import Concrete, concrete
from curator_service.privacy.noise import PLANAR_FEATURES_MAX
from curator_service.privacy.search_noise import field_of_delta
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
    Groups,
    PoGpUcb,
    Identity,
)
"""Those with a proved claim, then the refuted one, then the one without protection."""


def planned_mechanism(study: wire.StudyCreate) -> Mechanism:
    """The mechanism of a study, from public values alone. Raises Invalid if it does not fit the study."""
    return mechanism_of(study, concrete(study)[0])


def mechanism_of(study: wire.StudyCreate, spec: Concrete) -> Mechanism:
    """The mechanism of a concrete release, calibrated to all rows of a person. Raises Invalid where it does not fit."""
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
            if d > PLANAR_FEATURES_MAX:
                if isinstance(study.release, wire.AutoRelease):
                    raise Invalid.at("release.delta", f"is missing: {d} features need a delta, such as 1e-6")
                limit = f"planar_laplace is for {PLANAR_FEATURES_MAX} features at most: for these {d} take gaussian"
                raise Invalid.at("release.mechanism", f"{limit}, with a delta such as 1e-6")
            rounding = _rounding(study, spec)
            epsilon = wire.amount(spec.epsilon)
            return PlanarLaplaceMechanism(epsilon, spec.sensitivity, rounding, spec.rotate, k, spec.delta)
        case wire.GaussianProjectionRelease():
            return _projection(study, spec, d)


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


def _rounding(study: wire.StudyCreate, spec: wire.LocalRelease) -> float:
    rounding = rounding_of(study.features)
    if rounding > 1e-3 * spec.sensitivity:
        raise _too_small(study)
    return rounding


def _too_small(study: wire.StudyCreate) -> Invalid:
    field = field_of_delta(study)
    name = field.rpartition(".")[2].replace("_", " ")
    return Invalid.at(field, f"{name} is too small against the features' ranges for double precision")
