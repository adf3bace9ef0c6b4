"""The protocols that algorithms offer, and how an algorithm is built from a run's settings."""

from dataclasses import replace
from typing import Protocol, runtime_checkable

from blindopt import wire
from blindopt.arrays import Matrix, Rows, Vector
from blindopt.errors import Invalid
from blindopt.gp.acquisition import Choice, Estimate
from blindopt.gp.noise_means import CELLS_MAX, COLUMNS_MAX, DRAWS
from blindopt.gp.partitions.engines import Engine as PartsEngine
from blindopt.gp.progress import NO_TICK, Tick
from blindopt.optimizer.algorithms.bandits.factory import build_few_arms, plays_of
from blindopt.optimizer.algorithms.bandits.few_arms import ARMS_MAX, MATRICES, FewArms
from blindopt.optimizer.algorithms.gp.ei import Ei
from blindopt.optimizer.algorithms.gp.ei_deblurred import SHORTLIST, EiDeblurred
from blindopt.optimizer.algorithms.gp.gp_bucb import GpBucb
from blindopt.optimizer.algorithms.gp.gp_rule import GpRule
from blindopt.optimizer.algorithms.gp.gp_ucb import GpUcb
from blindopt.optimizer.algorithms.gp.surrogate import NO_NOISE, GpSettings
from blindopt.optimizer.algorithms.random_rows import RandomRows
from blindopt.wire.algorithms.plans import Engine
from blindopt.wire.answers import NONE

NAMES = (
    "gp_ucb", "gp_bucb", "ei", "ei_deblurred", "random", "ldp_ata", "ldp_tgp", "tgp_tight", "ldp_moma", "ata", "tgp",
    "moma", "laplace_adf", "bounded_igp", "igp_ucb", "thompson",
)  # fmt: skip


class Algorithm(Protocol):
    """Chooses rows to maximize an outcome; a pure function of its settings and the outcomes it observed."""

    def choose(self, step: int) -> Choice | None:
        """Return the row of the largest acquisition at ``step`` (from 1), or None when every row was chosen."""
        ...

    def observe(self, row: int, outcome: float, passport: wire.NoisePassport | None = None) -> None:
        """Take an outcome into account, in the direction of maximization, with the noise that its passport describes.

        Without a passport the noise is that of the study's answers. Raises ProtocolViolated for a passport of other
        answers.
        """
        ...

    def decline(self, row: int) -> None:
        """Note that ``row`` was declined: it has no outcome. The caller hides the row from then on."""
        ...

    def hide(self, rows: Rows) -> None:
        """Exclude these rows, and no others, from the next choices. At least one row must remain."""
        ...


@runtime_checkable
class Learner(Algorithm, Protocol):
    """An algorithm that estimates f, in the direction of maximization."""

    def moments(self, rows: Rows) -> tuple[Vector, Vector]:
        """Means and variances of f at ``rows``."""
        ...

    def best(self, rows: Rows) -> Estimate:
        """Return the row of the largest mean among ``rows`` (in rising order); the first of equals."""
        ...


@runtime_checkable
class BatchAlgorithm(Algorithm, Protocol):
    """An algorithm that can choose again while outcomes are pending."""

    def suppose(self, row: int) -> None:
        """Add ``row`` to the batch, with a pending outcome."""
        ...

    def retract(self) -> None:
        """Drop all pending outcomes: the state is that before the batch."""
        ...


@runtime_checkable
class Improver(Algorithm, Protocol):
    """An algorithm that computes an expected improvement."""

    def expected_improvement(self, choice: Choice, step: int) -> float:
        """Expected improvement of the ``choice`` of a ``step``: the largest of all rows, in units of the outcome.

        Optimism is included. Infinite at a step that compares something else.
        """
        ...


def build_algorithm(
    spec: wire.AlgorithmSpec,
    candidates: Matrix,
    kernel: wire.Kernel | None,
    *,
    sign: int,
    seed: int,
    capacity: int,
    horizon: int | None = None,
    answers: wire.Answers = NONE,
    initial: int = 0,
    unit_is_row: bool = False,
    noise: wire.NoiseLaw = NO_NOISE,
    fit: wire.FitChoice = None,
    tick: Tick = NO_TICK,
    repeats: bool = False,
    exact: bool = False,
    engine: Engine = 2,
    parts: PartsEngine | None = None,
) -> Algorithm:
    """Build the algorithm of a run; ``sign`` is -1 for minimization.

    It is shown at most ``capacity`` outcomes, the first ``initial`` of them of random rows, and chooses ``horizon``
    rows (None: as many as that). ``unit_is_row``: answers about one row add up in the privacy budget; ``noise``: the
    law of the release's noise; ``fit``: how hyper-parameters are fitted, None for not at all, auto for only if there is
    no kernel that fits; ``repeats``: rows may be chosen again once each was chosen (for an algorithm that would stop);
    ``exact``: answers are exact values of records; ``engine``: as in ``Plan``; ``parts``: as in
    ``Posterior``. Raises Invalid if it needs a kernel and there is none, or other answers.
    """
    if isinstance(spec, wire.RandomRows):
        return RandomRows(len(candidates), seed, repeats=repeats)
    if isinstance(spec, wire.GpRule):
        if kernel is None and fit is None:
            raise Invalid(f'{spec.name} needs a kernel, and the study has none: leave out fit, or send fit: "auto"')
        law = NO_NOISE if isinstance(spec, wire.GpAlgorithm | wire.Ei) and not spec.noise_aware else noise
        # The papers' rules take the residual of a record for noise, with the kernel that they are given.
        is_exact = exact and (fit is not None or not isinstance(spec, wire.GpAlgorithm))
        own = wire.Fit() if fit == "auto" else fit
        settings = GpSettings(kernel, sign, seed, capacity, initial, law, own, spec.precision, tick, is_exact)
        settings = replace(settings, fit_when="misfit" if fit == "auto" else "always", engine=engine, parts=parts)
        match spec:
            case wire.GpUcb():
                return GpUcb(candidates, settings, spec.delta_ucb, scale=spec.scale, nugget=spec.nugget)
            case wire.GpBucb():
                return GpBucb(candidates, settings, spec.delta_ucb, scale=spec.scale)
            case wire.Ei():
                return Ei(candidates, settings, spec.optimism)
            case wire.EiDeblurred():
                return EiDeblurred(candidates, settings, horizon or capacity)
    if isinstance(fit, wire.Fit):
        raise Invalid(f'{spec.name} takes hyper-parameters as they are given: leave out fit, or send fit: "auto"')
    if kernel is None and isinstance(answers, wire.NoAnswerNoise):
        raise Invalid(f"{spec.name} needs a kernel, and the study has none: give one, or send algorithm: auto")
    return build_few_arms(
        spec,
        candidates,
        kernel,
        answers,
        sign=sign,
        seed=seed,
        horizon=capacity,
        initial=initial,
        unit_is_row=unit_is_row,
    )


def warnings_of(algorithm: Algorithm) -> list[str]:
    """Return the warnings of an algorithm about the study and settings that it runs with."""
    return algorithm.warnings if isinstance(algorithm, FewArms) else []


def fitted_of(algorithm: Algorithm) -> wire.Fitted | None:
    """Return the last fit of hyper-parameters that a choice was made with, if there is one."""
    return algorithm.fitted if isinstance(algorithm, GpRule) else None


def memory_of(spec: wire.AlgorithmSpec, n: int, r: int, capacity: int) -> int:
    """Estimate the most bytes of a run: a column an outcome, or some n x n matrices, and k x k of an epoch."""
    if isinstance(spec, wire.FewArmsSpec):
        plays = min(plays_of(spec, capacity), capacity) if isinstance(spec, wire.LdpMoma | wire.Moma) else 0
        return 8 * n * (MATRICES * min(n, ARMS_MAX) + r + 8 + plays) + 32 * plays**2
    if isinstance(spec, wire.RandomRows):
        return 8 * n * (r + 8)
    bytes_per_number = 4 if isinstance(spec, wire.GpRule) and spec.precision == "single" else 8
    places = 0
    if isinstance(spec, wire.EiDeblurred):
        places = CELLS_MAX * (2 * capacity + 16) if r <= COLUMNS_MAX else SHORTLIST * DRAWS * (r + 8)
    return n * (bytes_per_number * (capacity + r + 2) + 8 * 6) + 8 * places
