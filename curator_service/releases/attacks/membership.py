"""Membership: is this record among those released? Half of the rows are released, and all are judged.

The attacker maps a record into Z and says yes if a row of Z is near. The threshold and the map are chosen on half of
the records and judged on the others.
"""

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.wire import Finding
from curator_service.releases.attacks.linkage import nearest
from curator_service.releases.attacks.scene import ALPHA, Map, Public, clopper_pearson, draw, forward
from curator_service.releases.mechanisms.mechanism import Mechanism

RECORDS_MIN = 20
"""Members, and as many others. With fewer records the interval is too wide to be of use."""
RECORDS_MAX = 1_000


def attack(x: Matrix, mechanism: Mechanism, public: Public, rng: np.random.Generator, of: int) -> Finding | None:
    """The attacker's share of true alarms minus that of false alarms, from rows (m, d); None for too few rows.

    Draws a release of half of the rows, which is thrown away. Raises ReleaseImpossible like the mechanism.
    """
    links, half = x.shape[1] + 1, len(x) // 2
    if half - links < RECORDS_MIN:
        return None
    order = rng.permutation(len(x))
    count = min(half - links, RECORDS_MAX)
    inside, outside = x[order[:half]], x[order[half : half + count]]
    z = draw(mechanism, inside)
    ways = forward(inside[:links], z[:links], shows_x=public.shows_x, rotated=public.rotated)
    members, cut = inside[links : links + count], count // 2

    def near(way: Map, judged_rows: slice) -> tuple[Vector, Vector]:
        return nearest(way(members[judged_rows]), z[links:])[1], nearest(way(outside[judged_rows]), z[links:])[1]

    # Among equally good maps prefer the later one, which was fitted to less.
    learnt = [(way, *threshold(*near(way, slice(cut)))) for way in reversed(ways.values())]
    best, limit, _ = max(learnt, key=lambda candidate: candidate[2])
    hits, alarms = (int(np.sum(distance <= limit)) for distance in near(best, slice(cut, None)))
    judged = count - cut
    sentence = (
        f"An attacker who knows {links} records says of another one whether it was released: yes for "
        f"{100 * hits / judged:.3g} % of the released ones and for {100 * alarms / judged:.3g} % of the others. "
        f"(Tried on {half:,} of the {of:,} records.)"
    )
    return finding(hits, alarms, judged, sentence)


def finding(hits: int, alarms: int, judged: int, sentence: str) -> Finding:
    """The finding of an attacker with so many true and false alarms about so many members, and as many others."""
    # Each of the two shares gets half of the error probability of their difference.
    (in_low, in_high), (out_low, out_high) = (clopper_pearson(n, judged, ALPHA / 2) for n in (hits, alarms))
    return Finding(
        attack="membership",
        figure=(hits - alarms) / judged,
        low=in_low - out_high,
        high=in_high - out_low,
        confidence=1 - ALPHA,
        success=(1 + (hits - alarms) / judged) / 2,
        blind=0.5,
        unit="advantage: true minus false alarms, each as a share",
        sentence=sentence,
    )


def threshold(inside: Vector, outside: Vector) -> tuple[float, float]:
    """The distance that separates ``inside`` from ``outside`` best, half-way to the next one, and its advantage.

    The advantage is the share of ``inside`` below the distance minus that of ``outside``. It is biased upwards, because
    the distance was chosen by it.
    """
    scores = np.unique(np.concatenate([inside, outside]))
    below = [
        np.searchsorted(np.sort(distances), scores, side="right") / len(distances) for distances in (inside, outside)
    ]
    advantage = below[0] - below[1]
    best = int(np.argmax(advantage))
    return float(scores[best : best + 2].mean()), float(advantage[best])
