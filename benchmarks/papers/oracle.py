"""The search of a modeler that knows f and the law of the noise, but not which row is which."""

import numpy as np
from scipy.fft import irfft2, next_fast_len, rfft2
from scipy.interpolate import RegularGridInterpolator

from benchmarks.papers.search import NORM, Search
from blindopt import wire
from blindopt.arrays import Matrix, Vector


def oracle_regrets(search: Search, side: int, z: Matrix, law: wire.NoiseLaw) -> list[float]:
    """Simple regret after each of T steps of the largest expected improvement E max(f(x) - y+, 0), x given z.

    The rows are the points of a ``side`` x ``side`` grid with its corners at norm 25, each as likely before z is seen;
    the density of x given z is that of the noise at z - x. Averages are convolutions on the grid and a quarter of its
    side around it, interpolated between its points.
    """
    half, pad = NORM / np.sqrt(2), side // 4
    step, wide = 2 * half / (side - 1), side + 2 * pad
    size = next_fast_len(2 * wide)
    offsets = step * np.minimum(np.arange(size), size - np.arange(size))
    distance = np.hypot(offsets[:, None], offsets[None, :])
    assert law.sd is not None, "the release has noise"
    decay = np.sqrt(3.0) * distance / law.sd if law.family == "planar_laplace" else 0.5 * (distance / law.sd) ** 2
    density = rfft2(np.exp(-decay))
    nodes = step * np.arange(-pad, side + pad) - half
    places = np.clip(z, nodes[0], nodes[-1])

    def average(values: Vector) -> Vector:
        spread = rfft2(np.pad(values.reshape(side, side), pad), (size, size))
        blurred = irfft2(spread * density, (size, size))[:wide, :wide]
        mean: Vector = RegularGridInterpolator((nodes, nodes), blurred)(places)
        return mean

    f, queried = search.f, list(map(int, search.first))
    weight = np.maximum(average(np.ones(len(f))), 1e-300)
    rows: list[int] = []
    for _ in range(search.steps):
        gain = average(np.maximum(f - f[queried].max(), 0.0)) / weight
        gain[queried] = -np.inf
        rows.append(int(gain.argmax()))
        queried.append(rows[-1])
    return search.simple_regrets(rows)
