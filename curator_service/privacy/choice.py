"""The release mechanism that `auto` takes: from public values alone, so that the choice discloses nothing."""

from decimal import Decimal
from math import sqrt

from blindopt.wire import (
    AutoRelease,
    GaussianProjectionRelease,
    GaussianRelease,
    GroupsRelease,
    IdentityRelease,
    PlanarLaplaceRelease,
    PoGpUcbRelease,
    StudyCreate,
    amount,
)
from curator_service.privacy.calibration import gaussian_sd
from curator_service.privacy.noise import PLANAR_FEATURES_MAX
from curator_service.privacy.planar_slope import slope_of_row

DELTA_FEATURES_MIN = 5
GAIN_MIN = 0.02
"""`auto` spends a delta on planar Laplace noise from so many features on, where that makes it so much smaller."""
Local = GaussianRelease | PlanarLaplaceRelease | GaussianProjectionRelease
Concrete = IdentityRelease | PoGpUcbRelease | GroupsRelease | Local


def concrete(study: StudyCreate) -> tuple[Concrete, str | None]:
    """The release of a study, and why ``auto`` chose it (None if the owner chose).

    ``auto`` takes the smallest standard deviation of the noise per coordinate. That is sqrt(d + 1) k Delta / a of
    planar Laplace with slope a, for k rows of a person, or that of the analytic Gaussian mechanism.
    """
    spec = study.release
    if not isinstance(spec, AutoRelease):
        return spec, None
    d, k = len(study.features), study.protected_rows
    if spec.delta is None:
        return _planar(spec, None), "Chosen: planar Laplace, the noise that needs no delta."
    gaussian = _gaussian(spec, spec.delta)
    if d > PLANAR_FEATURES_MAX:
        return gaussian, f"Chosen: Gaussian, as planar Laplace is for {PLANAR_FEATURES_MAX} features at most."
    planar = _planar(spec, None)
    planar_sd = sqrt(d + 1) * k * spec.sensitivity / float(amount(spec.epsilon))
    if d >= DELTA_FEATURES_MIN:
        with_delta = sqrt(d + 1) * spec.sensitivity / float(slope_of_row(amount(spec.epsilon), spec.delta, d, k))
        if with_delta <= (1 - GAIN_MIN) * planar_sd:
            planar, planar_sd = _planar(spec, spec.delta), with_delta
    gaussian_noise = gaussian_sd(amount(spec.epsilon), spec.delta, spec.sensitivity, d, k)
    if planar_sd <= gaussian_noise:
        need = "" if planar.delta else " No delta needed."
        sizes = f"{planar_sd:.4g} per coordinate; Gaussian {gaussian_noise:.4g}"
        return planar, f"Chosen: planar Laplace, the smaller noise ({sizes}).{need}"
    sizes = f"{gaussian_noise:.4g} per coordinate; planar Laplace {planar_sd:.4g}"
    return gaussian, f"Chosen: Gaussian, the smaller noise ({sizes})."


def epsilon_of(release: Concrete) -> Decimal | None:
    """The epsilon of a release; None for one that has none."""
    return None if isinstance(release, IdentityRelease) else amount(release.epsilon)


def failure(release: Concrete) -> float:
    """The delta that a release charges every record; 0 where it promises pure epsilon, or nothing."""
    if isinstance(release, IdentityRelease | PoGpUcbRelease | GroupsRelease):
        return 0.0
    return release.delta or 0.0


def as_run(study: StudyCreate, mechanism: str, delta: float | None = None) -> Concrete:
    """The release of a study that ran with ``mechanism``, even if ``auto`` would take another one today.

    ``delta``: that of its report, which says whether planar Laplace noise was drawn with one.
    """
    spec = study.release
    if not isinstance(spec, AutoRelease):
        return spec
    if mechanism == "planar_laplace":
        return _planar(spec, delta)
    if mechanism == "gaussian" and spec.delta is not None:
        return _gaussian(spec, spec.delta)
    raise ValueError(f"auto never took {mechanism} for this study")


def _planar(spec: AutoRelease, delta: float | None) -> PlanarLaplaceRelease:
    return PlanarLaplaceRelease(
        mechanism="planar_laplace",
        epsilon=spec.epsilon,
        delta=delta,
        sensitivity=spec.sensitivity,
        rotate=spec.rotate,
    )


def _gaussian(spec: AutoRelease, delta: float) -> GaussianRelease:
    return GaussianRelease(
        mechanism="gaussian", epsilon=spec.epsilon, delta=delta, sensitivity=spec.sensitivity, rotate=spec.rotate
    )
