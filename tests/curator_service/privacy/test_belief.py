"""What the dial shows of beliefs, against oracles that know nothing of its formulas."""

import math
import re
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy import integrate, stats

from blindopt import wire
from curator_service.privacy import guarantees
from tests.curator_service.releases.attacks.attack_data import planar


@pytest.mark.parametrize("epsilon", ["0.1", "1", "3", "10"])
def test_the_surest_belief_is_that_of_the_best_guess_from_randomized_response(epsilon):
    """Randomized response attains every ratio that epsilon allows: its posterior by Bayes is the bound."""
    truth = math.exp(float(epsilon)) / (1 + math.exp(float(epsilon)))
    posterior = 0.5 * truth / (0.5 * truth + 0.5 * (1 - truth))
    assert guarantees.surest(Decimal(epsilon)) == pytest.approx(posterior, rel=1e-12)


def test_the_ranges_are_the_named_ones():
    said = {e: guarantees.strength(Decimal(e)) for e in ("0.1", "1", "1.01", "3", "3.5", "6", "6.01", "100")}
    assert list(said.values()) == [
        "strong", "strong", "moderate", "moderate", "weak", "weak", "nearly none", "nearly none",
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [1, 3])
def test_gaussian_values_that_far_apart_are_told_rightly_three_times_in_four(rows):
    """The oracle: the total variation of the two laws, by quadrature; one coordinate of each row moves."""
    sd = 0.7
    v = guarantees.confused_within(wire.NoiseLaw(family="gaussian", sd=sd), 4, rows)
    moved = v * math.sqrt(rows)  # along the direction in which all rows move together
    first, second = stats.norm(0, sd), stats.norm(moved, sd)
    apart, _ = integrate.quad(lambda z: abs(first.pdf(z) - second.pdf(z)) / 2, -8, 8 + moved, limit=200)
    assert (1 + apart) / 2 == pytest.approx(0.75, abs=1e-6)


@pytest.mark.parametrize("d", [1, 2, 6])
def test_planar_values_that_far_apart_are_told_rightly_no_more_often(d):
    """The oracle: the best guess, by the true densities, on noise drawn by its polar form."""
    rng, sd, runs = np.random.default_rng(d), 1.3, 200_000
    v = guarantees.confused_within(wire.NoiseLaw(family="planar_laplace", sd=sd), d)
    z, far = planar(rng, (runs, d), sd), np.zeros(d)

    def right(by):
        far[0] = by
        return np.mean(np.linalg.norm(z, axis=1) < np.linalg.norm(z - far, axis=1))

    error = 4 * math.sqrt(0.25 / runs)
    assert right(v) <= 0.75 + error
    assert right(10 * v) > 0.75 + error  # the control
    assert guarantees.confused_within(wire.NoiseLaw(family="planar_laplace", sd=sd), d, 2) == pytest.approx(v / 2)


def test_planar_values_of_a_slope_of_1_are_confused_within_log_3():
    """Three features and a standard deviation of 2 have the slope sqrt(4) / 2; odds of 3 to 1 are three in four."""
    law = wire.NoiseLaw(family="planar_laplace", sd=2.0)
    assert guarantees.confused_within(law, 3) == pytest.approx(math.log(3), rel=1e-12)
    assert guarantees.confused_within(law, 8, 2) == pytest.approx(math.log(3) / 3, rel=1e-12)


def test_noise_of_no_known_law_confuses_nothing_that_is_proved():
    for law in (wire.NoiseLaw(family="none"), wire.NoiseLaw(family="gaussian_projection", sd=1.0)):
        assert guarantees.confused_within(law, 20) is None


@pytest.mark.parametrize("epsilon", ["0.000001", "0.1", "0.5", "1", "1.098612288668", "2", "3.7", "6", "6.9"])
def test_the_sentence_never_says_less_than_the_surest_belief(epsilon):
    """It was rounded to the nearest percentage of three digits: "at most 73.1 %" for a belief of 73.106 %."""
    release = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon=epsilon)
    stated = re.search(r"at most ([\d.]+) % sure", guarantees.belief(release))[1]
    with localcontext(prec=40):
        exact = 100 / (1 + (-Decimal(epsilon)).exp())
        assert exact <= Decimal(stated) < exact + Decimal("0.1")


def test_the_sentence_says_what_is_proved_and_no_more():
    pure = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1")
    said = (
        "From the release alone, someone undecided (50/50) between two values that differ by the hidden change "
        "becomes at most 73.2 % sure"
    )
    assert guarantees.belief(pure) == f"{said}. Answers add to this."
    spread = pure.model_copy(update={"delta": 1e-6})
    assert guarantees.belief(spread) == f"{said}, except for events that delta allows. Answers add to this."
    assert "practically certain" in guarantees.belief(pure.model_copy(update={"epsilon": "20"}))
    refuted = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1", delta=1e-6, r=1, acknowledge_refuted=True)
    assert guarantees.belief(refuted) is None
    cells = wire.GridCells(kind="grid", parts=[2])
    groups = wire.GroupsRelease(mechanism="groups", epsilon="0.5", cells=cells)
    allowed = "From the release and all answers that the cap on a record allows"
    undecided = "someone undecided (50/50) between any two records becomes at most 73.2 % sure."
    assert guarantees.belief(groups, record="1") == f"{allowed}, {undecided}"
    assert guarantees.belief(wire.IdentityRelease(mechanism="identity")) is None
