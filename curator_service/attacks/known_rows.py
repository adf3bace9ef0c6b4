"""Known rows: whoever knows d+1 rows fits the map from Z to X, and guesses all others.

Proposition 2 of docs/privacy.md. Against noise the map is the lesser evil: where a row of Z is a row of X with
noise, the attacker reads it off, with or without known rows. The finding is that of the best attacker.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector
from blindopt.wire import Finding
from curator_service.attacks.intervals import ALPHA, clopper_pearson, median_interval
from curator_service.attacks.maps import affine, shrunk, turned
from curator_service.attacks.scene import EXACT, Scene, percent

REPETITIONS = 21
WITHIN = 0.01
"""A row is rebuilt if the guess is this close, in Delta."""
_BLIND = "blind"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What the best attacker got, over repetitions of the known set: shares of the ``others``, median distance.

    ``blind`` is the median distance of guesses that do not look at Z, in scaled units like ``distance``.
    """

    shares: Vector
    others: int
    distance: float
    blind: float

    def interval(self) -> tuple[float, float, float]:
        """Median share, and an interval that covers both what the known set and what the other rows' noise decide.

        The wider end each of the order statistics over known sets, and of Clopper-Pearson over the other rows.
        """
        share, low, high = median_interval(self.shares)
        least, most = clopper_pearson(round(share * self.others), self.others)
        return share, min(low, least), max(high, most)


def attack(scene: Scene, rng: np.random.Generator, repetitions: int = REPETITIONS) -> Finding | None:
    """The share of other rows rebuilt to within Delta/100 by d+1 known ones; None where no others are left."""
    known = scene.x.shape[1] + 1
    found = rebuild(scene, known, WITHIN, rng, repetitions)
    if found is None:
        return None
    share, low, high = found.interval()
    public, who = scene.public, f"An attacker who knows {known} of the records"
    near = f"to within a hundredth of {public.name}"
    if share == 1 and found.distance < EXACT * public.unit:
        how = f"to within {public.times(found.distance)}" if found.distance else "exactly"
        told = f"{who} rebuilds 100 % of the others, {how}."
    else:
        off = f"its guesses are {public.off_by(found.distance)}{versus_blind(found)}"
        told = f"{who} rebuilds {percent(share)} of the others {near}; {off}.{_functionals(scene, known, rng)}"
    unit = f"share of the other rows rebuilt {near}"
    sentence = told + scene.tried_on
    return Finding(
        attack="known_rows",
        figure=share,
        low=low,
        high=high,
        confidence=1 - ALPHA,
        unit=unit,
        distance=found.distance / public.unit,
        sentence=sentence,
    )


def _functionals(scene: Scene, known: int, rng: np.random.Generator) -> str:
    """What a release of few columns gives away exactly: the map from X to Z, and so r numbers of every row."""
    r, d = scene.z.shape[1], scene.x.shape[1]
    mine = rng.choice(len(scene.x), size=known, replace=False)
    off = affine(scene.x[mine], scene.z[mine])(scene.x) - scene.z
    if r >= d or np.abs(off).max() > EXACT * np.abs(scene.z).max():
        return ""
    numbers = "a linear combination" if r == 1 else f"{r} linear combinations"
    return f" But {numbers} of the {d} features of every row are known exactly."


def versus_blind(found: Rebuilt) -> str:
    """Whether the release was of any use for it."""
    return ", no better than guesses without the release" if found.distance >= 0.99 * found.blind else ""


def rebuild(
    scene: Scene, known: int, within: float, rng: np.random.Generator, repetitions: int, error: float = 0.0
) -> Rebuilt | None:
    """Guess all rows but ``known`` random ones, ``repetitions`` times; None where nobody is left to guess.

    The attacker knows those with errors of standard deviation ``error`` (scaled units) per coordinate.
    """
    m, unit = len(scene.x), scene.public.unit
    if m < known + 2:
        return None
    shares: dict[str, list[float]] = {}
    distances: dict[str, list[float]] = {}
    without_map = _without_map(scene)
    for _ in range(repetitions):
        mine = rng.choice(m, size=known, replace=False)
        others = np.setdiff1d(np.arange(m), mine)
        told = scene.x[mine] + (rng.normal(0, error, (known, scene.x.shape[1])) if error else 0.0)
        for name, guess in (without_map | _with_map(scene, mine, told)).items():
            off = np.linalg.norm(guess[others] - scene.x[others], axis=1)
            shares.setdefault(name, []).append(float(np.mean(off <= within * unit)))
            distances.setdefault(name, []).append(float(np.median(off)))
    best = max(shares, key=lambda name: (np.median(shares[name]), -np.median(distances[name])))
    typical = {name: float(np.median(values)) for name, values in distances.items()}
    return Rebuilt(np.array(shares[best]), m - known, min(typical.values()), typical[_BLIND])


def _without_map(scene: Scene) -> dict[str, Matrix]:
    """Guesses that need no known row."""
    public = scene.public
    if not public.shows_x:
        return {}
    if not public.noise_sd:
        return {"read": scene.z}
    return {"read": scene.z, "shrunk": shrunk(scene.z, public.noise_sd)}


def _with_map(scene: Scene, mine: NDArray[np.int64], told: Matrix) -> dict[str, Matrix]:
    z, sd = scene.z[mine], scene.public.noise_sd
    guesses = {
        "affine": affine(z, told)(scene.z),
        _BLIND: np.broadcast_to(told.mean(axis=0), scene.x.shape),
    }
    if sd:
        guesses["ridge"] = affine(z, told, penalty=len(mine) * sd**2)(scene.z)
    if scene.public.rotated:
        guesses["turned"] = shrunk(turned(z, told)(scene.z), sd)
    return guesses
