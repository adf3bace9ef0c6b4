"""Test functions of engineering and optimization, in the units of their sources.

Each takes points (n, d) between its ``BOUNDS`` and returns its values (n,). Formulas and ranges are as collected by
S. Surjanovic and D. Bingham, Virtual Library of Simulation Experiments; each names its first source. Where a source has
normal inputs, the range is three standard deviations to both sides.
"""

from collections.abc import Callable

import numpy as np

from blindopt.arrays import Matrix, Vector

Function = Callable[[Matrix], Vector]


def gramacy_lee(x: Matrix) -> Vector:
    """A peak and a pit on a plain. Gramacy and Lee (2008)."""
    value: Vector = x[:, 0] * np.exp(-(x**2).sum(axis=1))
    return value


_SHEKEL_BETA = np.array([1, 2, 2, 4, 4, 6, 3, 7, 5, 5]) / 10
_SHEKEL_C = np.array(
    [
        [4, 1, 8, 6, 3, 2, 5, 8, 6, 7],
        [4, 1, 8, 6, 7, 9, 3, 1, 2, 3.6],
        [4, 1, 8, 6, 3, 2, 5, 8, 6, 7],
        [4, 1, 8, 6, 7, 9, 3, 1, 2, 3.6],
    ]
).T


def shekel(x: Matrix) -> Vector:
    """Ten narrow peaks in four dimensions, of height up to 10.5364. Dixon and Szego (1978), with its sign turned."""
    distance = ((x[:, None, :] - _SHEKEL_C) ** 2).sum(axis=2)
    value: Vector = (1 / (distance + _SHEKEL_BETA)).sum(axis=1)
    return value


def roof_truss(x: Matrix) -> Vector:
    """Deflection in m of a roof: load in N/m, span in m, areas of steel and concrete in m2, their moduli in Pa.

    Pan and Dias (2017), after Zhao and Ang (2003).
    """
    load, span, steel, concrete, e_steel, e_concrete = x.T
    value: Vector = load * span**2 / 2 * (3.81 / (concrete * e_concrete) + 1.13 / (steel * e_steel))
    return value


def beam(x: Matrix) -> Vector:
    """Deflection in m of a supported beam: width, height and length in m, modulus in Pa, load in N/m.

    Five 384ths of load length^4 / (modulus inertia), with an inertia of width height^3 / 12.
    """
    width, height, length, modulus, load = x.T
    value: Vector = 5 / 32 * load * length**4 / (modulus * width * height**3)
    return value


def borehole(x: Matrix) -> Vector:
    """Water through a borehole, in m3 a year. Harper and Gupta (1983)."""
    rw, r, tu, hu, tl, hl, length, kw = x.T
    log = np.log(r / rw)
    value: Vector = 2 * np.pi * tu * (hu - hl) / (log * (1 + 2 * length * tu / (log * rw**2 * kw) + tu / tl))
    return value


def wing_weight(x: Matrix) -> Vector:
    """Weight of the wing of a light aircraft, in pounds. Forrester, Sobester and Keane (2008)."""
    sw, wfw, a, sweep, q, taper, tc, nz, wdg, wp = x.T
    cosine = np.cos(np.radians(sweep))
    shape = (a / cosine**2) ** 0.6 * q**0.006 * taper**0.04 * (100 * tc / cosine) ** -0.3
    value: Vector = 0.036 * sw**0.758 * wfw**0.0035 * shape * (nz * wdg) ** 0.49 + sw * wp
    return value


def robot_arm(x: Matrix) -> Vector:
    """Distance of a hand from its shoulder, by the angles and lengths of four segments. An and Owen (2001)."""
    angles, lengths = np.cumsum(x[:, :4], axis=1), x[:, 4:]
    value: Vector = np.hypot((lengths * np.cos(angles)).sum(axis=1), (lengths * np.sin(angles)).sum(axis=1))
    return value


def levy(x: Matrix) -> Vector:
    """Waves on a bowl, 0 where every input is 1. Levy and Montalvo (1985)."""
    w = 1 + (x - 1) / 4
    first, inner, last = w[:, 0], w[:, :-1], w[:, -1]
    waves = ((inner - 1) ** 2 * (1 + 10 * np.sin(np.pi * inner + 1) ** 2)).sum(axis=1)
    value: Vector = np.sin(np.pi * first) ** 2 + waves + (last - 1) ** 2 * (1 + np.sin(2 * np.pi * last) ** 2)
    return value


def otl_circuit(x: Matrix) -> Vector:
    """Voltage of a push-pull circuit without transformer. Ben-Ari and Steinberg (2007)."""
    rb1, rb2, rf, rc1, rc2, beta = x.T
    vb1, gain = 12 * rb2 / (rb1 + rb2), beta * (rc2 + 9)
    value: Vector = (
        (vb1 + 0.74) * gain / (gain + rf) + 11.35 * rf / (gain + rf) + 0.74 * rf * gain / ((gain + rf) * rc1)
    )
    return value


def piston(x: Matrix) -> Vector:
    """Seconds that a piston takes for a cycle. Kenett and Zacks (1998)."""
    m, s, v0, k, p0, ta, t0 = x.T
    a = p0 * s + 19.62 * m - k * v0 / s
    v = s / (2 * k) * (np.sqrt(a**2 + 4 * k * p0 * v0 / t0 * ta) - a)
    value: Vector = 2 * np.pi * np.sqrt(m / (k + s**2 * p0 * v0 / t0 * ta / v**2))
    return value


def _spread(*means_and_shares: tuple[float, float]) -> list[tuple[float, float]]:
    """Three standard deviations to both sides; each is a share of its mean."""
    return [(mean * (1 - 3 * share), mean * (1 + 3 * share)) for mean, share in means_and_shares]


BOUNDS: dict[Function, list[tuple[float, float]]] = {
    gramacy_lee: [(-2, 6)] * 2,
    shekel: [(0, 10)] * 4,
    roof_truss: _spread((2e4, 0.07), (12, 0.01), (9.82e-4, 0.06), (0.04, 0.2), (1.2e11, 0.07), (3e10, 0.08)),
    beam: _spread((0.15, 0.05), (0.3, 0.05), (5, 0.01), (3e10, 0.15), (1e4, 0.2)),
    borehole: [
        (0.05, 0.15), (100, 50_000), (63_070, 115_600), (990, 1_110), (63.1, 116), (700, 820), (1_120, 1_680),
        (9_855, 12_045),
    ],
    wing_weight: [
        (150, 200), (220, 300), (6, 10), (-10, 10), (16, 45), (0.5, 1), (0.08, 0.18), (2.5, 6), (1_700, 2_500),
        (0.025, 0.08),
    ],
    robot_arm: [*[(0, 2 * np.pi)] * 4, *[(0, 1)] * 4],
    levy: [(-10, 10)] * 8,
    otl_circuit: [(50, 150), (25, 70), (0.5, 3), (1.2, 2.5), (0.25, 1.2), (50, 300)],
    piston: [
        (30, 60), (0.005, 0.02), (0.002, 0.01), (1_000, 5_000), (90_000, 110_000), (290, 296), (340, 360),
    ],
}  # fmt: skip
"""The range of each input."""
