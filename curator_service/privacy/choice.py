"""Which release mechanism `auto` takes: from public values alone, so that the choice tells nothing."""

from math import sqrt
from typing import Any

from curator_service.privacy.calibration import gaussian_sd
from curator_service.privacy.noise import PLANAR_FEATURES_MAX
from shared.wire import (
    AutoRelease,
    GaussianProjectionRelease,
    GaussianRelease,
    IdentityRelease,
    PlanarLaplaceRelease,
    PoGpUcbRelease,
    StudyCreate,
    amount,
)

Concrete = IdentityRelease | PoGpUcbRelease | GaussianRelease | PlanarLaplaceRelease | GaussianProjectionRelease


def concrete(study: StudyCreate) -> tuple[Concrete, str | None]:
    """The release of a study with ``auto`` resolved, and why it is that one (None where the owner chose).

    ``auto`` takes the smaller standard deviation per coordinate: sqrt(d + 1) Delta / epsilon of planar
    Laplace, or that of the analytic Gaussian mechanism.
    """
    spec, d = study.release, len(study.features)
    if not isinstance(spec, AutoRelease):
        return spec, None
    shared: dict[str, Any] = {"epsilon": spec.epsilon, "sensitivity": spec.sensitivity, "rotate": spec.rotate}
    planar = PlanarLaplaceRelease(mechanism="planar_laplace", **shared)
    planar_sd = sqrt(d + 1) * spec.sensitivity / float(amount(spec.epsilon))
    if spec.delta is None:
        return planar, "planar_laplace: without a delta, only pure epsilon-differential privacy will do"
    gaussian = GaussianRelease(mechanism="gaussian", delta=spec.delta, **shared)
    if d > PLANAR_FEATURES_MAX:
        return gaussian, f"gaussian: planar_laplace is for {PLANAR_FEATURES_MAX} features at most"
    gaussian_noise = gaussian_sd(amount(spec.epsilon), spec.delta, spec.sensitivity, d)
    told = f"noise {planar_sd:.4g} per coordinate with planar_laplace, {gaussian_noise:.4g} with gaussian"
    if planar_sd <= gaussian_noise:
        return planar, f"planar_laplace: {told}; it needs no delta, too"
    return gaussian, f"gaussian: {told}"
