"""Maps between X and Z that an attacker fits to pairs of rows it knows, and what noise leaves to guess."""

from collections.abc import Callable

import numpy as np

from blindopt.arrays import Matrix

Map = Callable[[Matrix], Matrix]
_RANK = 1e-12
"""Below this share of the largest, a singular value of the known rows is rounding error."""


def affine(source: Matrix, target: Matrix, penalty: float = 0.0) -> Map:
    """The affine map that fits ``source`` (k, p) to ``target`` (k, q) best, in squares.

    Where several fit alike, the one that changes least. ``penalty`` is ridge regression's, in squared units of
    the source: k times the noise's variance keeps it from fitting noise.
    """
    mean, to = source.mean(axis=0), target.mean(axis=0)
    u, s, vt = np.linalg.svd(source - mean, full_matrices=False)
    kept = s > _RANK * s.max(initial=0.0)
    gain = np.divide(s, s**2 + penalty, out=np.zeros_like(s), where=kept)
    slope = (vt.T * gain) @ (u.T @ (target - to))
    return lambda rows: to + (rows - mean) @ slope


def turned(source: Matrix, target: Matrix) -> Map:
    """The rotation or reflection that fits best, about the origin (orthogonal Procrustes, Schoenemann 1966)."""
    u, _, vt = np.linalg.svd(source.T @ target)
    rotation = u @ vt
    return lambda rows: rows @ rotation


def shrunk(noisy: Matrix, sd: float) -> Matrix:
    """The best linear guess of rows (m, d) behind noise of known ``sd``: towards their mean, by its share of noise.

    Mean and covariance are read off the noisy rows themselves: the attacker needs to know nothing else.
    """
    mean = noisy.mean(axis=0)
    centred = noisy - mean
    values, vectors = np.linalg.eigh(centred.T @ centred / max(len(noisy) - 1, 1))
    gain = np.divide(np.maximum(values - sd**2, 0.0), values, out=np.zeros_like(values), where=values > 0)
    guess: Matrix = mean + (centred @ vectors * gain) @ vectors.T
    return guess


def forward(x: Matrix, z: Matrix, *, shows_x: bool, rotated: bool) -> dict[str, Map]:
    """Ways to say where in Z a record is, from pairs of rows known (k, d), (k, r): the attacker tries each."""
    ways: dict[str, Map] = {}
    if len(x):
        ways["affine"] = affine(x, z)
    if len(x) and rotated:
        ways["turned"] = turned(x, z)
    if shows_x:
        ways["read"] = lambda rows: rows
    return ways
