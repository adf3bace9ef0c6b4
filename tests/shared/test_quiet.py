"""Products by blocks are the products."""

import numpy as np
import pytest

from shared.quiet import ALONE, add_outer, left_product, right_product


@pytest.mark.parametrize(
    ("a", "b"), [(1, 1), (3, 5), (64, 64), (65, 64), (100, 100), (18, 400), (3, ALONE), (2, 9_000)]
)
def test_blocks_add_up(a, b):
    rng = np.random.default_rng(0)
    matrix, left, right = rng.normal(size=(a, b)), rng.normal(size=a), rng.normal(size=b)
    np.testing.assert_allclose(left_product(left, matrix), left @ matrix, atol=1e-10)
    np.testing.assert_allclose(right_product(matrix, right), matrix @ right, atol=1e-10)
    before = matrix.copy()
    add_outer(matrix, left, right, -0.5)
    np.testing.assert_allclose(matrix, before - 0.5 * np.outer(left, right), atol=1e-12)
