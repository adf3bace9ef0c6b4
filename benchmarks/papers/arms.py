"""Bandits with few arms: the modeler's algorithms on answers that the curator's mechanisms randomize."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pydantic import TypeAdapter

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.optimizer.algorithms.bandits.few_arms import BanditProblem, FewArms
from blindopt.optimizer.algorithms.bandits.reward_law import RewardLaw
from blindopt.optimizer.algorithms.factory import build_on
from blindopt.wire.answer import NONE
from curator_service.privacy.answers import mechanism_of

MARKS = 40
_ANSWERS: TypeAdapter[wire.Answers] = TypeAdapter(wire.Answers)


@dataclass(frozen=True)
class Bandit:
    """Means f (n,) of n arms with covariances ``gram`` (n, n) of unit size; rewards of an arm for each round.

    ``value_bound`` B is max |f - centre|, ``noise_bound`` R of the noise, ``noise_variance`` its variance. ``reward``
    is the unprotected reward of a round (from 0) and an arm: fixed for each, so that all columns share them.
    """

    f: Vector
    gram: Matrix
    reward: Callable[[int, int], float]
    centre: float
    noise_bound: float
    noise_variance: float

    @property
    def value_bound(self) -> float:
        """B, the largest distance of f from the centre."""
        return float(np.abs(self.f - self.centre).max())

    def private(self, mechanism: str, epsilon: str) -> wire.Answers:
        """Answer settings of a study that protects the rewards."""
        return _ANSWERS.validate_python(
            {
                "mechanism": mechanism,
                "epsilon": epsilon,
                "value_bound": self.value_bound,
                "noise_bound": self.noise_bound,
                "centre": self.centre,
            }
        )

    def open(self) -> RewardLaw:
        """Law of the unprotected rewards."""
        kernel = wire.Kernel(
            lengthscale=1.0,
            signal_variance=self.value_bound**2,
            noise_variance=self.noise_variance,
            mean=self.centre,
        )
        return RewardLaw.of(NONE, kernel)


AnswerSource = Callable[[int, int], float]


def private_answers(bandit: Bandit, answers: wire.Answers, rounds: int) -> AnswerSource:
    """Make the curator's answers by round and arm: clipped, then randomized by the curator's own mechanism.

    Laplace noise does not depend on the reward, so the noise of all rounds is drawn beforehand, at reward 0, and
    columns can share it; the curator rounds reward and noise to a lattice together, a difference of one part in 2^40.
    """
    mechanism = mechanism_of(answers)
    assert mechanism is not None
    if mechanism.noise.family == "laplace":
        noise, (low, high) = mechanism.draw(np.zeros(rounds)), mechanism.clip
        return lambda t, arm: min(max(bandit.reward(t, arm), low), high) + float(noise[t])
    return lambda t, arm: float(mechanism.release(mechanism.clipped(np.array([bandit.reward(t, arm)])))[0])


def marks_of(rounds: int) -> list[int]:
    """Rounds at which regrets are stored: evenly spaced on a log scale, including the last."""
    return sorted({round(t) for t in np.geomspace(min(10, rounds), rounds, MARKS)})


def regrets(bandit: Bandit, algorithm: FewArms, answer: AnswerSource, marks: Sequence[int]) -> list[float]:
    """Cumulative regret after each of ``marks`` rounds, divided by the expected regret of uniform play."""
    gaps = bandit.f.max() - bandit.f
    arms = np.empty(marks[-1], dtype=np.intp)
    for t in range(marks[-1]):
        choice = algorithm.choose(t + 1)
        assert choice is not None
        arm = choice.row
        algorithm.observe(arm, answer(t, arm))
        arms[t] = arm
    total = np.cumsum(gaps[arms])
    return [float(total[t - 1] / (t * gaps.mean())) for t in marks]


def player(spec: wire.FewArms, bandit: Bandit, law: RewardLaw, rounds: int, seed: int) -> FewArms:
    """Build the modeler's algorithm for this bandit, without its warnings."""
    return build_on(spec, BanditProblem(bandit.gram, law, sign=1, seed=seed, horizon=rounds, initial=0))


def law_of(bandit: Bandit, answers: wire.Answers) -> RewardLaw:
    """Law of private answers, as the modeler knows it; the kernel adds nothing to it."""
    return RewardLaw.of(answers, wire.Kernel(lengthscale=1.0, signal_variance=1.0, noise_variance=1.0))


def with_nugget(bandit: Bandit, nugget: float) -> Bandit:
    """Add ``nugget`` to the diagonal, for covariances that are estimated from data."""
    return replace(bandit, gram=(bandit.gram + nugget * np.eye(len(bandit.gram))) / (1 + nugget))
