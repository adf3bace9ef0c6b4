"""Figure 2 of Zhou & Tan (2021) in kind: private and heavy-tailed rewards, synthetic and real."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from benchmarks.papers import sources
from benchmarks.papers.arms import Bandit, law_of, marks_of, player, private_answers, regrets, with_nugget
from benchmarks.papers.part import Curves, Size, Task
from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.gp.kernels import kernel_of

Source = Literal["sensors", "stocks"]
Kind = Literal["squared_exponential", "matern_52"]
KERNELS: dict[str, Kind] = {"SE": "squared_exponential", "Matern": "matern_52"}
ARMS, LENGTHSCALE = 100, 0.2
NUGGET = 0.1
"""Added to the diagonal of covariances of real data."""
OPEN = "IGP-UCB, no privacy"

PRIVATE: dict[str, tuple[wire.FewArms, str]] = {
    "LDP-TGP": (wire.LdpTgp(name="ldp_tgp"), "laplace"),
    "LDP-ATA": (wire.LdpAta(name="ldp_ata"), "laplace"),
    "LDP-MoMA": (wire.LdpMoma(name="ldp_moma"), "laplace"),
    "IGP-UCB": (wire.IgpUcb(name="igp_ucb"), "laplace"),
    "Thompson": (wire.Thompson(name="thompson"), "laplace"),
    "Laplace-ADF": (wire.LaplaceAdf(name="laplace_adf"), "laplace"),
    "bounded IGP, guaranteed": (wire.BoundedIgp(name="bounded_igp", mode="guaranteed"), "one_bit"),
    "bounded IGP, practical": (wire.BoundedIgp(name="bounded_igp"), "auto"),
    "bounded Thompson": (wire.Thompson(name="thompson"), "auto"),
    "TGP tight, theory": (wire.TgpTight(name="tgp_tight"), "laplace"),
    "LDP-TGP, theory": (wire.LdpTgp(name="ldp_tgp", theory=True), "laplace"),
    "LDP-ATA, theory": (wire.LdpAta(name="ldp_ata", theory=True), "laplace"),
    "LDP-MoMA, theory": (wire.LdpMoma(name="ldp_moma", theory=True), "laplace"),
}
"""Algorithm and answer mechanism by column; practical settings unless the name says theory."""


def private(bandit: Bandit, epsilon: str, rounds: int, seed: int) -> Curves:
    """Run every private algorithm on one bandit. Columns with Laplace answers share their noise."""
    marks, curves, answer = marks_of(rounds), {}, {}
    for column, (spec, mechanism) in PRIVATE.items():
        answers = bandit.private(mechanism, epsilon)
        if mechanism not in answer:
            answer[mechanism] = private_answers(bandit, answers, rounds)
        algorithm = player(spec, bandit, law_of(bandit, answers), rounds, seed)
        curves[column] = regrets(bandit, algorithm, answer[mechanism], marks)
    algorithm = player(wire.IgpUcb(name="igp_ucb"), bandit, bandit.open(), rounds, seed)
    return curves | {OPEN: regrets(bandit, algorithm, bandit.reward, marks)}


def heavy(bandit: Bandit, rounds: int, seed: int) -> Curves:
    """Run the variants for heavy tails without privacy, and IGP-UCB, which treats the noise as sub-Gaussian."""
    moments: dict[str, Any] = {"value_bound": bandit.value_bound, "noise_moment": bandit.noise_variance}
    specs: dict[str, wire.FewArms] = {
        "TGP": wire.Tgp(name="tgp", **moments),
        "ATA": wire.Ata(name="ata", **moments),
        "MoMA": wire.Moma(name="moma", **moments),
        "IGP-UCB": wire.IgpUcb(name="igp_ucb"),
    }
    smaller = {
        f"{column}, scale 0.1, lam 1": spec.model_copy(update={"scale": 0.1, "lam": 1.0})
        for column, spec in specs.items()
    }
    marks, law = marks_of(rounds), bandit.open()
    return {
        column: regrets(bandit, player(spec, bandit, law, rounds, seed), bandit.reward, marks)
        for column, spec in (specs | smaller).items()
    }


@dataclass(frozen=True, slots=True)
class Synthetic:
    """100 arms on [0, 1], f = sum a_i k(., x_i): private, with uniform noise, or heavy-tailed, with Student's t."""

    name: str
    heavy: bool

    def tasks(self, size: Size) -> list[Task]:
        levels = [""] if self.heavy else [f", epsilon = {level}" for level in size.levels]
        return [(f"{kernel}{level}", run) for run in range(size.trials) for kernel in KERNELS for level in levels]

    def marks(self, size: Size) -> Sequence[int]:
        return marks_of(size.rounds)

    def play(self, task: Task, size: Size) -> Curves:
        group, run = task
        kernel, _, level = group.partition(", epsilon = ")
        bandit = draw_bandit(KERNELS[kernel], run, size.rounds, heavy=self.heavy)
        return heavy(bandit, size.rounds, run) if self.heavy else private(bandit, level, size.rounds, run)

    def facts(self, size: Size) -> dict[str, Any]:
        return {"rounds": size.rounds, "arms": ARMS}


@lru_cache(maxsize=2)
def gram(kind: Kind) -> Matrix:
    """Covariance matrix of the arms."""
    x = np.linspace(0.0, 1.0, ARMS)[:, None]
    return kernel_of(kind, LENGTHSCALE, 1.0)(x, x)


def draw_bandit(kind: Kind, seed: int, rounds: int, *, heavy: bool) -> Bandit:
    """Draw a random function: 100 coefficients uniform in [-1, 1] at support points uniform among the arms."""
    rng = np.random.default_rng([3, seed])
    support, coefficients = rng.integers(ARMS, size=ARMS), rng.uniform(-1.0, 1.0, size=ARMS)
    f = gram(kind)[:, support] @ coefficients
    noise = rng.standard_t(3, size=rounds) if heavy else rng.uniform(-1.0, 1.0, size=rounds)
    bound, variance = (np.sqrt(3.0), 3.0) if heavy else (1.0, 1 / 3)
    return Bandit(f, gram(kind), lambda t, arm: float(f[arm] + noise[t]), 0.0, float(bound), variance)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Arms with measured rewards: each round takes a random day of a table (days, arms).

    f is the mean of an arm over the days, the noise is the remainder, and the kernel is the correlations between
    arms. As in the paper, the kernel of sensors is from earlier days (the first three quarters), that of stocks from
    the same days. Unlike there, f is centred at its mean over the arms, which counts as public. ``centred``: so is
    each day, by the mean of its arms. ``nugget`` is added to the diagonal of the kernel, and ``levels`` are the
    epsilons in the place of those of the size.
    """

    name: str
    heavy: bool
    source: Source
    centred: bool = False
    nugget: float = NUGGET
    levels: tuple[str, ...] = ()

    def tasks(self, size: Size) -> list[Task]:
        epsilons = self.levels if len(size.levels) > 1 and self.levels else size.levels
        levels = ["heavy tails"] if self.heavy else [f"epsilon = {level}" for level in epsilons]
        return [(level, run) for run in range(size.trials) for level in levels]

    def marks(self, size: Size) -> Sequence[int]:
        return marks_of(size.rounds)

    def play(self, task: Task, size: Size) -> Curves:
        group, run = task
        bandit = self._bandit(run, size.rounds)
        if self.heavy:
            return heavy(bandit, size.rounds, run)
        return private(bandit, group.removeprefix("epsilon = "), size.rounds, run)

    def facts(self, size: Size) -> dict[str, Any]:
        days, bandit = table_of(self.source, centred=self.centred), self._bandit(0, 1)
        top = float(np.linalg.eigvalsh(bandit.gram)[-1] / np.trace(bandit.gram))
        return {
            "rounds": size.rounds,
            "arms": days.shape[1],
            "days": days.shape[0],
            "B": bandit.value_bound,
            "R": bandit.noise_bound,
            "c": bandit.noise_variance,
            "share_of_top_eigenvalue": top,
            "nugget": self.nugget,
        }

    def _bandit(self, seed: int, rounds: int) -> Bandit:
        days = table_of(self.source, centred=self.centred)
        return with_nugget(table_bandit(days, self.source, seed, rounds), self.nugget)


@lru_cache(maxsize=2)
def table_of(source: Source, *, centred: bool) -> Matrix:
    """Rewards of a table (days, arms)."""
    days = sources.sensors() if source == "sensors" else sources.stocks()
    return days - days.mean(axis=1, keepdims=True) if centred else days


def table_bandit(days: Matrix, source: Source, seed: int, rounds: int) -> Bandit:
    """Make the bandit of a table."""
    train, test = np.split(days, [3 * len(days) // 4]) if source == "sensors" else (days, days)
    f, correlations = np.asarray(test.mean(axis=0)), np.asarray(np.corrcoef(train.T))
    noise = test - f
    day = np.random.default_rng([4, seed]).integers(len(test), size=rounds)
    return Bandit(
        f,
        correlations,
        lambda t, arm: float(test[day[t], arm]),
        float(f.mean()),
        float(np.abs(noise).max()),
        float((noise**2).mean()),
    )
