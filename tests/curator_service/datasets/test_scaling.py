"""Scaling by public bounds: the formula, every row once, and no two rows further apart than Delta allows."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from blindopt.formats import npy_files
from blindopt.wire import Feature
from curator_service.datasets.scaling import BLOCK_ROWS, ScaledRows

RANGE = st.floats(-1e50, 1e50, allow_nan=False)


def scaled(values, features, *, columns=None, order=None) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    columns = list(range(values.shape[1])) if columns is None else columns
    order = np.arange(len(values)) if order is None else np.asarray(order)
    return np.concatenate([block for _, block in ScaledRows(values, columns, features, order).blocks()])


def test_a_value_is_clipped_centred_and_divided_by_hand():
    """Age in [20, 80] in units of 60 years; income in [0, 1000] in units of 250."""
    features = [
        Feature(column="age", lower=20.0, upper=80.0),
        Feature(column="income", lower=0.0, upper=1e3, scale=250.0),
    ]
    got = scaled([[50.0, 500.0], [80.0, 1000.0], [19.0, -7.0], [1e9, 1e9], [35.0, 625.0]], features)
    np.testing.assert_allclose(got, [[0, 0], [0.5, 2], [-0.5, -2], [0.5, 2], [-0.25, 0.5]], rtol=1e-15)


def test_features_are_taken_from_their_columns_and_rows_in_their_order():
    values = np.arange(12.0).reshape(4, 3)
    features = [
        Feature(column="c", lower=0.0, upper=100.0, scale=1.0),
        Feature(column="a", lower=0.0, upper=10.0, scale=1.0),
    ]
    got = scaled(values, features, columns=[2, 0], order=[3, 0, 2, 1])
    np.testing.assert_array_equal(got, [[11 - 50, 9 - 5], [2 - 50, 0 - 5], [8 - 50, 6 - 5], [5 - 50, 3 - 5]])


@pytest.mark.parametrize("n", [1, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS, 3 * BLOCK_ROWS + 17])
def test_blocks_cover_every_row_once_in_order(n):
    order = np.random.default_rng(n).permutation(n)
    rows = ScaledRows(
        np.arange(float(n)).reshape(n, 1), [0], [Feature(column="a", lower=-1.0, upper=2e6, scale=1.0)], order
    )
    assert (rows.n, rows.d) == (n, 1)
    out, end = np.full(n, np.nan), 0
    for index, block in rows.blocks():
        assert index.start == end
        assert block.shape == (index.stop - index.start, 1)
        assert len(block) <= BLOCK_ROWS
        out[index], end = block[:, 0], index.stop
    assert end == n
    np.testing.assert_array_equal(out, order - (2e6 - 1.0) / 2)


def test_a_block_is_a_copy_that_a_mechanism_may_change():
    values = np.ones((3, 1))
    rows = ScaledRows(values, [0], [Feature(column="a", lower=0.0, upper=4.0)], np.arange(3))
    for _, block in rows.blocks():
        block[:] = 99.0
    np.testing.assert_array_equal(values, 1.0)
    np.testing.assert_array_equal(next(rows.blocks())[1], -0.25)


@st.composite
def features(draw):
    lower, upper = sorted((draw(RANGE), draw(RANGE)))
    assume(lower < upper)
    return Feature(column="a", lower=lower, upper=upper, scale=draw(st.none() | st.floats(1e-50, 1e50)))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_scaling_moves_no_two_values_further_apart(data):
    """1-Lipschitz from raw to scaled units, in and outside the bounds, but for the rounding of doubles."""
    feature = data.draw(features())
    a, b = (data.draw(st.floats(allow_nan=False, allow_infinity=False)) for _ in range(2))
    (first,), (second,) = scaled([[a], [b]], [feature])
    clipped = np.clip([a, b], feature.lower, feature.upper)
    apart = abs(clipped[0] - clipped[1]) / feature.unit
    rounding = 4 * np.finfo(float).eps * (abs(feature.lower) + abs(feature.upper)) / feature.unit
    assert abs(first - second) <= apart * (1 + 1e-12) + rounding
    with np.errstate(over="ignore"):
        assert apart <= abs(np.float64(a) - b) / feature.unit * (1 + 1e-12) + rounding


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.floats(-1e3, 1e3),
    st.floats(1e-3, 1e3),
    st.floats(0.1, 100),
    st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=9),
)
def test_a_row_of_ordinary_units_moves_by_no_more_than_it_did(lower, width, unit, cells):
    """The Euclidean distance of two rows, which is what Delta speaks of."""
    d = len(cells) // 2
    feature = Feature(column="a", lower=lower, upper=lower + width, scale=unit)
    x, y = np.array(cells[:d]), np.array(cells[-d:])
    got = scaled([x, y], [feature] * d)
    assert np.linalg.norm(got[0] - got[1]) <= np.linalg.norm(x - y) / unit * (1 + 1e-9) + 1e-9


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    RANGE,
    st.floats(0, 1e100, exclude_min=True),
    st.none() | st.floats(0, 1e100, exclude_min=True),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_whatever_feature_the_wire_takes_scales_to_finite_numbers(lower, width, scale, value):
    """Bounds and scale are read from a request: what could overflow is refused there."""
    try:
        feature = Feature(column="a", lower=lower, upper=lower + width, scale=scale)
    except ValueError:
        return
    assert np.isfinite(scaled([[value]], [feature])).all()


def test_a_change_of_delta_units_moves_a_scaled_row_by_delta():
    """What the console tells the owner: Delta times the feature's unit, in the feature's own unit."""
    delta = 0.25
    feature = Feature(column="age", lower=20.0, upper=80.0)
    got = scaled([[40.0], [40.0 + delta * feature.unit]], [feature])
    assert abs(got[1] - got[0])[0] == pytest.approx(delta, rel=1e-12)


def test_the_repr_shows_a_shape_alone():
    rows = ScaledRows(np.full((3, 1), 12345.0), [0], [Feature(column="a", lower=0.0, upper=1.0)], np.array([2, 0, 1]))
    assert repr(rows) == "ScaledRows(3 x 1)"


def test_blocks_are_as_large_as_they_are_asked_to_be():
    rows = ScaledRows(np.zeros((5, 1)), [0], [Feature(column="a", lower=0.0, upper=1.0)], np.arange(5))
    assert [len(block) for _, block in rows.blocks(2)] == [2, 2, 1]


def test_a_secret_order_holds_little_of_a_mapped_file(tmp_path):
    """64 MiB, of which a block of rows in random order touches nearly every page."""
    n = 1 << 18
    mapped = npy_files.create(tmp_path / "x.npy", n, 32)
    mapped[:] = np.arange(float(n))[:, None]
    del mapped
    values = npy_files.load(tmp_path / "x.npy")
    order = np.random.default_rng(0).permutation(n)
    features, before = [Feature(column="a", lower=0.0, upper=float(n), scale=1.0)], _file_kib()
    _, block = next(ScaledRows(values, [3], features, order).blocks())
    np.testing.assert_array_equal(block[:, 0], order[:BLOCK_ROWS] - n / 2)
    assert _file_kib() - before < 1_000
    values[order[:BLOCK_ROWS]]
    assert _file_kib() - before > 32_000  # without the care


def _file_kib() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile"))
