"""Products by blocks are the products."""

import numpy as np
import pytest

from blindopt.errors import NumericalFailure
from blindopt.gp.single_thread_blas import (
    ALONE,
    BLOCK,
    add_outer,
    gram_of_lower,
    inverse_factor,
    left_product,
    product,
    right_product,
    whiten,
)


@pytest.mark.parametrize(
    ("a", "b"), [(1, 1), (3, 5), (64, 64), (65, 64), (100, 100), (18, 400), (3, ALONE), (2, 9_000)]
)
def test_blocks_add_up(a, b):
    rng = np.random.default_rng(0)
    matrix, first, second = rng.normal(size=(a, b)), rng.normal(size=a), rng.normal(size=b)
    np.testing.assert_allclose(left_product(first, matrix), first @ matrix, atol=1e-10)
    np.testing.assert_allclose(right_product(matrix, second), matrix @ second, atol=1e-10)
    before = matrix.copy()
    add_outer(matrix, first, second, -0.5)
    np.testing.assert_allclose(matrix, before - 0.5 * np.outer(first, second), atol=1e-12)


@pytest.mark.parametrize(("a", "b", "c"), [(1, 1, 1), (3, 100, 2), (BLOCK, BLOCK, BLOCK), (100, 49, 97)])
def test_a_product_by_blocks_is_the_product(a, b, c):
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(a, b)), rng.normal(size=(b, c))
    np.testing.assert_allclose(product(first, second), first @ second, atol=1e-10)


@pytest.mark.parametrize("n", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_a_factor_by_blocks_is_that_of_cholesky(n):
    rng = np.random.default_rng(n)
    root = rng.normal(size=(n, n))
    gram = root @ root.T + 0.1 * np.eye(n)
    before = gram.copy()
    inverse = inverse_factor(gram)
    assert np.array_equal(gram, before)
    assert np.array_equal(inverse, np.tril(inverse))
    np.testing.assert_allclose(inverse @ np.linalg.cholesky(gram), np.eye(n), atol=1e-9)
    np.testing.assert_allclose(gram_of_lower(inverse) @ gram, np.eye(n), atol=1e-8)
    np.testing.assert_allclose(gram_of_lower(inverse), inverse.T @ inverse, rtol=1e-12, atol=1e-12)
    columns = rng.normal(size=(n, 2))
    logdet, white = whiten(gram, columns)
    assert logdet == pytest.approx(np.linalg.slogdet(gram)[1])
    np.testing.assert_allclose(white, np.linalg.solve(np.linalg.cholesky(gram), columns), atol=1e-9)


@pytest.mark.parametrize("index", [0, BLOCK + 3])
def test_a_matrix_without_a_factor_is_refused(index):
    gram = np.eye(2 * BLOCK)
    gram[index, index] = -1.0
    with pytest.raises(NumericalFailure, match="factored"):
        inverse_factor(gram)
    gram[index, index] = np.nan
    for refused in (inverse_factor, lambda matrix: whiten(matrix, matrix)):
        with pytest.raises(NumericalFailure, match="factored"):
            refused(gram)
