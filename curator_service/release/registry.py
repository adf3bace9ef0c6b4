"""The release mechanisms by name."""

from curator_service.release.gaussian import GaussianMechanism
from curator_service.release.identity import Identity
from curator_service.release.mechanism import Mechanism
from curator_service.release.po_gp_ucb import PoGpUcb
from shared.wire import GaussianRelease, IdentityRelease, PoGpUcbRelease, ReleaseSpec, amount

MECHANISMS: tuple[type[Mechanism], ...] = (GaussianMechanism, PoGpUcb, Identity)


def mechanism_of(spec: ReleaseSpec) -> Mechanism:
    """The mechanism that a study asks for."""
    match spec:
        case IdentityRelease():
            return Identity()
        case PoGpUcbRelease():
            return PoGpUcb(amount(spec.epsilon), spec.delta, spec.sensitivity, spec.r)
        case GaussianRelease():
            return GaussianMechanism(amount(spec.epsilon), spec.delta, spec.sensitivity)
