"""Membership: is this person among the records? Half of the rows are released; all are asked about.

A record is said to be in if a row of Z lies near where it would be. What is near is learnt on half of the
people and judged on the others.
"""

import numpy as np

from curator_service.attacks.intervals import ALPHA, clopper_pearson
from curator_service.attacks.linkage import nearest
from curator_service.attacks.maps import forward
from curator_service.attacks.scene import Public, draw
from curator_service.release.mechanism import Mechanism
from shared.matrix import Matrix, Vector
from shared.wire import Finding

PEOPLE_MIN = 20
"""Of each kind: with fewer the interval says nothing."""
PEOPLE_MAX = 1_000


def attack(x: Matrix, mechanism: Mechanism, public: Public, rng: np.random.Generator, of: int) -> Finding | None:
    """How much likelier a record that is in is called in than one that is not, from rows (m, d); None for too few.

    Draws a release of half of the rows, which is thrown away. Raises ReleaseImpossible like the mechanism.
    """
    known, half = x.shape[1] + 1, len(x) // 2
    if half - known < PEOPLE_MIN:
        return None
    order = rng.permutation(len(x))
    people = min(half - known, PEOPLE_MAX)
    inside, outside = x[order[:half]], x[order[half : half + people]]
    z = draw(mechanism, inside)
    ways = forward(inside[:known], z[:known], shows_x=public.shows_x, rotated=public.rotated)
    asked_in, cut = inside[known : known + people], people // 2
    hits, alarms = max(
        (
            _judged(nearest(way(asked_in), z[known:])[1], nearest(way(outside), z[known:])[1], cut)
            for way in ways.values()
        ),
        key=lambda counts: counts[0] - counts[1],
    )
    asked = people - cut
    # Two shares, each with half of what the interval of their difference may miss.
    (in_low, in_high), (out_low, out_high) = (clopper_pearson(n, asked, ALPHA / 2) for n in (hits, alarms))
    sentence = (
        f"Asked whether a record is among those released, an attacker who knows {known} others says yes for "
        f"{100 * hits / asked:.3g} % of those that are and for {100 * alarms / asked:.3g} % of those that are not. "
        f"(Tried on {half:,} of the {of:,} rows.)"
    )
    return Finding(
        attack="membership",
        figure=(hits - alarms) / asked,
        low=in_low - out_high,
        high=in_high - out_low,
        confidence=1 - ALPHA,
        unit="advantage: true minus false alarms, each as a share",
        sentence=sentence,
    )


def _judged(inside: Vector, outside: Vector, cut: int) -> tuple[int, int]:
    """How many of the people after ``cut`` are called in: of those inside, of those outside."""
    near = threshold(inside[:cut], outside[:cut])
    return int(np.sum(inside[cut:] <= near)), int(np.sum(outside[cut:] <= near))


def threshold(inside: Vector, outside: Vector) -> float:
    """The distance with the largest share of ``inside`` minus share of ``outside`` below, well before the next."""
    scores = np.unique(np.concatenate([inside, outside]))
    below = [np.searchsorted(np.sort(part), scores, side="right") / len(part) for part in (inside, outside)]
    best = int(np.argmax(below[0] - below[1]))
    return float(scores[best : best + 2].mean())
