"""The margins for rounding of a tight figure, and the grid of its distribution, against their formulas."""

import math

import numpy as np
import pytest
from mpmath import mp, mpf

from curator_service.privacy import composition
from curator_service.privacy.composition import Part

ORDERS = 1 + np.geomspace(1e-3, 1e7, 1_000)
SAMPLE = np.arange(0, 1_000, 37)


def divergence(kind, size, alpha):
    """The Renyi divergence of a pair, to 60 digits (Mironov 2017, Table II)."""
    alpha, size = mpf(float(alpha)), mpf(size)
    if kind == "gaussian":
        return alpha * size**2 / 2
    if kind == "laplace":
        moment = alpha / (2 * alpha - 1) * mp.exp((alpha - 1) * size)
        moment += (alpha - 1) / (2 * alpha - 1) * mp.exp(-alpha * size)
    else:
        true = 1 / (1 + mp.exp(-size))
        moment = true**alpha * (1 - true) ** (1 - alpha) + (1 - true) ** alpha * true ** (1 - alpha)
    return mp.log(moment) / (alpha - 1)


@pytest.mark.parametrize("size", [0.000001, 0.001, 0.2, 1.0, 7.0])
@pytest.mark.parametrize("kind", ["gaussian", "laplace", "pure"])
def test_a_divergence_is_the_exact_one_and_its_margin_for_rounding(kind, size):
    """The margin is three times what doubles err by, or more: 1e-12, or 1e-15 for 10 and each log that alpha scales.

    A randomized response of epsilon 1e-6 had no margin for its logarithms, which are of about a half.
    """
    figures = composition._renyi(Part(kind, size))
    assert len(figures) == len(ORDERS)
    for alpha, figure in zip(ORDERS[SAMPLE], figures[SAMPLE], strict=True):
        with mp.workdps(60):
            exact = divergence(kind, size, alpha)
            above = float(mpf(float(figure)) - exact)
        if kind == "gaussian":
            margin = 1e-12 * float(exact)
        else:
            margin = 1e-15 * (10 + alpha * (size + (kind == "pure"))) / (alpha - 1)
        if kind == "gaussian" or figure != size:
            assert 2 / 3 * margin <= above + 1e-16 * float(exact)
            assert above <= 4 / 3 * margin + 3e-16 * float(exact)
        else:  # it is never more than epsilon
            assert float(exact) <= size <= float(exact) + 4 / 3 * margin


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize(
    "parts",
    [
        [Part("gaussian", 0.5, 3)],
        [Part("gaussian", 30.0)],
        [Part("laplace", 0.4, 6), Part("pure", 0.4, 5)],
        [Part("gaussian", 0.2), Part("laplace", 0.1, 30)],
        [Part("pure", 2.0)],
        [Part("laplace", 0.1)],
    ],
    ids=lambda parts: " ".join(f"{part.kind}*{part.times}" for part in parts),
)
def test_the_tight_figure_is_the_least_of_the_sum_and_both_bounds(parts, delta):
    sum_ = math.fsum(part.size * part.times for part in parts)
    if any(part.kind == "gaussian" for part in parts):
        sum_ = math.inf
    least = min(sum_, composition.renyi_epsilon(parts, delta), composition.distribution_epsilon(parts, delta))
    assert composition.tight_epsilon(parts, delta) == pytest.approx(least, rel=1e-14)


def test_a_distribution_is_used_from_100_times_its_error_on_and_up_to_losses_of_300():
    few, many = [Part("pure", 0.5, 2)], [Part("pure", 0.001, 20_000)]
    assert composition.distribution_epsilon(few, 0.999e-9) == math.inf
    assert math.isfinite(composition.distribution_epsilon(few, 1.001e-9))
    assert composition.distribution_epsilon(many, 1.9999e-9) == math.inf
    assert math.isfinite(composition.distribution_epsilon(many, 2.0001e-9))
    assert math.isfinite(composition.distribution_epsilon([Part("pure", 300.0)], 1e-6))
    assert composition.distribution_epsilon([Part("pure", 300.001)], 1e-6) == math.inf


LAWS = {
    "gaussian": lambda size: (size**2 / 2, size),
    "laplace": lambda size: (size * math.tanh(size / 2), size),
    "pure": lambda size: (size * math.tanh(size / 2), size),
}


@pytest.mark.parametrize("times", [1, 4, 900])
@pytest.mark.parametrize("size", [0.05, 0.5, 3.0, 40.0])
@pytest.mark.parametrize("kind", LAWS)
def test_a_distribution_spans_its_mean_and_ten_deviations_on_both_sides_or_all_of_its_losses(kind, size, times):
    """A loss of randomized response is +-size, with the mean size tanh(size / 2); its square's mean is size^2."""
    mean, deviation = LAWS[kind](size)
    width = 2 * times * mean + 2 * 10 * deviation * math.sqrt(times)
    all_losses = math.inf if kind == "gaussian" else 2 * times * size
    assert composition._span(Part(kind, size, times)) == pytest.approx(min(width, all_losses), rel=1e-12)


@pytest.mark.parametrize(
    ("part", "step"),
    [
        (Part("pure", 0.5), 0.025),
        (Part("laplace", 4.0, 7), 0.2),
        (Part("gaussian", 0.5), 0.005),
        (Part("gaussian", 1.0), 0.01),
        (Part("gaussian", 3.0, 2), 0.01),
    ],
)
def test_the_step_is_a_twentieth_of_a_loss_or_a_hundredth_of_a_deviation(part, step):
    assert composition._step(part) == pytest.approx(step, rel=1e-12)


@pytest.mark.parametrize(
    ("part", "step", "cut"),
    [
        (Part("pure", 2.0, 195), 0.1, 0.0),  # 195 * 42 cells are 8,190
        (Part("pure", 2.0, 196), 0.1, 1e-13),
        (Part("laplace", 1.0, 256), 1 / 15, 0.0),  # 256 * 32 are 8,192
        (Part("laplace", 1.0, 257), 1 / 15, 1e-13),
        (Part("gaussian", 1.0, 2), 0.05, 1e-13),  # its losses have no end
    ],
)
def test_tails_are_cut_off_from_8192_cells_on_and_count_as_an_infinite_loss(part, step, cut):
    assert composition._cut(part, step) == cut


def test_a_distribution_of_many_releases_has_200_000_cells_at_most(monkeypatch):
    """The step grows with the span of all parts, and is refused where it exceeds a part."""
    steps = []

    class Recorded:
        def __init__(self, part, step):
            self.part, self.cuts = part, []
            steps.append(step)

        def self_compose(self, times, cut):
            steps.append((times, cut))
            return self

        def compose(self, other):
            steps.append((self.part.kind, other.part.kind))
            return self

        def get_epsilon_for_delta(self, delta):
            steps.append(delta)
            return 2.0

    monkeypatch.setattr(composition, "_distribution", Recorded)
    parts = [Part("pure", 0.5, 90_000), Part("gaussian", 1.0)]
    span = 2 * 90_000 * 0.5 * math.tanh(0.25) + 20 * 0.5 * 300 + 1 + 20
    assert composition.distribution_epsilon(parts, 1e-3) == 2.0 * (1 + 1e-12)
    step = pytest.approx(span / 200_000, rel=1e-12)
    error = 1e-11 * 90_001 / 10_000
    assert steps == [step, (90_000, 1e-13), step, ("pure", "gaussian"), pytest.approx(1e-3 - error, rel=1e-15)]
    steps.clear()
    assert composition.distribution_epsilon([Part("gaussian", 1.0)], 1e-3) == 2.0 * (1 + 1e-12)
    assert steps == [0.01, 1e-3 - 1e-12]  # 1e-9 of delta
    steps.clear()
    composition.distribution_epsilon([Part("pure", 0.5, 2), Part("laplace", 0.1)], 1e-3)
    assert steps == [0.005, (2, 0.0), 0.005, ("pure", "laplace"), 1e-3 - 1e-11]


@pytest.mark.parametrize("size", [0.01, 1.0, 20.0, 100.25, 299.0])
@pytest.mark.parametrize("share", [1 / 20, 1 / 7.3])
def test_the_hockey_stick_of_randomized_response_is_exact_on_the_grid(monkeypatch, size, share):
    """P - e^epsilon Q of the two answers, where positive, at the points beside both losses."""
    from dp_accounting.pld import pld_pmf

    seen = []

    def create(step, grid, deltas):
        seen.append((step, grid, deltas))
        return original(step, grid, deltas)

    original = pld_pmf.create_pmf_pessimistic_connect_dots
    monkeypatch.setattr(pld_pmf, "create_pmf_pessimistic_connect_dots", create)
    composition._randomized_response(size, size * share)
    ((step, grid, deltas),) = seen
    assert step == size * share
    ends = [-size / step, size / step]
    assert list(grid) == sorted({f(end) for end in ends for f in (math.floor, math.ceil)})
    with mp.workdps(60):
        true, lie = 1 / (1 + mp.exp(-mpf(size))), 1 / (1 + mp.exp(mpf(size)))
        for point, delta in zip(grid, deltas, strict=True):
            much = mp.exp(mpf(int(point)) * mpf(step))
            exact = max(true - much * lie, 0) + max(lie - much * true, 0)
            assert abs(float(mpf(float(delta)) - exact)) <= 2.0**-50 * max(1.0, size)
            assert 0 <= delta <= 1
