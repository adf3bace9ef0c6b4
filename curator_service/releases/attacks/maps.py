"""Maps between X and Z that an attacker fits to known pairs of rows, and guesses of rows behind noise."""

from collections.abc import Callable

import numpy as np

from blindopt.arrays import Matrix

Map = Callable[[Matrix], Matrix]
_RANK = 1e-12
"""Below this share of the largest, a singular value of the known rows is rounding error."""


def affine(source: Matrix, target: Matrix, penalty: float = 0.0) -> Map:
    """The affine map from ``source`` (k, p) to ``target`` (k, q) by least squares.

    Where several fit equally well, the one with the smallest slope. ``penalty`` is that of ridge regression, in
    squared units of the source: k times the noise's variance keeps the map from fitting noise.
    """
    mean, to = source.mean(axis=0), target.mean(axis=0)
    u, s, vt = np.linalg.svd(source - mean, full_matrices=False)
    informative = s > _RANK * s.max(initial=0.0)
    gain = np.divide(s, s**2 + penalty, out=np.zeros_like(s), where=informative)
    slope = (vt.T * gain) @ (u.T @ (target - to))
    return lambda rows: to + (rows - mean) @ slope


def turned(source: Matrix, target: Matrix) -> Map:
    """The rotation or reflection about the origin that fits best (orthogonal Procrustes, Schoenemann 1966)."""
    u, _, vt = np.linalg.svd(source.T @ target)
    rotation = u @ vt
    return lambda rows: rows @ rotation


def shrunk(noisy: Matrix, sd: float) -> Matrix:
    """The best linear guess of rows (m, d) behind noise of known ``sd``: the noisy rows, shrunk towards their mean.

    Mean and covariance are estimated from the noisy rows themselves, so the attacker needs no other knowledge.
    """
    mean = noisy.mean(axis=0)
    centred = noisy - mean
    values, vectors = np.linalg.eigh(centred.T @ centred / max(len(noisy) - 1, 1))
    gain = np.divide(np.maximum(values - sd**2, 0.0), values, out=np.zeros_like(values), where=values > 0)
    guess: Matrix = mean + (centred @ vectors * gain) @ vectors.T
    return guess


def forward(x: Matrix, z: Matrix, *, shows_x: bool, rotated: bool) -> dict[str, Map]:
    """Maps of records into Z, by name, from known pairs of rows (k, d), (k, r): the attacker tries each."""
    ways: dict[str, Map] = {}
    if len(x):
        ways["affine"] = affine(x, z)
    if len(x) and rotated:
        ways["turned"] = turned(x, z)
    if shows_x:
        ways["read"] = lambda rows: rows
    return ways
