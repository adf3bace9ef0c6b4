"""Membership: is this person among the records? Half of the rows are released; all are asked about.

A record is said to be in if a row of Z lies near where it would be. What is near, and which way to say where, is
learnt on half of the people and judged on the others.
"""

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.wire import Finding
from curator_service.attacks.intervals import ALPHA, clopper_pearson
from curator_service.attacks.linkage import nearest
from curator_service.attacks.maps import Map, forward
from curator_service.attacks.scene import Public, draw
from curator_service.release.mechanism import Mechanism

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

    def near(way: Map, part: slice) -> tuple[Vector, Vector]:
        return nearest(way(asked_in[part]), z[known:])[1], nearest(way(outside[part]), z[known:])[1]

    # Where two do as well the later one: it was fitted to less.
    learnt = [(way, *threshold(*near(way, slice(cut)))) for way in reversed(ways.values())]
    best, limit, _ = max(learnt, key=lambda one: one[2])
    hits, alarms = (int(np.sum(distance <= limit)) for distance in near(best, slice(cut, None)))
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


def threshold(inside: Vector, outside: Vector) -> tuple[float, float]:
    """The distance with the largest share of ``inside`` minus share of ``outside`` below, well before the next.

    And that advantage, which flatters: the distance was chosen by it.
    """
    scores = np.unique(np.concatenate([inside, outside]))
    below = [np.searchsorted(np.sort(part), scores, side="right") / len(part) for part in (inside, outside)]
    advantage = below[0] - below[1]
    best = int(np.argmax(advantage))
    return float(scores[best : best + 2].mean()), float(advantage[best])
