"""Which of two neighbours was released? Never better than epsilon allows, and always for the published projection."""

import re
from decimal import Decimal
from math import inf

import numpy as np
import pytest
from scipy import stats

from blindopt.wire import NoiseLaw
from curator_service.releases.attacks import column_space
from curator_service.releases.attacks.column_space import about, best_share, to_contradict, to_differ_from_a_coin
from curator_service.releases.attacks.scene import HIDDEN, Public, epsilon_bound
from curator_service.releases.mechanisms.mechanism import Identity
from curator_service.releases.mechanisms.po_gp_ucb import PoGpUcb
from curator_service.releases.mechanisms.row_noise import GaussianMechanism, GaussianProjection, PlanarLaplaceMechanism
from tests.curator_service.releases.attacks.attack_data import Simulated, king_county, planar, public
from tests.scale import scaled

DELTA = 1e-5
X = king_county()[:60]


def bound_of(mechanism, public, seed=0, runs=20_000):
    rng = np.random.default_rng(seed)
    return column_space.attack(X, mechanism, public, rng, runs_of_a_row=scaled(runs), alpha=1e-6)


@pytest.mark.parametrize(("epsilon", "runs"), [("0.3", 6_000), ("1", 6_000), ("3", 8_000)])
def test_a_gaussian_release_as_it_is_drawn_never_implies_more_than_its_epsilon(epsilon, runs):
    """What a bound of 1e-6 implies lies far below: 0, 0.04 and 0.76, with standard deviations of 0.1 at most."""
    mechanism = GaussianMechanism(Decimal(epsilon), DELTA, 1.0)
    finding = bound_of(mechanism, public("gaussian", mechanism.sd(3), epsilon=epsilon, delta=DELTA), runs=runs)
    assert finding.figure <= float(epsilon)
    assert finding.confidence == 1 - 1e-6
    assert (finding.low, finding.high) == (finding.figure, None)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize(("epsilon", "runs"), [("0.3", 6_000), ("1", 8_000), ("3", 5_000)])
def test_a_planar_release_as_it_is_drawn_never_implies_more_than_its_epsilon(epsilon, runs):
    """0, 0.46 and 1.83 are implied, with standard deviations of 0.12 at most."""
    mechanism = PlanarLaplaceMechanism(Decimal(epsilon), 1.0)
    finding = bound_of(mechanism, public("planar_laplace", mechanism.noise(3).sd, epsilon=epsilon), runs=runs)
    assert finding.figure <= float(epsilon)


def test_a_projected_release_never_implies_more_than_its_epsilon():
    mechanism, x = GaussianProjection(Decimal(1), DELTA, 1.0, 4), np.random.default_rng(11).normal(size=(60, 13))
    law = public("gaussian_projection", mechanism.noise(13).sd, delta=DELTA)
    assert column_space.attack(x, mechanism, law, np.random.default_rng(12), alpha=1e-6).figure <= 1


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_a_planar_release_never_implies_more_than_its_epsilon(epsilon):
    """By its law in closed form, in three dimensions: sd = sqrt(d + 1) Delta / epsilon."""
    mechanism = Simulated("planar_laplace", 2 / epsilon, np.random.default_rng(1))
    finding = bound_of(mechanism, public("planar_laplace", 2 / epsilon))
    assert finding.figure <= epsilon
    assert finding.figure > 0.3 * epsilon or epsilon == 0.3


def test_a_gaussian_release_implies_a_part_of_its_epsilon():
    """By its law in closed form: 0.9 or so of 3, where a coin would imply nothing."""
    sd = GaussianMechanism(Decimal(3), DELTA, 1.0).sd(3)
    mechanism = Simulated("gaussian", sd, np.random.default_rng(1))
    assert 0.3 < bound_of(mechanism, public("gaussian", sd, epsilon="3", delta=DELTA)).figure <= 3


@pytest.mark.parametrize(("family", "of_the_noise"), [("gaussian", 0.25), ("planar_laplace", 0.5)])
def test_too_little_noise_is_caught(family, of_the_noise):
    """The control: noise for a quarter, or half, of Delta."""
    sd = 2.0 if family == "planar_laplace" else GaussianMechanism(Decimal(1), DELTA, 1.0).sd(3)
    mechanism = Simulated(family, sd * of_the_noise, np.random.default_rng(2))
    assert bound_of(mechanism, public(family, sd * of_the_noise, delta=DELTA)).figure > 1.0


@pytest.mark.parametrize(("epsilon", "runs"), [("1", 10_000), ("3", 2_000)])
def test_an_attacker_is_right_as_often_as_the_gaussian_lets_it(epsilon, runs):
    """Phi(Delta / (2 sd)) of the guesses: the best test of two normal laws (Neyman & Pearson)."""
    mechanism, runs = GaussianMechanism(Decimal(epsilon), DELTA, 1.0), scaled(runs)
    law = public("gaussian", mechanism.sd(3), epsilon=epsilon, delta=DELTA)
    first, second = column_space.score_copies(X, mechanism, law, np.random.default_rng(3), runs)
    right = stats.norm.cdf(1 / (2 * mechanism.sd(3)))
    for hits in (np.sum(first <= 0), np.sum(second > 0)):
        assert stats.binomtest(int(hits), runs, right).pvalue > 1e-9
        assert stats.binomtest(int(hits), runs, 0.5).pvalue < 1e-4  # by chance not so once in 10^11


@pytest.mark.parametrize(("epsilon", "branch"), [("1", "lift"), ("500", "project")])
@pytest.mark.parametrize("r", [2, 3, 6])
def test_fifty_runs_a_side_refute_the_published_projection_at_epsilon_1(r, epsilon, branch):
    mechanism = PoGpUcb(Decimal(epsilon), DELTA, 1.0, r)
    rng = np.random.default_rng(4)
    first, second = column_space.neighbours(X, mechanism, 1.0, rng, runs=50)
    assert len(first) == len(second) == 50
    assert column_space.implied(first, second, 0.0, DELTA, alpha=1e-6) > 1.0


REFUTED = "5" if scaled(1) >= 20 else "2"
"""The epsilon that 2,300 runs a side refute at full size, and 115 otherwise: with fewer than 2,161 and 115, nothing."""


@pytest.mark.parametrize("r", [2, 3, 6])
def test_as_many_runs_as_it_takes_refute_the_published_projection_at_epsilon_5(r):
    """At an error of one in a million. The controls: a tenth of the runs do not, nor do they refute a sound release."""
    runs, claimed = scaled(115), float(REFUTED)
    mechanism = PoGpUcb(Decimal(REFUTED), DELTA, 1.0, r)
    first, second = column_space.neighbours(X, mechanism, 1.0, np.random.default_rng(17), runs=runs)
    assert (len(first), len(second)) == (runs, runs)
    assert column_space.implied(first, second, 0.0, DELTA, alpha=1e-6) > claimed
    few = runs // 10
    assert column_space.implied(first[:few], second[:few], 0.0, DELTA, alpha=1e-6) < claimed
    sd = GaussianMechanism(Decimal(REFUTED), DELTA, 1.0).sd(3)
    sound = Simulated("gaussian", sd, np.random.default_rng(18))
    first, second = column_space.neighbours(X, sound, 1.0, np.random.default_rng(17), runs=runs)
    assert column_space.implied(first, second, 0.0, DELTA, alpha=1e-6) <= claimed


def test_a_move_of_a_millionth_of_delta_is_seen_in_the_published_projection():
    mechanism = PoGpUcb(Decimal(1), DELTA, 1.0, 3)
    first, second = column_space.neighbours(X, mechanism, 1e-6, np.random.default_rng(5), runs=50)
    assert np.all(first <= 0)
    assert np.all(second > 0)


def test_the_finding_of_a_refuted_release_contradicts_its_claim():
    law = Public(NoiseLaw(family="random_projection"), False, 1.0, HIDDEN, "1", DELTA)
    finding = column_space.attack(X, PoGpUcb(Decimal(1), DELTA, 1.0, 3), law, np.random.default_rng(6))
    assert finding.figure > 1
    assert "where 1 is claimed" in finding.sentence
    bare = column_space.attack(X, Identity(), public("none", epsilon=None), np.random.default_rng(6))
    assert bare.figure > 5
    assert "20,000 times of 20,000" in bare.sentence


def test_column_spaces_tell_nothing_of_a_gaussian_release():
    mechanism = GaussianMechanism(Decimal(1), DELTA, 1.0)
    first, second = column_space.neighbours(X, mechanism, 1.0, np.random.default_rng(7), runs=60)
    assert column_space.implied(first, second, 0.0, DELTA, alpha=1e-6) <= 1.0


def test_a_turned_release_implies_no_more_than_its_epsilon_and_far_too_little_noise_is_caught():
    """Rows share a secret turn: each run is a release of its own."""

    class Turned(Simulated):
        def draw(self, rows, out, on_progress=None):
            Simulated.draw(self, rows, out)
            out[:] = out @ np.linalg.qr(self.rng.normal(size=(3, 3)))[0]

    bounds = []
    for sd in (GaussianMechanism(Decimal(1), DELTA, 1.0).sd(3), 0.02):
        law = public("gaussian", sd, rotated=True, delta=DELTA)
        mechanism = Turned("gaussian", sd, np.random.default_rng(8))
        finding = column_space.attack(X, mechanism, law, np.random.default_rng(9), seconds=np.inf, alpha=1e-6)
        bounds.append(finding.figure)
    assert bounds[0] <= 1 < bounds[1]


SAFE = ("a coin", "no better", "safe", "nothing")
"""Words that would sound like an all-clear."""


def few_trials(epsilon, runs, sd=None, family="gaussian", rotated=True):
    """The finding of ``runs`` a side of a rotated release, as many as a preview's seconds may leave."""
    sd = sd or GaussianMechanism(Decimal(epsilon), DELTA, 1.0).sd(3)
    law = public(family, sd, rotated=rotated, epsilon=epsilon, delta=DELTA if family == "gaussian" else 0.0)
    mechanism = Simulated(family, sd, np.random.default_rng(13))
    return column_space.attack(X, mechanism, law, np.random.default_rng(14), least=runs, seconds=0.0)


def trials_needed(sentence):
    return int(re.search(r"too few trials to tell; with about ([\d,]+) the", sentence)[1].replace(",", ""))


@pytest.mark.parametrize(("epsilon", "runs"), [("0.3", 10), ("1", 10), ("1", 100), ("3", 20)])
def test_a_turned_release_that_was_tried_too_few_times_is_said_to_be_so(epsilon, runs):
    """Not that a coin might do as well: of 100 trials a side of epsilon 1, nothing could be told."""
    finding = few_trials(epsilon, runs)
    assert finding.figure == 0
    needed = trials_needed(finding.sentence)
    assert runs < needed < 1e6
    # Shares that are a = 2 Phi(Delta / 2 sd) - 1 apart, each with a standard error of 1 / (2 sqrt(n)): of it 1.96 are
    # the interval's, and 1.28 what one record in ten is poorer by.
    apart = 2 * stats.norm.cdf(0.5 / GaussianMechanism(Decimal(epsilon), DELTA, 1.0).sd(3)) - 1
    assert needed == pytest.approx(2 * ((1.96 + 1.28) / apart) ** 2, rel=0.15)
    assert not any(word in finding.sentence.split("too few")[0] for word in SAFE)


def test_less_noise_needs_fewer_trials_and_a_planar_release_needs_its_own_number():
    few = [trials_needed(few_trials(epsilon, 10).sentence) for epsilon in ("0.3", "1", "2")]
    assert few == sorted(few, reverse=True)
    planar = few_trials("0.3", 10, sd=2 / 0.3, family="planar_laplace")
    assert planar.figure == 0
    assert 100 < trials_needed(planar.sentence) < few[0]


def test_a_turned_release_without_the_noise_it_claims_is_caught_by_as_few_trials():
    """The control: of a release that is seen through those words are not said, and of a large claim others are."""
    finding = few_trials("0.3", 100, sd=0.02)
    assert finding.figure > 0.3
    assert "too few" not in finding.sentence
    finding = few_trials("8", 100, sd=0.02)
    assert 0 < finding.figure < 8
    assert re.search(r"where 8 is claimed; too few trials to tell more: it takes about [\d,]+", finding.sentence)


class Unrelated(Simulated):
    """Releases noise alone."""

    def draw(self, rows, out, on_progress=None):
        out[:] = self.rng.normal(0, self.sd, out.shape)


def test_enough_trials_that_show_nothing_are_no_all_clear():
    finding = few_trials("20", 60, sd=None)
    assert finding.figure > 0  # the control
    law = public("gaussian", 0.4, rotated=True, epsilon="20", delta=DELTA)
    mechanism = Unrelated("gaussian", 0.4, np.random.default_rng(15))
    finding = column_space.attack(X, mechanism, law, np.random.default_rng(16), seconds=np.inf)
    assert finding.figure == 0
    assert "says nothing of other attackers" in finding.sentence


class FirstTwo(Simulated):
    """Releases the first two features as they are, and counts its draws."""

    draws = 0

    def columns(self, d):
        return 2

    def draw(self, rows, out, on_progress=None):
        self.draws += 1
        out[:] = np.concatenate([block for _, block in rows.blocks()])[:, :2]


def test_a_wide_release_is_not_drawn_a_hundred_times_for_one_figure():
    """Each draw factorizes d columns: with 300 features a hundred of them took three minutes of a preview."""
    mechanism = FirstTwo("random_projection", 0.0, np.random.default_rng(0))
    wide, law = np.random.default_rng(11).normal(size=(80, 60)), public("random_projection")
    assert column_space.attack(wide, mechanism, law, np.random.default_rng(12), seconds=0.0).figure > 0.5
    assert mechanism.draws == 20


@pytest.mark.parametrize("n", [2, 4])
def test_few_rows_hide_in_their_column_space(n):
    mechanism = PoGpUcb(Decimal(1), DELTA, 1.0, 3)
    assert column_space.attack(X[:n], mechanism, public("random_projection"), np.random.default_rng(10)) is None


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
