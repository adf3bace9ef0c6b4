"""Simulates searches through a release's noise. What it draws is thrown away: its result is one number, ``rho``."""

from functools import lru_cache
from math import sqrt

import numpy as np

from blindopt.arrays import Matrix, Vector
from blindopt.gp.input_noise import correlations, declared_noise
from blindopt.gp.kernels import SquaredExponential
from blindopt.wire import NoiseLaw

_QUERIED, _OTHERS, _REPETITIONS, _MADE_UP = 50, 300, 8, 500
_LENGTHSCALE = 0.739
"""Of the rms distance of two rows, over which a squared exponential then correlates by 0.4."""


@lru_cache(maxsize=256)
def rho_of_box(widths: tuple[float, ...], family: str, sd: float, columns: int) -> float:
    """``rho`` of rows that are uniform in a box with these widths."""
    rng = np.random.default_rng(0)
    rows = rng.random((_QUERIED + _OTHERS, len(widths))) * np.array(widths)
    return rho(rows, NoiseLaw.model_validate({"family": family, "sd": sd}), columns)


def rho_of_variances(variances: Vector, law: NoiseLaw, columns: int) -> float:
    """``rho`` of 500 made-up Gaussian rows, whose coordinates have these ``variances`` (d,), by the first ``columns``.

    All coordinates, with noise, where ``columns`` is d.
    """
    rows = np.random.default_rng(0).standard_normal((_MADE_UP, len(variances))) * np.sqrt(variances)
    return rho(rows, law, columns, np.eye(len(variances), columns))


def rho(rows: Matrix, law: NoiseLaw, columns: int, axes: Matrix | None = None) -> float:
    """How well a search predicts after 50 exact outcomes, through a release of ``rows`` (n, d) with noise of ``law``.

    The correlation, over functions and records, of the prediction W' f(A) of a modeler that knows kernel and law with
    f(B): A are 50 of the rows, B up to 300 others. f is drawn with a squared exponential whose length-scale is 0.739
    of the rms distance of two rows. Constants do not count: the mean over B is taken off. With k the kernel at the
    rows, K its mean over the noise at Z, and W = K(A, A)^-1 K(A, B) it is
    <W, k(A, B)> / sqrt(tr(W' k(A, A) W) |B| (1 - mean k(B, B))) with centred W and k, by second moments. The mean of 8
    draws of A, B and the noise, which a fixed seed determines. ``axes`` (d, columns): what the release multiplies rows
    by before the noise; without them, fewer columns than features are a random projection.
    """
    noise = declared_noise(law)
    assert noise is not None, "a release without noise hides nothing"
    apart = sqrt(2 * float(rows.var(axis=0).sum()))
    if apart == 0:
        return 0.0  # all rows are alike
    kernel, rng, values = SquaredExponential(_LENGTHSCALE * apart), np.random.default_rng(1), []
    for _ in range(_REPETITIONS):
        x = rows[rng.permutation(len(rows))[: _QUERIED + _OTHERS]]
        queried = min(_QUERIED, len(x) // 2)
        z = _noisy(x if axes is None else x @ axes, law, columns, rng)
        squared = ((z[:queried, None] - z[None]) ** 2).sum(axis=2)
        at_z = correlations(kernel, noise, columns, squared.ravel())[0].reshape(squared.shape)
        at_z[np.arange(queried), np.arange(queried)] = 1.0
        weights = np.linalg.solve(at_z[:, :queried], at_z[:, queried:])
        weights -= weights.mean(axis=1, keepdims=True)
        k = kernel(x[:queried], x[queried:])
        covariance = float((weights * (k - k.mean(axis=1, keepdims=True))).sum())
        predicted = float((weights * (kernel(x[:queried], x[:queried]) @ weights)).sum())
        total = weights.shape[1] * (1 - float(kernel(x[queried:], x[queried:]).mean()))
        values.append(covariance / sqrt(predicted * total) if predicted * total > 0 else 0.0)
    return float(np.mean(values))


def _noisy(x: Matrix, law: NoiseLaw, columns: int, rng: np.random.Generator) -> Matrix:
    """Candidates of rows ``x`` (n, d), drawn by the public law: projected to ``columns`` if these are fewer than d."""
    sd, (n, d) = law.sd or 0.0, x.shape
    if columns < d:
        x = x @ np.linalg.qr(rng.standard_normal((d, columns)))[0] * sqrt(d / columns)
    u = rng.standard_normal((n, columns)) * sd
    if law.family == "laplace_each":
        u = rng.laplace(scale=sd / sqrt(2), size=(n, columns))
    if law.family == "planar_laplace":
        u *= (rng.gamma(columns, sd / sqrt(columns + 1), n) / np.linalg.norm(u, axis=1))[:, None]
    z: Matrix = x + u
    return z
