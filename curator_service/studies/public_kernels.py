"""Kernels from public values alone: the declared one, or else one that follows from the declared bounds."""

from blindopt.wire import ColumnMeasurement, Kernel, NoAnswerNoise, StudyCreate
from curator_service.privacy.search_noise import diagonal

LENGTHSCALE = 0.3
"""The middle length-scale as a share of the box's diagonal, where the study declares no kernel.

The mean squared distance of two uniform rows is a sixth of the squared diagonal, in any number of features. A function
with this length-scale has a correlation of exp(-1/12 / 0.3^2) = 0.40 over that distance; with a half of it 0.02 (rough:
few rows tell about others), with twice as much 0.79 (smooth: a few rows tell about all).
"""
FACTORS = (0.5, 1.0, 2.0)
NOISE_SHARE = 0.01
"""The variance of a measurement's noise as a share of the variance of f, where nothing declares either."""


def middle(study: StudyCreate) -> Kernel:
    """The kernel that a study declares, or else one from its bounds."""
    return study.kernel or _from_box(study)


def band(study: StudyCreate) -> list[Kernel]:
    """Three kernels by increasing length-scale, about the middle one."""
    kernel = middle(study)
    return [kernel.model_copy(update={"lengthscale": factor * kernel.lengthscale}) for factor in FACTORS]


def _from_box(study: StudyCreate) -> Kernel:
    """A squared exponential kernel; y spreads over half of what answers, or measurements, are declared to lie in.

    Where nothing says how far y spreads, its unit is unknown and so is what a noise variance means: the noise is then
    a hundredth of the signal.
    """
    sd = _spread(study)
    declared = 0.0 if sd is None else study.measurement.noise_variance
    variance = 1.0 if sd is None else sd**2
    return Kernel(
        lengthscale=_in_range(LENGTHSCALE * diagonal(study.features)),
        signal_variance=_in_range(variance),
        noise_variance=_in_range(max(declared, NOISE_SHARE * variance)),
    )


def _in_range(value: float) -> float:
    return min(max(value, 1e-50), 1e50)


def _spread(study: StudyCreate) -> float | None:
    """Half of the declared largest distance of a mean outcome from the middle, in units of y; None without one."""
    if not isinstance(study.answers, NoAnswerNoise):
        return study.answers.value_bound / 2
    measurement = study.measurement
    if isinstance(measurement, ColumnMeasurement) or measurement.lower is None or measurement.upper is None:
        return None
    return (measurement.upper - measurement.lower) / 4
