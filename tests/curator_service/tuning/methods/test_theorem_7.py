"""Theorem 7 of Kusner et al. (2015): where the printed bound is exceeded, and that the corrected one is not."""

import warnings

import numpy as np
import pytest

from blindopt.errors import TuningImpossible
from blindopt.wire import Kusner3, TuningBudget, TuningSearch, TuningSpec
from curator_service.tuning.methods import Facts, Problem, plan_of
from curator_service.tuning.methods.constants import lipschitz_sensitivity

GRID = np.array([[1.0], [2.0], [5.0]])


def ramp(margins):
    """A loss of one record from y w.x: Lipschitz with L = 1/2, from 0 to g* = 1."""
    return np.clip((1 - margins) / 2, 0, 1)


# --- the counter-example --------------------------------------------------------------------------


def test_hinge_loss_on_one_point_breaks_the_printed_bound_and_meets_the_corrected_one():
    """All training records are (e, +1), l = 2: l/2 w^2 + max(0, 1 - w) is least at w = 1/2."""
    grid = np.linspace(-2, 2, 400_001)
    w = grid[(grid**2 + np.maximum(0, 1 - grid)).argmin()]
    assert w == pytest.approx(0.5, abs=1e-5)
    m = 50
    moved = (ramp(-0.5) - ramp(0.5)) / m  # one record (e, +1) is replaced by (e, -1)
    assert moved == pytest.approx(0.010)
    assert lipschitz_sensitivity(0.5, m, 1.0, (2.0, 2.0), "paper") == pytest.approx(0.005)
    assert lipschitz_sensitivity(0.5, m, 1.0, (2.0, 2.0)) == pytest.approx(moved)


# --- breast cancer --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records():
    """x with |x| <= 1 and y of -1 or 1: 300 public training records, the rest validation."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    x = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    x /= np.maximum(1, np.linalg.norm(x, axis=1))[:, None]
    order = np.random.default_rng(0).permutation(len(x))
    y = np.where(data.target == 1, 1.0, -1.0)
    return x[order[:300]], y[order[:300]], x[order[300:]], y[order[300:]]


def trained(loss, penalty, x, y):
    """Least of penalty/2 |w|^2 + mean loss, without intercept."""
    if loss == "hinge":
        from sklearn.svm import LinearSVC

        model = LinearSVC(loss="hinge", C=1 / (penalty * len(x)), fit_intercept=False, tol=1e-8, max_iter=1_000_000)
    else:
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(C=1 / (penalty * len(x)), fit_intercept=False, tol=1e-10, max_iter=10_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(x, y).coef_[0]


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_breast_cancer_breaks_the_printed_bound_with_hinge_loss_alone(records, loss):
    """Every replacement of one validation record by another, either label, at equal penalties of 1 and more."""
    x, y, others, _ = records
    m, ratios, corrected = 200, [], []
    for penalty in (1.0, 1.5, 2.0, 4.0, 8.0):
        w = trained(loss, penalty, x, y)
        assert np.linalg.norm(w) <= (1 if loss == "hinge" else 0.5) / penalty * (1 + 1e-6)
        margins = others @ w
        scores = ramp(np.concatenate([margins, -margins]))
        moved = (scores.max() - scores.min()) / m
        ratios.append(moved / lipschitz_sensitivity(0.5, m, 1.0, (penalty, penalty), "paper"))
        corrected.append(moved / lipschitz_sensitivity(0.5, m, 1.0, (penalty, penalty)))
    assert max(corrected) <= 1
    if loss == "hinge":
        assert 1.01 < max(ratios) < 1.8  # training errs by one in a million
    else:
        assert max(ratios) <= 1


# --- the plan -------------------------------------------------------------------------------------


def problem(**more):
    facts = {"lipschitz": 0.5, "lambda_min": 2.0, "lambda_max": 2.0, "training_loss": "hinge"} | more
    return Problem(GRID, 50, 0.0, 1.0, "scored", Facts(**facts))


def plan(form, **more):
    method = Kusner3(name="kusner_3", search=TuningSearch(lengthscale=1.0), form=form)
    return plan_of(TuningSpec(method=method, budget=TuningBudget(epsilon="1")), problem(**more))


def test_the_printed_form_is_charged_for_what_its_noise_keeps():
    assert float(plan("corrected").draws.shares.total.epsilon) == 1
    literal = plan("paper")
    assert literal.draws.noise.value_sensitivity == pytest.approx(0.005, rel=1e-6)
    assert float(literal.draws.shares.total.epsilon) == pytest.approx(2, rel=1e-6)
    assert "As published" in literal.guarantee
    assert any("Theorem 7" in caution.message for caution in literal.cautions)
    assert float(plan("paper", training_loss="logistic").draws.shares.total.epsilon) == 1


@pytest.mark.parametrize("missing", ["lipschitz", "lambda_min", "lambda_max"])
def test_nothing_is_assumed_that_is_not_stated(missing):
    with pytest.raises(TuningImpossible, match="public"):
        plan("corrected", **{missing: None})


def test_penalties_must_be_positive_and_ordered():
    for low, high in ((0.0, 1.0), (3.0, 2.0)):
        with pytest.raises(TuningImpossible, match="lambda_min <= lambda_max"):
            plan("corrected", lambda_min=low, lambda_max=high)


# --- how much noise it takes ----------------------------------------------------------------------

LEVELS = {(0.001, 1.0): (347, 0.70, 0.0035), (0.1, 1.0): (3.2, 0.43, 0.0035), (1.0, 10.0): (0.32, 0.08, 0.0009)}
"""By penalties, median error of v~ at epsilon 1 and m = 200: Algorithm 3, public weights, the whole grid."""


@pytest.mark.parametrize("ends", LEVELS)
def test_errors_on_breast_cancer_are_no_larger_than_measured_before(records, ends):
    """Logistic training, ramp loss, within a factor of 1.5 of the levels; the median of |Laplace| is ln 2 scales."""
    x, y, _, _ = records
    weights = np.array([trained("logistic", penalty, x, y) for penalty in np.geomspace(*ends, 20)])
    facts = Facts(
        weight_norm_max=float(np.linalg.norm(weights, axis=1).max()),
        weight_distance_max=float(max(np.linalg.norm(a - b) for a in weights for b in weights)),
        lipschitz=0.5,
        lambda_min=ends[0],
        lambda_max=ends[1],
        training_loss="logistic",
    )
    tuned = Problem(np.geomspace(*ends, 20)[:, None], 200, -1.0, 0.0, "scored", facts)
    search = {"lengthscale": 1.0}
    methods = (
        {"name": "kusner_3", "search": search},
        {"name": "public_weights", "search": search},
        {"name": "grid_exponential", "use_weights": True},
    )
    for method, level in zip(methods, LEVELS[ends], strict=True):
        budget = {"epsilon": "1", "index_share": "0"}
        made = plan_of(TuningSpec.model_validate({"method": method, "budget": budget}), tuned)
        assert level / 1.5 < made.draws.noise.value_scale * np.log(2) < level * 1.5, method
