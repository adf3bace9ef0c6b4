"""Warnings about the settings of an algorithm over few arms in a study."""

from math import ceil, sqrt

import numpy as np

from blindopt import wire
from blindopt.optimizer.algorithms.bandits.few_arms import BanditProblem

SLOW = (
    "these constants are those of the theorem: below about 1,000,000 queries they choose hardly better than at random; "
    "choose theory: false for constants that work in practice"
)
FEW = (
    "{queries} queries at epsilon {epsilon:.3g} choose hardly better than at random: ask the owner for {needed} "
    "queries, a larger epsilon or a narrower range of outcomes"
)
LONG = "an epoch of {plays} rounds is more than a twentieth of the {horizon} queries: few decisions are left"
AGAIN = (
    "candidates may be queried again, and records are people in this study: each answer about one uses epsilon again, "
    "and one release of a mean is worth more than repeats"
)
FLAT = "the largest eigenvalue of the kernel is more than half of its trace: the candidates are nearly one arm"
INITIAL_UNUSED = "the initial rows are no part of an epoch: their answers are left out, so ask for none"
WIDER = "one_bit answers have a smaller sup norm than piecewise ones at every epsilon: better for the guaranteed mode"


def warnings_for(spec: wire.FewArms, problem: BanditProblem, *, plays: int | None, unit_is_row: bool) -> list[str]:
    """Return the warnings. ``plays``: rounds of an epoch; ``unit_is_row``: answers about one row add up.

    The thresholds are rules of thumb from trials of an earlier implementation, but for 5, the least epsilon sqrt(T) at
    which a quick algorithm does better than uniform play (docs/algorithms.md), which was measured. Clipped
    rewards are not counted: only the curator could, and it does not report them.
    """
    from scipy.linalg import eigh  # late, for a fast start of the services

    law, horizon = problem.law, problem.horizon
    warnings = []
    if isinstance(spec, wire.PaperSpec) and not isinstance(spec, wire.IgpUcb):
        scale = spec.scale if spec.scale is not None else 1.0 if spec.theory else 0.0
        if scale >= 1:
            warnings.append(SLOW)
    is_quick = isinstance(spec, wire.LaplaceAdf | wire.Thompson)
    if isinstance(spec, wire.BoundedIgp):
        is_quick = spec.mode == "practical"
    least = 5 if is_quick else 100
    if law.epsilon is not None and law.epsilon * sqrt(horizon) < least:
        warnings.append(FEW.format(queries=horizon, epsilon=law.epsilon, needed=ceil((least / law.epsilon) ** 2)))
    if plays is not None and plays > horizon / 20:
        warnings.append(LONG.format(plays=plays, horizon=horizon))
    if plays is not None and problem.initial:
        warnings.append(INITIAL_UNUSED)
    if law.epsilon is not None and unit_is_row:
        warnings.append(AGAIN)
    if isinstance(spec, wire.BoundedIgp) and spec.mode == "guaranteed" and law.family == "piecewise":
        warnings.append(WIDER)
    last = len(problem.gram) - 1
    (largest,) = eigh(problem.gram, eigvals_only=True, subset_by_index=[last, last])
    if 2 * float(largest) > float(np.trace(problem.gram)):
        warnings.append(FLAT)
    return warnings
