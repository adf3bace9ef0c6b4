"""The release mechanisms by name."""

from curator_service.release.gaussian import GaussianMechanism
from curator_service.release.identity import Identity
from curator_service.release.mechanism import Mechanism
from curator_service.release.po_gp_ucb import PoGpUcb
from curator_service.scaling import rounding_of
from shared.errors import Invalid
from shared.wire import GaussianRelease, IdentityRelease, PoGpUcbRelease, StudyCreate, amount

MECHANISMS: tuple[type[Mechanism], ...] = (GaussianMechanism, PoGpUcb, Identity)


def mechanism_of(study: StudyCreate) -> Mechanism:
    """The mechanism that a study asks for. Invalid where doubles are too coarse for its Delta."""
    spec = study.release
    match spec:
        case IdentityRelease():
            return Identity()
        case PoGpUcbRelease():
            return PoGpUcb(amount(spec.epsilon), spec.delta, spec.sensitivity, spec.r)
        case GaussianRelease():
            rounding = rounding_of(study.features)
            if rounding > 1e-3 * spec.sensitivity:
                fault: dict[str, object] = {"field": "release.sensitivity", "message": "too small"}
                raise Invalid("sensitivity is too small against the features' ranges for double precision", [fault])
            return GaussianMechanism(amount(spec.epsilon), spec.delta, spec.sensitivity, rounding)
