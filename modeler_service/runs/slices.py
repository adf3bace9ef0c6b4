"""How the expected outcome changes along one axis of Z: its slice, and how much of its variation the axis explains."""

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix, Vector

BINS = 20
_LOW, _HIGH = 0.1, 0.9


def axis_slice(axis: int, share: float, coordinates: Vector, means: Vector, bins: int = BINS) -> wire.AxisSlice:
    """Group candidates by their coordinate (m,) along an axis, and summarize their posterior means (m,) in each group.

    Groups have about as many candidates each. The relevance is the correlation ratio: the variance of the group means
    over that of all means, 0 where the axis explains nothing and 1 where it explains all. Source: Saltelli et al.
    (2010), the first-order index, estimated by groups.
    """
    order = np.argsort(coordinates, kind="stable")
    groups = [group for group in np.array_split(order, min(bins, len(order))) if len(group)]
    total = float(means.var())
    middle = float(means.mean())
    between = sum(len(group) * (float(means[group].mean()) - middle) ** 2 for group in groups) / len(means)
    return wire.AxisSlice(
        axis=axis,
        share=share,
        relevance=min(1.0, between / total) if total > 0 else 0.0,
        parts=[_part(coordinates[group], means[group]) for group in groups],
    )


def _part(coordinates: Vector, means: Vector) -> wire.SlicePart:
    low, high = np.quantile(means, [_LOW, _HIGH])
    at = float(coordinates.mean())
    return wire.SlicePart(at=at, mean=float(means.mean()), low=float(low), high=float(high), rows=len(means))


def column_shares(columns: Matrix) -> list[float]:
    """The share of each column (m, r) in the variance of all."""
    variances = columns.var(axis=0)
    total = float(variances.sum())
    return [float(v) / total if total > 0 else 0.0 for v in variances]
