"""The release mechanisms by name, and which one a study gets."""

from collections.abc import Collection
from dataclasses import dataclass

from curator_service.privacy.choice import Concrete, concrete
from curator_service.release.gaussian import GaussianMechanism
from curator_service.release.identity import Identity
from curator_service.release.mechanism import Mechanism
from curator_service.release.po_gp_ucb import PoGpUcb
from curator_service.scaling import rounding_of
from shared.errors import Invalid
from shared.wire import (
    GaussianProjectionRelease,
    GaussianRelease,
    IdentityRelease,
    PlanarLaplaceRelease,
    PoGpUcbRelease,
    SoundRelease,
    StudyCreate,
    amount,
)

MECHANISMS: tuple[type[Mechanism], ...] = (GaussianMechanism, PoGpUcb, Identity)


@dataclass(frozen=True, slots=True)
class Choice:
    """The mechanism that a study gets, and why, where the owner left it open."""

    mechanism: Mechanism
    why: str | None = None


def choice_of(study: StudyCreate, withdrawn: Collection[str] = ()) -> Choice:
    """The mechanism of a study, from public values alone: ``auto`` takes none that is ``withdrawn``.

    Invalid where it cannot be made for this study.
    """
    spec, why = concrete(study, withdrawn)
    return Choice(mechanism_of(study, spec), why)


def mechanism_of(study: StudyCreate, spec: Concrete) -> Mechanism:
    """The mechanism of a release that is resolved. Invalid where it cannot be made for this study."""
    match spec:
        case IdentityRelease():
            return Identity()
        case PoGpUcbRelease():
            return PoGpUcb(amount(spec.epsilon), spec.delta, spec.sensitivity, spec.r)
        case GaussianRelease():
            return GaussianMechanism(amount(spec.epsilon), spec.delta, spec.sensitivity, _rounding(study, spec))
        case PlanarLaplaceRelease() | GaussianProjectionRelease():
            raise Invalid("not built yet")


def _rounding(study: StudyCreate, spec: SoundRelease) -> float:
    rounding = rounding_of(study.features)
    if rounding > 1e-3 * spec.sensitivity:
        fault: dict[str, object] = {"field": "release.sensitivity", "message": "too small"}
        raise Invalid("sensitivity is too small against the features' ranges for double precision", [fault])
    return rounding
