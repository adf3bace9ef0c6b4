"""Linkage: an attacker who has the records looks for the row of Z of each, to undo the secret row order.

The attacker maps a record into Z, by a map fitted to a few known links or by the identity, and takes the nearest row.
The map is chosen on half of the records and judged on the others.
"""

import numpy as np
from numpy.typing import NDArray

from blindopt.arrays import Matrix
from blindopt.wire import Finding
from curator_service.datasets.scaling import BLOCK_ROWS
from curator_service.releases.attacks.scene import ALPHA, Map, Scene, clopper_pearson, forward, percent

TARGETS = 300
"""Records that the attack is judged on; as many again choose the map, where there are several."""


def attack(scene: Scene, whole: Matrix, row_numbers: NDArray[np.int64], rng: np.random.Generator) -> Finding | None:
    """The share of records whose row of ``whole`` (n, r) is found; ``row_numbers`` are those of the scene's rows in it.

    None where there are too few rows to learn from and to judge on.
    """
    links = _links_needed(scene)
    if links is None:
        return None
    order = rng.permutation(len(scene.x))
    mine, others = order[:links], order[links:]
    ways = forward(scene.x[mine], scene.z[mine], shows_x=scene.public.shows_x, rotated=scene.public.rotated)

    def hits(way: Map, judged: NDArray[np.int64]) -> int:
        return int(np.sum(nearest(way(scene.x[judged]), whole)[0] == row_numbers[judged]))

    learning = min(TARGETS, len(others) // 2) if len(ways) > 1 else 0
    learners, targets = others[:learning], others[learning : learning + TARGETS]
    # Among equally good maps prefer the later one, which was fitted to less.
    best = max(reversed(ways.values()), key=lambda way: hits(way, learners) if learning else 0)
    right = hits(best, targets)
    low, high = clopper_pearson(right, len(targets))
    learnt = f"and knows which candidates {links} others are " if links else ""
    tried_on = scene.tried_on if len(whole) < scene.of else ""
    sentence = (
        f"An attacker who has {len(targets)} records {learnt}finds the candidate of "
        f"{percent(right / len(targets))} of them, among {len(whole):,} candidates. A blind guess would find "
        f"{percent(1 / len(whole))}.{tried_on}"
    )
    return Finding(
        attack="linkage",
        figure=right / len(targets),
        low=low,
        high=high,
        confidence=1 - ALPHA,
        success=right / len(targets),
        blind=1 / len(whole),
        unit="share of records linked to their candidate",
        sentence=sentence,
    )


def _links_needed(scene: Scene) -> int | None:
    m, d = len(scene.x), int(scene.x.shape[1])
    if m >= d + 3:
        return d + 1
    return 0 if scene.public.shows_x and m >= 2 else None


def nearest(where: Matrix, whole: Matrix) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each point (t, r) the nearest row of ``whole`` (n, r) and its distance, a block at a time."""
    from scipy.spatial.distance import cdist

    row, distance = np.zeros(len(where), dtype=np.int64), np.full(len(where), np.inf)
    for start in range(0, len(whole), BLOCK_ROWS):
        between = cdist(where, whole[start : start + BLOCK_ROWS])
        best = between.argmin(axis=1)
        off = between[np.arange(len(where)), best]
        closer = off < distance
        row[closer], distance[closer] = start + best[closer], off[closer]
    return row, distance
