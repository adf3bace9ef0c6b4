"""Candidates with columns of text, categories and truth values; columns that say nothing, and candidates twice."""

import numpy as np
import pytest

import blindopt as bo
from blindopt.errors import Invalid, NumericalFailure
from blindopt.optimizer.columns import numbers_of

SOLVENTS = ["water", "ethanol", "toluene", "water", "ethanol"]


def test_each_value_of_text_is_a_column_and_two_values_are_one():
    rows = [[solvent, number, number % 2 == 0] for number, solvent in enumerate(SOLVENTS)]
    matrix, reasons = numbers_of(rows)
    one_hot = [[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    expected = [[*levels, number, number % 2 == 0] for number, levels in enumerate(one_hot)]
    np.testing.assert_array_equal(matrix, np.array(expected, dtype=np.float64))
    assert reasons == ["Column 0 has 3 values, which are 3 columns of 0 and 1."]
    two, _ = numbers_of([["a"], ["b"], ["a"]])
    np.testing.assert_array_equal(two, [[0.0], [1.0], [0.0]])


def test_columns_of_a_frame_are_read_by_their_kind():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"solvent": SOLVENTS, "t": range(5), "stirred": [True, False, True, True, False]})
    frame["lot"] = pd.Categorical([7, 8, 9, 7, 8])  # numbers that are names
    matrix, reasons = numbers_of(frame)
    assert matrix.shape == (5, 3 + 1 + 1 + 3)
    assert [reason.split()[1] for reason in reasons] == ["solvent", "lot"]
    optimizer = bo.Optimizer(frame, seed=1, iterations=3)
    assert optimizer.plan.reasons[-2:] == reasons
    np.testing.assert_array_equal(numbers_of(frame[["t", "stirred"]])[0], frame[["t", "stirred"]].to_numpy(float))


def test_a_search_over_text_finds_the_best_value():
    """Columns of 0 and 1 carry what the text says: with the values shuffled they carry nothing."""
    rng = np.random.default_rng(3)
    names = np.array([f"metal {number}" for number in range(12)])
    which, t = rng.integers(12, size=600), rng.uniform(size=600)
    y = rng.permutation(12.0 * np.arange(12) / 12)[which] - (t - 0.4) ** 2

    def best_of(text, seed):
        optimizer = bo.Optimizer([[name, x] for name, x in zip(text, t, strict=True)], seed=seed, iterations=15)
        while (proposal := optimizer.propose()) is not None:
            optimizer.tell(proposal.row, y[proposal.row])
        return max(outcome.y for outcome in optimizer.history)

    right = [best_of(names[which], seed) for seed in range(3)]
    shuffled = [best_of(rng.permutation(names[which]), seed) for seed in range(3)]
    assert np.mean(right) > np.mean(shuffled)
    assert np.mean(right) > y.max() - 1.1


@pytest.mark.parametrize(
    ("candidates", "error", "what"),
    [
        ([[f"id {number}"] for number in range(51)], Invalid, "column 0 has 51"),
        ([["a", 1.0], [None, 2.0]], Invalid, "column 0 has gaps"),
        ([["a", 1.0], ["b", np.inf]], NumericalFailure, "finite"),
        ([["a"]] * 0, Invalid, "matrix"),
        ("abc", Invalid, "matrix"),
    ],
)
def test_what_cannot_be_a_column_is_refused_by_its_name(candidates, error, what):
    with pytest.raises(error, match=what):
        bo.Optimizer(candidates)


def test_candidates_twice_and_columns_without_a_difference_change_no_search():
    rng = np.random.default_rng(5)
    z = rng.uniform(size=(40, 2))
    y = -((z - 0.5) ** 2).sum(axis=1)
    with_more = np.column_stack([np.vstack([z, z]), np.full(80, 7.0)])
    optimizer = bo.Optimizer(with_more, seed=2, iterations=12)
    while (proposal := optimizer.propose()) is not None:
        optimizer.tell(proposal.row, y[proposal.row % 40])
    assert y[optimizer.recommendation().row % 40] >= np.sort(y)[-3]


def test_a_frame_with_two_columns_of_one_name_or_with_gaps_in_text_is_refused_in_words():
    pd = pytest.importorskip("pandas")
    with pytest.raises(bo.Invalid, match="two columns of one name: a"):
        bo.Optimizer(pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], columns=["a", "a"]))
    with pytest.raises(bo.Invalid, match="column c has gaps"):
        bo.Optimizer(pd.DataFrame({"c": pd.array(["x", None, "y"], dtype="string")}))


@pytest.mark.parametrize("observations", [None, 5, "12", {"row": 1}])
def test_observations_that_are_no_list_are_refused_in_words(observations):
    with pytest.raises(bo.Invalid, match="must be a list"):
        bo.Optimizer(np.arange(6.0)[:, None], observations=observations)


def test_outcomes_whose_variance_no_double_holds_and_one_candidate_are_searched_without_a_warning(recwarn):
    optimizer = bo.Optimizer(np.random.default_rng(1).uniform(size=(40, 2)), seed=1, iterations=12)
    for _ in range(15):
        row = optimizer.ask()
        optimizer.tell(row, 1e300 * float(np.sin(row)))
    assert optimizer.recommendation().row >= 0
    alone = bo.Optimizer(np.ones((3, 2)), seed=1, iterations=6)
    for _ in range(6):
        alone.tell(alone.ask(), 1.0)
    assert alone.recommendation().row in range(3)
    assert not [warning for warning in recwarn if warning.category is RuntimeWarning]


@pytest.mark.parametrize("name", ["Unnamed: 0", "__index_level_0__"])
def test_a_column_that_was_an_index_is_refused_and_the_index_of_a_frame_is_no_column(name):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"x": [0.0, 0.5, 1.0]}, index=[17, 4, 99])
    assert bo.Optimizer(frame, seed=1).candidates.tolist() == [[0.0], [0.5], [1.0]]
    with pytest.raises(bo.Invalid, match=f"column {name} is the index of a frame that was saved"):
        bo.Optimizer(frame.assign(**{name: frame.index}))


def search_of(variance, **settings):
    optimizer = bo.Optimizer(np.arange(6.0)[:, None], seed=1, iterations=20, **settings)
    while (proposal := optimizer.propose()) is not None:
        optimizer.tell(proposal.row, float(proposal.row), variance=variance)
    return optimizer


def test_a_search_whose_outcomes_are_exact_ends_when_all_candidates_have_one():
    """The control: outcomes of unknown noise are queried again, and exact ones if the caller says so."""
    exact = search_of(0.0)
    assert sorted(outcome.row for outcome in exact.history) == list(range(6))
    with pytest.raises(bo.LoopEnded, match="exhausted"):
        exact.ask()
    assert len(search_of(None).history) > 6
    assert len(search_of(0.0, repeats="algorithm").history) > 6
