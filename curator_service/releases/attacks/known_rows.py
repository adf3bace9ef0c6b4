"""Known rows: an attacker who knows d+1 rows, or many rows roughly, fits the map from Z to X and guesses all others.

Proposition 2 of docs/privacy.md. With noise there is a better way: where a row of Z is a row of X with noise, the
attacker takes it as the guess, with or without known rows. The finding is that of the best attacker.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix, Vector
from blindopt.wire import Finding
from curator_service.releases.attacks.scene import (
    ALPHA,
    EXACT,
    Scene,
    affine,
    clopper_pearson,
    median_interval,
    percent,
    shrunk,
    turned,
)

REPETITIONS = 21
WITHIN = 0.01
"""A row counts as rebuilt if the guess is within this distance, in Delta."""
ROUGH_ERROR = 0.1
"""Standard deviation of the errors of what an attacker knows roughly, per coordinate and in Delta."""
ROUGH_WITHIN = 0.25
ROUGH_TIMES = 10
_BLIND = "blind"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The best attacker's shares of the ``others`` rebuilt, one for each known set, and median ``distance`` of guesses.

    ``blind`` is the median distance of guesses that do not use Z, ``blind_share`` the median share that they rebuild.
    Distances are in scaled units.
    """

    shares: Vector
    others: int
    distance: float
    blind: float
    blind_share: float

    def interval(self) -> tuple[float, float, float]:
        """The median share, and an interval for the effects of both the known set and the noise of the other rows.

        Each end is the wider one of the order statistics over known sets and of Clopper-Pearson over the other rows.
        """
        share, low, high = median_interval(self.shares)
        least, most = clopper_pearson(round(share * self.others), self.others)
        return share, min(low, least), max(high, most)


def attack(scene: Scene, rng: np.random.Generator, repetitions: int = REPETITIONS) -> Finding | None:
    """The share of other rows rebuilt to within Delta/100 from d+1 known ones; None for too few rows."""
    count = scene.x.shape[1] + 1
    rebuilt = rebuild(scene, count, WITHIN, rng, repetitions)
    if rebuilt is None:
        return None
    share, _, _ = rebuilt.interval()
    public, attacker = scene.public, f"An attacker who knows {count} of the records"
    near = f"to within a hundredth of {public.name}"
    if share == 1 and rebuilt.distance < EXACT * public.unit:
        how = f"to within {public.times(rebuilt.distance)}" if rebuilt.distance else "exactly"
        sentence = f"{attacker} rebuilds 100 % of the others, {how}."
    else:
        off = f"its guesses are {public.off_by(rebuilt.distance)}{versus_blind(rebuilt)}"
        sentence = f"{attacker} rebuilds {percent(share)} of the others {near}; {off}.{_functionals(scene, count, rng)}"
    return finding("known_rows", scene, rebuilt, near, sentence)


def attack_roughly(scene: Scene, rng: np.random.Generator, repetitions: int = REPETITIONS) -> Finding | None:
    """The share of other rows rebuilt to within Delta/4 by least squares on 10 (d+1) rows known roughly."""
    count, public = ROUGH_TIMES * (scene.x.shape[1] + 1), scene.public
    rebuilt = rebuild(scene, count, ROUGH_WITHIN, rng, repetitions, error=ROUGH_ERROR * public.unit)
    if rebuilt is None:
        return None
    share, _, _ = rebuilt.interval()
    near = f"to within a quarter of {public.name}"
    sentence = (
        f"An attacker who knows {count} of the records, each value with an error of a tenth of {public.name}, rebuilds "
        f"{percent(share)} of the others {near}; its guesses are {public.off_by(rebuilt.distance)}"
        f"{versus_blind(rebuilt)}."
    )
    return finding("known_rows_noisy", scene, rebuilt, near, sentence)


def finding(
    attack: Literal["known_rows", "known_rows_noisy"], scene: Scene, rebuilt: Rebuilt, near: str, sentence: str
) -> Finding:
    """The finding of an attacker who rebuilds rows ``near`` enough."""
    share, low, high = rebuilt.interval()
    return Finding(
        attack=attack,
        figure=share,
        low=low,
        high=high,
        confidence=1 - ALPHA,
        unit=f"share of the other records rebuilt {near}",
        distance=rebuilt.distance / scene.public.unit,
        success=share,
        blind=rebuilt.blind_share,
        sentence=sentence + scene.tried_on,
    )


def _functionals(scene: Scene, count: int, rng: np.random.Generator) -> str:
    """A clause for a release of few columns without noise, which discloses r numbers of every row exactly."""
    r, d = scene.z.shape[1], scene.x.shape[1]
    mine = rng.choice(len(scene.x), size=count, replace=False)
    off = affine(scene.x[mine], scene.z[mine])(scene.x) - scene.z
    if r >= d or np.abs(off).max() > EXACT * np.abs(scene.z).max():
        return ""
    numbers = "a linear combination" if r == 1 else f"{r} linear combinations"
    return f" But {numbers} of the {d} features of every record are known exactly."


def versus_blind(rebuilt: Rebuilt) -> str:
    """A clause for an attacker who does no better than without the release; else an empty text."""
    return ", no better than guesses without the release" if rebuilt.distance >= 0.99 * rebuilt.blind else ""


def rebuild(
    scene: Scene, count: int, within: float, rng: np.random.Generator, repetitions: int, error: float = 0.0
) -> Rebuilt | None:
    """Guess all rows from ``count`` random known ones, ``repetitions`` times; None for too few rows.

    The attacker knows those with errors of standard deviation ``error`` (scaled units) per coordinate.
    """
    m, unit = len(scene.x), scene.public.unit
    if m < count + 2:
        return None
    shares: dict[str, list[float]] = {}
    distances: dict[str, list[float]] = {}
    without_map = _without_map(scene)
    for _ in range(repetitions):
        mine = rng.choice(m, size=count, replace=False)
        others = np.setdiff1d(np.arange(m), mine)
        learnt = scene.x[mine] + (rng.normal(0, error, (count, scene.x.shape[1])) if error else 0.0)
        for name, guess in (without_map | _with_map(scene, mine, learnt)).items():
            off = np.linalg.norm(guess[others] - scene.x[others], axis=1)
            shares.setdefault(name, []).append(float(np.mean(off <= within * unit)))
            distances.setdefault(name, []).append(float(np.median(off)))
    best = max(shares, key=lambda name: (np.median(shares[name]), -np.median(distances[name])))
    typical = {name: float(np.median(values)) for name, values in distances.items()}
    blind = float(np.median(shares[_BLIND]))
    return Rebuilt(np.array(shares[best]), m - count, min(typical.values()), typical[_BLIND], blind)


def _without_map(scene: Scene) -> dict[str, Matrix]:
    """Guesses of all rows (m, d) that need no known row."""
    public = scene.public
    if not public.shows_x:
        return {}
    if not public.noise_sd:
        return {"read": scene.z}
    return {"read": scene.z, "shrunk": shrunk(scene.z, public.noise_sd)}


def _with_map(scene: Scene, mine: NDArray[np.int64], learnt: Matrix) -> dict[str, Matrix]:
    z, sd = scene.z[mine], scene.public.noise_sd
    guesses = {"affine": affine(z, learnt)(scene.z), _BLIND: np.broadcast_to(learnt.mean(axis=0), scene.x.shape)}
    if sd:
        guesses["ridge"] = affine(z, learnt, penalty=len(mine) * sd**2)(scene.z)
    if scene.public.rotated:
        guesses["turned"] = shrunk(turned(z, learnt)(scene.z), sd)
    return guesses
