"""How many trials would tell: against simulated attackers, and against counting one by one."""

from math import inf

import numpy as np
import pytest
from scipy import stats

from curator_service.releases.attacks.column_space import about, best_share, to_contradict, to_differ_from_a_coin
from curator_service.releases.attacks.intervals import epsilon_bound
from tests.curator_service.releases.attacks.attack_data import planar

DELTA = 1e-5


@pytest.mark.parametrize("d", [1, 2, 3, 7])
@pytest.mark.parametrize("distance", [0.3, 1.0, 4.0])
def test_the_best_attacker_is_right_as_often_as_with_noise_that_is_drawn(d, distance):
    """The oracle: 100,000 draws, the nearer mean; a tenth of the distance more would be told apart from 1.0 on."""
    rng, mean = np.random.default_rng(d), np.zeros(d)
    mean[0] = distance
    noise = planar(rng, (100_000, d), 1.0)
    right = int(np.sum(np.linalg.norm(noise, axis=1) < np.linalg.norm(noise - mean, axis=1)))
    assert stats.binomtest(right, len(noise), best_share("planar_laplace", distance, d)).pvalue > 1e-6
    if distance == 1.0:
        assert stats.binomtest(right, len(noise), best_share("planar_laplace", 1.2, d)).pvalue < 1e-6
    assert best_share("gaussian", distance, d) == pytest.approx(stats.norm.cdf(distance / 2))


def told_from_a_coin(right, n, times=300):
    """How often the record of a simulated attacker who is right this often implies any epsilon."""
    rng = np.random.default_rng(n)
    hits, alarms = rng.binomial(n, right, times), rng.binomial(n, 1 - right, times)
    return np.mean([epsilon_bound(int(h), n, int(a), n, DELTA) > 0 for h, a in zip(hits, alarms, strict=True)])


@pytest.mark.parametrize("right", [0.52, 0.6, 0.7, 0.9])
def test_so_many_trials_tell_most_attackers_from_a_coin_and_a_quarter_of_them_do_not(right):
    needed = int(to_differ_from_a_coin(right, DELTA))
    assert told_from_a_coin(right, needed) > 0.85
    assert told_from_a_coin(right, needed // 4) < 0.6
    assert told_from_a_coin(0.5, needed) < 0.05


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 5.0])
@pytest.mark.parametrize("alpha", [0.05, 1e-6])
def test_one_trial_fewer_contradicts_nothing(epsilon, alpha):
    needed = int(to_contradict(epsilon, DELTA, alpha))
    assert epsilon_bound(needed, needed, 0, needed, DELTA, alpha) > epsilon
    fewer = needed - 1
    assert epsilon_bound(fewer, fewer, 0, fewer, DELTA, alpha) <= epsilon


def test_fifty_runs_refute_1_and_some_2300_refute_5():
    """As the published projection was refuted, at an error of one in a million."""
    assert to_contradict(1.0, DELTA, 1e-6) <= 50
    assert 2_000 < to_contradict(5.0, DELTA, 1e-6) < 2_300


def test_what_no_number_of_trials_would_tell_has_none():
    assert to_differ_from_a_coin(0.5, DELTA) == to_contradict(1000.0, DELTA) == inf
    assert about(inf).startswith("more than")
    assert (about(99), about(100), about(1_001)) == ("about 99", "about 100", "about 1,100")
