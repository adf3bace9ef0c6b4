"""Made-up rows and values for a sandbox: from public values alone, whoever is in the real dataset.

Everything is drawn from the operating system's entropy. Nothing here is a secret, and no seed is kept.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector
from blindopt.wire import Feature, Kernel, NoAnswerNoise, StudyCreate
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy import entropy
from curator_service.studies import public_kernels

WAVES = 300
BLOCK_ROWS = 16_384
_DEGREES = {"matern_12": 1, "matern_32": 3, "matern_52": 5}


@dataclass(frozen=True, slots=True)
class DrawnFunction:
    """A function with the covariance of a kernel: f(x) = sqrt(2 v / m) sum_j cos(w_j . x + b_j), m waves.

    w_j is drawn from the kernel's spectral density: normal with standard deviation 1 / lengthscale, and for a Matern
    kernel of order k/2 divided by sqrt(chi^2_k / k), which makes it a Student's t. Source: Rahimi & Recht (2007),
    Algorithm 1.
    """

    frequencies: Matrix
    phases: Vector
    amplitude: float

    @classmethod
    def draw(cls, kernel: Kernel, d: int, waves: int = WAVES) -> "DrawnFunction":
        """A fresh function of ``d`` features in scaled units."""
        frequencies = entropy.gaussian_matrix(d, waves) / kernel.lengthscale
        if (degrees := _DEGREES.get(kernel.kind)) is not None:
            frequencies = frequencies / np.sqrt(np.mean(entropy.gaussian_matrix(degrees, waves) ** 2, axis=0))
        phases: Vector = 2 * np.pi * entropy.uniform_matrix(waves, 1)[:, 0]
        return cls(frequencies, phases, sqrt(2 * kernel.signal_variance / waves))

    def __call__(self, x: Matrix) -> Vector:
        """Values at scaled rows ``x`` (n, d): (n,)."""
        values: Vector = self.amplitude * np.cos(x @ self.frequencies + self.phases).sum(axis=1)
        return values


def draw_blocks(study: StudyCreate, n: int, block_rows: int = BLOCK_ROWS) -> Iterator[Matrix]:
    """``n`` made-up records of a study, a block at a time: raw features, uniform in the declared bounds, and then y.

    y is a drawn function about the declared middle, clipped to the declared bounds of y: (rows, d + 1). Its kernel is
    the declared one, or else follows from the bounds.
    """
    kernel, features = public_kernels.middle(study), study.features
    function = DrawnFunction.draw(kernel, len(features))
    middle, low, high = _range_of_y(study, kernel)
    for start in range(0, n, block_rows):
        raw = _uniform(features, min(block_rows, n - start))
        scaled = ScaledRows(raw, list(range(len(features))), features, np.arange(len(raw)))
        for _, x in scaled.blocks(block_rows):
            y = np.clip(middle + function(x), low, high)
            yield np.column_stack([raw, y])


def draw_persons(n: int, k: int) -> NDArray[np.uint8]:
    """Made-up digests of the persons behind ``n`` rows (n, 16), k rows of each in turn; the last may have fewer."""
    persons = -(-n // k)
    digests = np.frombuffer(secrets.token_bytes(16 * persons), dtype=np.uint8).reshape(persons, 16)
    return np.repeat(digests, k, axis=0)[:n]


def _uniform(features: list[Feature], n: int) -> Matrix:
    lower, upper = np.array([(feature.lower, feature.upper) for feature in features]).T
    rows: Matrix = lower + (upper - lower) * entropy.uniform_matrix(n, len(features))
    return rows


def _range_of_y(study: StudyCreate, kernel: Kernel) -> tuple[float, float, float]:
    """The middle of y, and its declared bounds: of answers, or else of measurements, or else none."""
    lower, upper = getattr(study.measurement, "lower", None), getattr(study.measurement, "upper", None)
    low, high = -np.inf if lower is None else lower, np.inf if upper is None else upper
    if not isinstance(study.answers, NoAnswerNoise):
        centre, bound = study.answers.centre, study.answers.value_bound
        low, high = max(low, centre - bound), min(high, centre + bound)
        middle = centre
    else:
        middle = (lower + upper) / 2 if lower is not None and upper is not None else 0.0
    return (kernel.mean if study.kernel is not None else middle), low, high
