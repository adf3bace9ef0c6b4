"""Bounds, moments and the law of the noise of one reward."""

from dataclasses import dataclass
from math import exp, isclose, sqrt
from typing import Literal, Self

from blindopt import wire
from blindopt.errors import ProtocolViolated
from blindopt.wire.answer import BOUNDED_EPSILON_MAX

Family = Literal["none", "laplace", "one_bit", "piecewise"]
_NEAR = 1e-6  # a curator's own numbers are those of the law up to its lattice


@dataclass(frozen=True, slots=True)
class RewardLaw:
    """One released reward: f(x) within ``value_bound`` B of ``centre``, noise within ``noise_bound`` R, then privacy.

    ``scale`` is L of Laplace noise, or the sup norm of a bounded answer (its distance from the centre at most);
    ``privacy_variance`` the variance of that randomization where it is largest. Units of y, and their squares. Without
    privacy noise B and R are the standard deviations of the kernel's signal and noise: a scale, not a bound.
    """

    family: Family
    centre: float
    value_bound: float
    noise_bound: float
    scale: float
    privacy_variance: float
    epsilon: float | None
    means: bool = False
    """Whether a reward may be a mean of several people's, which has less noise than this."""

    @classmethod
    def of(cls, answers: wire.Answers, kernel: wire.Kernel) -> Self:
        """Return the law of a study's answers. Raises ProtocolViolated for an epsilon that no curator accepts."""
        answers = wire.concrete_answers(answers)
        if isinstance(answers, wire.NoAnswerNoise):
            return cls("none", kernel.mean, sqrt(kernel.signal_variance), sqrt(kernel.noise_variance), 0.0, 0.0, None)
        epsilon, bound = float(wire.amount(answers.epsilon)), answers.bound
        if isinstance(answers, wire.OneBitAnswers | wire.PiecewiseAnswers) and epsilon > BOUNDED_EPSILON_MAX:
            raise ProtocolViolated(f"{answers.mechanism} answers with an epsilon above {BOUNDED_EPSILON_MAX}")
        family, means = answers.mechanism, answers.plays == "mean"
        scale, variance = _noise(family, bound, epsilon)
        return cls(family, answers.centre, answers.value_bound, answers.noise_bound, scale, variance, epsilon, means)

    @property
    def bound(self) -> float:
        """M = B + R, the distance from the centre at which rewards are clipped."""
        return self.value_bound + self.noise_bound

    @property
    def is_bounded(self) -> bool:
        """Whether every released reward lies within ``scale`` of the centre."""
        return self.family in ("one_bit", "piecewise")

    @property
    def noise_variance(self) -> float:
        """The variance of a reward about f(x) in practical settings: privacy, and noise on [-R, R].

        With Laplace noise R is taken as uniform, R^2 / 3; with bounded answers as R^2 (spec, sections 4 and 6).
        """
        if self.family == "none":
            return self.noise_bound**2
        return self.privacy_variance + self.noise_bound**2 / (1 if self.is_bounded else 3)

    @property
    def raw_moment(self) -> float:
        """v: a bound of E y^2, B^2 + R^2 + 8 (B + R)^2 / epsilon^2 with Laplace noise."""
        return self.value_bound**2 + self.noise_moment

    @property
    def noise_moment(self) -> float:
        """c: a bound of E eta^2, R^2 + 8 (B + R)^2 / epsilon^2 with Laplace noise."""
        return self.noise_bound**2 + self.privacy_variance

    def check(self, passport: wire.NoisePassport) -> None:
        """Raise ProtocolViolated for an answer whose noise is not that of the study, or less for a mean."""
        noise = passport.privacy
        if noise.family != self.family:
            raise ProtocolViolated(f"an answer has {noise.family} noise, the study says {self.family}")
        if self.family == "none":
            return
        if noise.scale is not None and self.means and 0 < noise.scale < self.scale:
            return
        if noise.scale is None or not isclose(noise.scale, self.scale, rel_tol=_NEAR):
            raise ProtocolViolated(f"the {noise.family} noise of an answer has another scale than the study says")


def _noise(family: Family, bound: float, epsilon: float) -> tuple[float, float]:
    """Scale and worst-case variance at |y| <= ``bound``; Wang et al. (2019), section III-B."""
    if family == "laplace":
        scale = 2 * bound / epsilon
        return scale, 2 * scale**2
    if family == "one_bit":
        size = bound * (exp(epsilon) + 1) / (exp(epsilon) - 1)
        return size, size**2
    root = exp(epsilon / 2)
    return bound * (root + 1) / (root - 1), 4 * root * bound**2 / (3 * (root - 1) ** 2)
