"""Build algorithms over few arms from their requests; their defaults are here."""

from dataclasses import replace
from math import sqrt

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.gp.fitting import suggest_hyper, typical_distance
from blindopt.optimizer.algorithms.bandits.bounded_igp import BoundedIgp
from blindopt.optimizer.algorithms.bandits.few_arms import BanditProblem, FewArms, gram_of, require_family
from blindopt.optimizer.algorithms.bandits.igp_ucb import IgpUcb
from blindopt.optimizer.algorithms.bandits.laplace_adf import LaplaceAdf
from blindopt.optimizer.algorithms.bandits.ldp_ata import AtaSettings, LdpAta
from blindopt.optimizer.algorithms.bandits.ldp_moma import LdpMoma, MomaSettings, plays_of_theorem
from blindopt.optimizer.algorithms.bandits.ldp_tgp import HeavyTruncation, LaplaceTruncation, LdpTgp
from blindopt.optimizer.algorithms.bandits.reward_law import RewardLaw
from blindopt.optimizer.algorithms.bandits.thompson import Thompson
from blindopt.optimizer.algorithms.bandits.warnings import warnings_for

RKHS_PER_SUP = 1.5
ATA_SCALE, TGP_SCALE, MOMA_SCALE, IGP_SCALE = 0.02, 0.04, 0.01, 0.3
MOMA_PLAYS = 5


def build_few_arms(
    spec: wire.FewArms,
    candidates: Matrix,
    kernel: wire.Kernel | None,
    answers: wire.Answers,
    *,
    sign: int,
    seed: int,
    horizon: int,
    initial: int,
    unit_is_row: bool,
) -> FewArms:
    """Build the algorithm of a run, with its warnings. Raises Invalid if it is not for the study's answers.

    Without a kernel, which only answers without privacy noise need for their law, a squared-exponential one of the
    candidates' scale is taken.
    """
    kernel = kernel or kernel_by_distance(candidates)
    law = RewardLaw.of(answers, kernel)
    _check(spec, law)  # before the covariances: they may be many
    gram = gram_of(candidates, kernel, spec.nugget)
    return build_on(spec, BanditProblem(gram, law, sign, seed, horizon, initial), unit_is_row=unit_is_row)


def kernel_by_distance(candidates: Matrix) -> wire.Kernel:
    """A kernel whose length-scale is that of the first guess of a fit; the law of the answers says the rest."""
    guess = suggest_hyper(np.zeros(0), typical_distance(candidates, wire.NoiseLaw(family="none")))
    return wire.Kernel(lengthscale=guess.lengthscale, signal_variance=1.0, noise_variance=1.0)


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


def _rkhs(given: float | None, law: RewardLaw) -> float:
    return given if given is not None else RKHS_PER_SUP * law.value_bound
