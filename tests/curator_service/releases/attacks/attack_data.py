"""What the attacks' tests share: data, publics, and mechanisms that are broken on purpose."""

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blindopt.wire import NoiseLaw
from curator_service.releases.attacks.scene import HIDDEN, Public

ROOT = Path(__file__).parents[4]


def king_county() -> np.ndarray:
    """21,613 x 3, one unit a kilometre or 15 % of living area."""
    with gzip.open(ROOT / "demo/data/king_county.csv.gz", "rt") as file:
        rows = [(float(r["long"]), float(r["lat"]), float(r["log10_living_m2"])) for r in csv.DictReader(file)]
    return (np.array(rows) - [-121.95, 47.45, 2.25]) / [1 / 75.1, 1 / 111.2, 0.06]


def public(family: str, sd: float | None = None, *, rotated=False, unit=1.0, epsilon="1", delta=0.0) -> Public:
    name = "a scaled unit" if family == "none" else HIDDEN
    return Public(NoiseLaw(family=family, sd=sd), rotated, unit, name, epsilon, delta)


def planar(rng, shape, sd) -> np.ndarray:
    """Planar Laplace noise by its polar form: radius Gamma(d, s), uniform direction; sd = s sqrt(d + 1)."""
    m, d = shape
    direction = rng.normal(size=shape)
    radius = rng.gamma(d, sd / np.sqrt(d + 1), size=m)
    return direction * (radius / np.linalg.norm(direction, axis=1))[:, None]


@dataclass
class Simulated:
    """A mechanism whose noise is numpy's: for laws that are known in closed form, and for broken ones."""

    family: str
    sd: float
    rng: np.random.Generator

    name = "simulated"
    version = 1
    status = "sound"
    claim = ""

    def columns(self, d):
        return d

    def noise(self, d):
        return NoiseLaw(family=self.family, sd=self.sd)

    def assess(self, rows):
        return None

    def draw(self, rows, out, on_progress=None):
        x = np.concatenate([block for _, block in rows.blocks()])
        if self.family == "planar_laplace":
            out[:] = x + planar(self.rng, x.shape, self.sd)
        else:
            out[:] = x + self.rng.normal(0, self.sd, x.shape)
