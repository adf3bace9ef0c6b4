"""What every algorithm offers, and how one is made from a run's settings."""

from typing import Protocol, runtime_checkable

from blindopt import wire
from blindopt.arrays import Matrix, Rows, Vector
from blindopt.errors import Invalid
from blindopt.gp.acquisition import Choice, Estimate
from blindopt.gp.progress import NO_TICK, Tick
from blindopt.wire.answers import NONE
from modeler_service.algorithms.bandits.factory import few_arms_of, plays_of
from modeler_service.algorithms.bandits.few_arms import ARMS_MAX, MATRICES, FewArms
from modeler_service.algorithms.gp.gp_bucb import GpBucb
from modeler_service.algorithms.gp.gp_ucb import GpUcb
from modeler_service.algorithms.gp.surrogate import NO_NOISE
from modeler_service.algorithms.random_rows import RandomRows

NAMES = (
    "gp_ucb", "gp_bucb", "random", "ldp_ata", "ldp_tgp", "tgp_tight", "ldp_moma", "ata", "tgp", "moma", "laplace_adf",
    "bounded_igp", "igp_ucb", "thompson",
)  # fmt: skip


class Algorithm(Protocol):
    """Chooses rows to maximize an outcome; a pure function of its settings and what it observed."""

    def choose(self, step: int) -> Choice | None:
        """The row to ask at ``step`` (from 1), or None when there is nothing left to ask."""
        ...

    def observe(self, row: int, outcome: float, passport: wire.NoisePassport | None = None) -> None:
        """Take an outcome into account, in the direction of maximization; the passport tells what was done to it.

        Without one the answers are those of the study. Raises ProtocolViolated for a passport that is not.
        """
        ...

    def decline(self, row: int) -> None:
        """A row was asked and nobody measured it: nothing is learnt. Who calls this hides the row from then on."""
        ...

    def hide(self, rows: Rows) -> None:
        """Choose none of these rows from now on, and any other. Some row must be left."""
        ...


@runtime_checkable
class Learner(Algorithm, Protocol):
    """An algorithm that believes something of f, in the direction of maximization."""

    def moments(self, rows: Rows) -> tuple[Vector, Vector]:
        """Means and variances of f at ``rows``."""
        ...

    def best(self, rows: Rows) -> Estimate:
        """Which of ``rows`` (in rising order) has the largest mean; the first of equals."""
        ...


@runtime_checkable
class Batching(Algorithm, Protocol):
    """An algorithm that can choose again before the outcome of a row is known."""

    def suppose(self, row: int) -> None:
        """A row of the batch was chosen: its outcome is pending."""
        ...

    def retract(self) -> None:
        """Nothing is pending any more: as before the batch."""
        ...


def algorithm_of(
    spec: wire.AlgorithmSpec,
    candidates: Matrix,
    kernel: wire.Kernel | None,
    *,
    sign: int,
    seed: int,
    capacity: int,
    answers: wire.Answers = NONE,
    initial: int = 0,
    people: bool = False,
    noise: wire.NoiseLaw = NO_NOISE,
    fit: wire.Fit | None = None,
    tick: Tick = NO_TICK,
    again: bool = False,
) -> Algorithm:
    """The algorithm that a run asks for; ``sign`` is -1 for minimization.

    It will be shown ``capacity`` outcomes at most, the first ``initial`` of them of random rows. ``people``: rows are
    people, and answers about one add up; ``noise``: the law of the release's noise; ``fit``: how hyper-parameters are
    fitted, None for not at all; ``again``: rows may be asked again once each was asked (for an algorithm that would
    not). Raises Invalid if it needs a kernel and there is none, or other answers.
    """
    if isinstance(spec, wire.RandomRows):
        return RandomRows(len(candidates), seed, again=again)
    if kernel is None and fit is None:
        raise Invalid(f"{spec.name} needs a kernel: the study has none, so give one with the run")
    if isinstance(spec, wire.GpUcb | wire.GpBucb):
        law = noise if spec.noise_aware else NO_NOISE
        kind = GpUcb if isinstance(spec, wire.GpUcb) else GpBucb
        return kind(
            candidates,
            kernel,
            spec.delta_ucb,
            sign=sign,
            seed=seed,
            capacity=capacity,
            noise=law,
            scale=spec.scale,
            fit=fit,
            tick=tick,
            initial=initial,
            precision=spec.precision,
        )
    if kernel is None or fit is not None:
        raise Invalid(f"{spec.name} takes hyper-parameters as they are told: give a kernel, and leave out fit")
    return few_arms_of(
        spec,
        candidates,
        kernel,
        answers,
        sign=sign,
        seed=seed,
        horizon=capacity,
        initial=initial,
        people=people,
    )


def warnings_of(algorithm: Algorithm) -> list[str]:
    """What speaks against an algorithm where it is to run, in words."""
    return algorithm.warnings if isinstance(algorithm, FewArms) else []


def fitted_of(algorithm: Algorithm) -> wire.Fitted | None:
    """The last fit of hyper-parameters that a choice was made with, if there is one."""
    return algorithm.fitted if isinstance(algorithm, GpUcb) else None


def memory_of(spec: wire.AlgorithmSpec, n: int, r: int, capacity: int) -> int:
    """Bytes that a run needs at most, about: a column an outcome, or some n x n matrices, and k x k of an epoch."""
    if isinstance(spec, wire.FewArmsSpec):
        plays = min(plays_of(spec, capacity), capacity) if isinstance(spec, wire.LdpMoma | wire.Moma) else 0
        return 8 * n * (MATRICES * min(n, ARMS_MAX) + r + 8 + plays) + 32 * plays**2
    kept = 4 if isinstance(spec, wire.GpUcb | wire.GpBucb) and spec.precision == "single" else 8
    return n * (kept * (capacity + r + 2) + 8 * 6)
