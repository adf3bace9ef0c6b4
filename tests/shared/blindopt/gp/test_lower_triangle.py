"""Products with a lower triangle have the bits of the whole products, which choices depend on."""

import numpy as np
import pytest

from blindopt.gp.observations import Observations, combined_rows, times_transposed

SIZES = (1, 2, 63, 255, 256, 257, 300, 511, 512, 513, 767, 1_000)


def lower_triangle(rng, t, room):
    """Entries of very different sizes, in a corner of an array with room for more."""
    array = np.zeros((t + room, t + room))
    array[:t, :t] = np.tril(rng.normal(size=(t, t)) * np.exp(3 * rng.normal(size=(t, t))))
    return array[:t, :t]


@pytest.mark.parametrize("t", SIZES)
def test_every_bit_is_that_of_the_whole_product(t):
    rng = np.random.default_rng(t)
    for m in (1, 2, 7, 40):
        lower, rows = lower_triangle(rng, t, room=m % 3), rng.normal(size=(m, t))
        whole = np.einsum("ij,kj->ik", rows, lower)
        assert times_transposed(rows, lower).tobytes() == whole.tobytes()
        assert combined_rows(rows[0], lower).tobytes() == np.einsum("j,jk->k", rows[0], lower).tobytes()
    assert np.allclose(whole, rows @ lower.T, rtol=1e-9, atol=1e-9 * np.abs(whole).max())


def test_the_duals_follow_what_is_observed_supposed_and_retracted():
    """They are L^-T w: an oracle solves for them at each step."""
    rng, observed = np.random.default_rng(0), Observations(1, 0.1, 0.0, 60)

    def check():
        t = observed.count
        exact = np.linalg.solve(observed.factor[:t, :t].T, observed.weights[:t])
        assert np.allclose(observed.duals[:t], exact, rtol=1e-12, atol=1e-12)

    def append(weight):
        t = observed.count
        observed.append(t, np.zeros(1), 0.1 * rng.normal(size=t), 1.0 + rng.random(), weight)
        check()

    factor = np.tril(0.1 * rng.normal(size=(5, 5)), -1) + np.diag(1.0 + rng.random(5))
    observed.begin(np.arange(5), np.zeros((5, 1)), factor, np.linalg.inv(factor), rng.normal(size=5))
    check()
    for _ in range(20):
        append(float(rng.normal()))
    for kept in (25, 24, 12, 12, 3):
        append(0.0)
        append(0.0)
        observed.retract(kept)
        check()
        append(float(rng.normal()))
    observed.retract(0)
    append(1.0)
