"""Training and the losses, against slow textbook forms."""

import math

import numpy as np
import pytest
from scipy import optimize

from blindopt import wire
from blindopt.errors import Invalid, TuningImpossible
from curator_service.datasets.scaling import ScaledRows
from curator_service.tuning.scoring import logistic
from curator_service.tuning.scoring.logistic import DISTANCE_MAX, Records, gradient, in_unit_ball, loss_of, train

LOSSES = [("zero_one", 1.0), ("ramp", 1.0), ("clipped_logistic", 0.7), ("clipped_logistic", 3.0)]


def _records(n=60, d=3, seed=1):
    rng = np.random.default_rng(seed)
    x = in_unit_ball(rng.normal(size=(n, d)))
    return Records(x, np.where(x @ np.arange(1.0, d + 1) + 0.3 * rng.normal(size=n) > 0, 1.0, -1.0))


def _objective(w, records, penalty):
    """O(w), term by term."""
    losses = [math.log1p(math.exp(-y * sum(a * b for a, b in zip(w, x, strict=True))))
              for x, y in zip(records.x.tolist(), records.y.tolist(), strict=True)]  # fmt: skip
    return penalty / 2 * sum(a * a for a in w) + sum(losses) / len(losses)


@pytest.mark.parametrize("penalty", [1e-3, 0.1, 10.0])
def test_training_finds_the_minimiser_that_a_general_optimizer_finds(penalty):
    records = _records()
    w = train(records, penalty)
    slow = optimize.minimize(
        _objective, np.zeros(3), args=(records, penalty), method="Nelder-Mead",
        options={"xatol": 1e-7, "fatol": 1e-14, "maxiter": 10_000},
    )  # fmt: skip
    assert np.linalg.norm(w - slow.x) < 1e-4 * max(1.0, np.linalg.norm(w))
    assert _objective(w, records, penalty) <= slow.fun + 1e-12


def test_the_gradient_is_that_of_the_objective():
    records, w = _records(), np.array([0.3, -1.0, 2.0])
    numeric = optimize.approx_fprime(w, _objective, 1e-7, records, 0.2)
    np.testing.assert_allclose(gradient(w, records, 0.2), numeric, atol=1e-5)


def test_weights_that_are_not_at_the_optimum_are_refused(monkeypatch):
    """The control: without its last steps, and with a trainer that stops early."""
    monkeypatch.setattr(logistic, "_polished", lambda w, records, penalty: w + 1e-7)
    with pytest.raises(TuningImpossible, match="did not reach the optimum"):
        train(_records(), 1.0)


def test_trained_weights_keep_the_norm_that_the_corrected_theorem_7_rests_on():
    """|w| <= 1/(2 lambda) for logistic loss: its gradient at 0 is at most 1/2."""
    records = _records(d=5)
    for penalty in np.geomspace(1e-3, 1e3, 13):
        assert np.linalg.norm(train(records, penalty)) <= 1 / (2 * penalty) + DISTANCE_MAX


def test_without_the_trainer_the_curator_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.linear_model", None)
    with pytest.raises(Invalid, match=r"'\.\[tuning\]'") as refused:
        logistic.check_trainer()
    assert refused.value.errors[0]["field"] == "score.kind"


# --- rows -----------------------------------------------------------------------------------------


def test_rows_lie_in_the_unit_ball_whatever_is_in_the_file():
    values = np.array([[1e308, -1e308, 1.0], [0.5, 0.25, 0.0], [3.0, -4.0, 0.4], [0.0, 0.0, 0.6]])
    features = [wire.Feature(column=c, lower=-2.0, upper=2.0, scale=1.0) for c in "ab"]
    rows = ScaledRows(values, [0, 1], features, np.arange(4))
    records = Records.of(rows, values[:, 2], 0.5)
    norms = [math.hypot(*row) for row in records.x.tolist()]
    assert max(norms) <= 1 + 1e-15
    np.testing.assert_allclose(records.x[1], [0.5, 0.25])  # inside: as it is
    np.testing.assert_allclose(records.x[2], [math.sqrt(0.5), -math.sqrt(0.5)])  # clipped to (2, -2), then shortened
    assert records.y.tolist() == [1.0, -1.0, -1.0, 1.0]
    assert "1.0" not in repr(records)


# --- losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "clip"), LOSSES)
def test_every_loss_lies_in_its_range_and_falls_with_the_margin(name, clip):
    loss, margins = loss_of(name, clip), np.concatenate([np.linspace(-5, 5, 2001), [-1e300, 1e300]])
    values = loss(margins)
    assert values.min() >= 0
    assert values.max() <= loss.bound == (clip if name == "clipped_logistic" else 1.0)
    assert values.max() == loss.bound  # the bound is no larger than it must be
    assert (np.diff(loss(np.sort(margins))) <= 0).all()


@pytest.mark.parametrize(("name", "clip"), LOSSES[1:])
def test_the_lipschitz_constant_is_the_steepest_slope_and_no_more(name, clip):
    loss, margins = loss_of(name, clip), np.linspace(-6, 6, 400_001)
    slopes = np.abs(np.diff(loss(margins)) / np.diff(margins))
    assert slopes.max() <= loss.lipschitz * (1 + 1e-6)
    assert slopes.max() > 0.99 * loss.lipschitz


def test_losses_by_hand():
    assert loss_of("zero_one", 1.0)(np.array([-1.0, 0.0, 1e-9])).tolist() == [1, 1, 0]
    assert loss_of("ramp", 1.0)(np.array([-1.0, 0.0, 0.5, 1.0, 2.0])).tolist() == [1, 0.5, 0.25, 0, 0]
    value = loss_of("clipped_logistic", 2.0)(np.array([0.0, 1.0, -10.0]))
    np.testing.assert_allclose(value, [math.log(2), math.log(1 + math.exp(-1)), 2.0])
    assert loss_of("zero_one", 1.0).lipschitz is None


@pytest.mark.parametrize(("name", "clip"), LOSSES)
def test_replacing_a_record_moves_the_mean_by_at_most_g_over_m(name, clip):
    """Adversarial neighbours: the worst pair of records comes close to the bound for the 0/1 loss, and reaches none."""
    rng, loss, m = np.random.default_rng(3), loss_of(name, clip), 20
    worst = 0.0
    for _ in range(300):
        margins = rng.normal(scale=3, size=m)
        other = margins.copy()
        other[rng.integers(m)] = rng.choice([-1e6, 1e6, rng.normal()])
        worst = max(worst, abs(loss(margins).mean() - loss(other).mean()))
    assert worst <= loss.bound / m * (1 + 1e-9)
    assert worst > 0.9 * loss.bound / m  # the control: half the sensitivity would be exceeded
