"""The algorithms, and how one is built from a run's settings."""

from dataclasses import replace
from math import sqrt

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.errors import Invalid
from blindopt.gp.fitting import suggest_hyper, typical_distance
from blindopt.gp.noise_means import CELLS_MAX, COLUMNS_MAX, DRAWS
from blindopt.optimizer.algorithms.bandits.few_arms import (
    ARMS_MAX,
    MATRICES,
    BanditProblem,
    FewArms,
    gram_of,
    require_family,
    warnings_for,
)
from blindopt.optimizer.algorithms.bandits.igp_ucb import BoundedIgp, IgpUcb
from blindopt.optimizer.algorithms.bandits.laplace_adf import LaplaceAdf
from blindopt.optimizer.algorithms.bandits.ldp_ata import AtaSettings, LdpAta
from blindopt.optimizer.algorithms.bandits.ldp_moma import LdpMoma, MomaSettings, plays_of_theorem
from blindopt.optimizer.algorithms.bandits.ldp_tgp import HeavyTruncation, LaplaceTruncation, LdpTgp
from blindopt.optimizer.algorithms.bandits.reward_law import RewardLaw
from blindopt.optimizer.algorithms.bandits.thompson import Thompson
from blindopt.optimizer.algorithms.gp.ei_deblurred import SHORTLIST, EiDeblurred
from blindopt.optimizer.algorithms.gp.reach import Reach
from blindopt.optimizer.algorithms.gp.rules import Ei, GpBucb, GpRule, GpUcb
from blindopt.optimizer.algorithms.random_rows import RandomRows
from blindopt.optimizer.algorithms.settings import NO_NOISE, AlgorithmSettings

NAMES = (
    "gp_ucb", "gp_bucb", "ei", "ei_deblurred", "reach", "random", "ldp_ata", "ldp_tgp", "tgp_tight", "ldp_moma", "ata",
    "tgp", "moma", "laplace_adf", "bounded_igp", "igp_ucb", "thompson",
)  # fmt: skip


Algorithm = GpRule | FewArms | RandomRows
"""Chooses rows to maximize an outcome; a pure function of its settings and the outcomes that it observed."""
Learner = GpRule | FewArms
"""Estimates f, in the direction of maximization."""
BatchAlgorithm = GpRule | IgpUcb | LaplaceAdf | LdpMoma | Thompson | RandomRows
"""Can choose again while outcomes are pending."""


def build_algorithm(spec: wire.AlgorithmSpec, candidates: Matrix, settings: AlgorithmSettings) -> Algorithm:
    """Build the algorithm of a run. Raises Invalid if it needs a kernel and there is none, or other answers."""
    if isinstance(spec, wire.RandomRows):
        return RandomRows(len(candidates), settings.seed, repeats=settings.repeats)
    fit = settings.fit
    if not isinstance(spec, wire.GpRule):
        if isinstance(fit, wire.Fit):
            raise Invalid(f'{spec.name} takes hyper-parameters as they are given: leave out fit, or send fit: "auto"')
        if settings.kernel is None and isinstance(settings.answers, wire.NoAnswerNoise):
            raise Invalid(f"{spec.name} needs a kernel, and the study has none: give one, or send algorithm: auto")
        return build_few_arms(spec, candidates, settings)
    if settings.kernel is None and fit is None:
        raise Invalid(f'{spec.name} needs a kernel, and the study has none: leave out fit, or send fit: "auto"')
    law = (
        NO_NOISE
        if isinstance(spec, wire.GpAlgorithm | wire.Ei | wire.Reach) and not spec.noise_aware
        else settings.noise
    )
    # The papers' rules take the residual of a record for noise, with the kernel that they are given.
    is_exact = settings.exact and (fit is not None or not isinstance(spec, wire.GpAlgorithm))
    settings = replace(settings, noise=law, exact=is_exact, precision=spec.precision)
    match spec:
        case wire.GpUcb():
            return GpUcb(candidates, settings, spec.delta_ucb, scale=spec.scale, nugget=spec.nugget)
        case wire.GpBucb():
            return GpBucb(candidates, settings, spec.delta_ucb, scale=spec.scale)
        case wire.Ei():
            return Ei(candidates, settings, spec.optimism)
        case wire.Reach():
            if isinstance(settings.goal, wire.FindBest):
                raise Invalid("reach looks for many good candidates: say which are good by a goal, or choose ei")
            return Reach(candidates, settings, spec.optimism)
        case wire.EiDeblurred():
            return EiDeblurred(candidates, settings, settings.horizon or settings.capacity, spec.explored)


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
        places = CELLS_MAX * (2 * capacity + 16) if r <= COLUMNS_MAX else max(SHORTLIST.values()) * DRAWS * (r + 8)
    return n * (bytes_per_number * (capacity + r + 2) + 8 * 6) + 8 * places


# --- few arms -------------------------------------------------------------------------------------

RKHS_PER_SUP = 1.5
ATA_SCALE, TGP_SCALE, MOMA_SCALE, IGP_SCALE = 0.02, 0.04, 0.01, 0.3
MOMA_PLAYS = 5


def build_few_arms(spec: wire.FewArms, candidates: Matrix, settings: AlgorithmSettings) -> FewArms:
    """Build an algorithm over few arms, with its warnings. Raises Invalid if it is not for the study's answers.

    Its horizon is ``settings.capacity``. Without a kernel, which only answers without privacy noise need for their law,
    a squared-exponential one is taken, with the length-scale of the first guess of a fit.
    """
    if (kernel := settings.kernel) is None:
        guess = suggest_hyper(np.zeros(0), typical_distance(candidates, NO_NOISE))
        kernel = wire.Kernel(lengthscale=guess.lengthscale, signal_variance=1.0, noise_variance=1.0)
    law = RewardLaw.of(settings.answers, kernel)
    _check(spec, law)  # before the covariances: they may be many
    gram = gram_of(candidates, kernel, spec.nugget)
    problem = BanditProblem(gram, law, settings.sign, settings.seed, settings.capacity, settings.initial)
    return build_on(spec, problem, unit_is_row=settings.unit_is_row)


def build_on(spec: wire.FewArms, problem: BanditProblem, *, unit_is_row: bool = False) -> FewArms:
    """Build an algorithm on a problem whose covariances are known, with its warnings; raises Invalid likewise."""
    _check(spec, problem.law)
    if isinstance(spec, wire.HeavyTails):
        size = spec.noise_moment ** (1 / (1 + spec.alpha))
        problem = replace(problem, law=replace(problem.law, value_bound=spec.value_bound, noise_bound=size))
    algorithm = _build(spec, problem)
    plays = algorithm.plays if isinstance(algorithm, LdpMoma) else None
    algorithm.warnings = warnings_for(spec, problem, plays=plays, unit_is_row=unit_is_row)
    return algorithm


def _check(spec: wire.FewArms, law: RewardLaw) -> None:
    match spec:
        case wire.LdpAta() | wire.LdpTgp() | wire.TgpTight() | wire.LdpMoma() | wire.LaplaceAdf():
            require_family(law, spec.name, "laplace")
        case wire.BoundedIgp():
            require_family(law, spec.name, "one_bit", "piecewise")
        case wire.Ata() | wire.Tgp() | wire.Moma():
            require_family(law, spec.name, "none")
        case _:
            return


def _build(spec: wire.FewArms, problem: BanditProblem) -> FewArms:
    law = problem.law
    match spec:
        case wire.LdpAta() | wire.Ata():
            return _ata(spec, problem)
        case wire.LdpTgp() | wire.Tgp() | wire.TgpTight():
            return _tgp(spec, problem)
        case wire.LdpMoma() | wire.Moma():
            return _moma(spec, problem)
        case wire.LaplaceAdf():
            return LaplaceAdf(problem, spec.beta)
        case wire.BoundedIgp():
            guaranteed = spec.mode == "guaranteed"
            rkhs = _rkhs(spec.rkhs_bound, law)
            return BoundedIgp(problem, guaranteed=guaranteed, rkhs_bound=rkhs, delta=spec.delta, scale=spec.scale)
        case wire.IgpUcb():
            return IgpUcb(
                problem,
                lam=_lam(spec, law.noise_variance / law.value_bound**2),
                scale=_scale(spec, IGP_SCALE),
                sub_gaussian=law.scale if spec.theory and law.is_bounded else sqrt(law.noise_variance),
                rkhs_bound=_rkhs(spec.rkhs_bound, law),
                delta=spec.delta,
            )
        case wire.Thompson():
            return Thompson(problem, spec.scale)


def _ata(spec: wire.LdpAta | wire.Ata, problem: BanditProblem) -> LdpAta:
    law = problem.law
    settings = AtaSettings(
        lam=_lam(spec, law.noise_variance / law.value_bound**2),
        scale=_scale(spec, ATA_SCALE),
        rkhs_bound=_rkhs(spec.rkhs_bound, law),
        moment=raw_moment(spec) if isinstance(spec, wire.Ata) else law.raw_moment,
        alpha=spec.alpha if isinstance(spec, wire.Ata) else 1.0,
        delta=spec.delta,
        accuracy=spec.accuracy,
    )
    return LdpAta(problem, settings)


def _tgp(spec: wire.LdpTgp | wire.TgpTight | wire.Tgp, problem: BanditProblem) -> LdpTgp:
    law, rkhs = problem.law, _rkhs(spec.rkhs_bound, problem.law)
    if isinstance(spec, wire.TgpTight):
        lam = spec.lam if spec.lam is not None else law.noise_variance
        return LdpTgp(problem, LaplaceTruncation(law, rkhs, spec.delta, tight=True), lam=lam, scale=spec.scale)
    rule: LaplaceTruncation | HeavyTruncation = LaplaceTruncation(law, rkhs, spec.delta)
    if isinstance(spec, wire.Tgp):
        rule = HeavyTruncation(raw_moment(spec), rkhs, spec.delta, spec.alpha)
    return LdpTgp(problem, rule, lam=_lam(spec, law.noise_variance), scale=_scale(spec, TGP_SCALE))


def _moma(spec: wire.LdpMoma | wire.Moma, problem: BanditProblem) -> LdpMoma:
    law = problem.law
    settings = MomaSettings(
        lam=_lam(spec, law.noise_variance / law.value_bound**2),
        scale=_scale(spec, MOMA_SCALE),
        rkhs_bound=_rkhs(spec.rkhs_bound, law),
        moment=spec.noise_moment if isinstance(spec, wire.Moma) else law.noise_moment,
        plays=plays_of(spec, problem.horizon - problem.initial),
        alpha=spec.alpha if isinstance(spec, wire.Moma) else 1.0,
        accuracy=spec.accuracy,
    )
    return LdpMoma(problem, settings)


def plays_of(spec: wire.LdpMoma | wire.Moma, horizon: int) -> int:
    """Return the plays of an epoch, for ``horizon`` rounds after the initial ones."""
    if spec.plays is not None:
        return spec.plays
    return plays_of_theorem(max(horizon, 1), spec.delta) if spec.theory else MOMA_PLAYS


def raw_moment(spec: wire.HeavyTails) -> float:
    """Return v as it is given, or from B and c: by E eta = 0 at alpha = 1, by convexity below."""
    if spec.raw_moment is not None:
        return spec.raw_moment
    if spec.alpha == 1:
        return spec.value_bound**2 + spec.noise_moment
    return float(2**spec.alpha * (spec.value_bound ** (1 + spec.alpha) + spec.noise_moment))


def _lam(spec: wire.PaperSpec, practical: float) -> float:
    return spec.lam if spec.lam is not None else 1.0 if spec.theory else practical


def _scale(spec: wire.PaperSpec, practical: float) -> float:
    return spec.scale if spec.scale is not None else 1.0 if spec.theory else practical


def _rkhs(bound: float | None, law: RewardLaw) -> float:
    return bound if bound is not None else RKHS_PER_SUP * law.value_bound
