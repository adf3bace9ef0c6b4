"""The whole simulation: yardsticks that are known, noise that costs, functions that all mechanisms share."""

from decimal import Decimal
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import qmc

from blindopt import wire
from blindopt.errors import Invalid
from blindopt.gp.input_noise import noise_aware, refined
from blindopt.gp.kernels import SquaredExponential
from blindopt.optimizer.algorithms.gp.rules import GpUcb
from blindopt.optimizer.algorithms.settings import AlgorithmSettings
from blindopt.wire import NoiseLaw
from curator_service.releases.forecasts import simulation
from curator_service.releases.forecasts.cells import total_of_groups
from curator_service.releases.forecasts.simulation import (
    chance_regret,
    draw_functions,
    draw_pairs,
    gp_ucb_regret,
    mean_regret,
    outcome_variance,
    read_distances,
    relative_errors,
    simulate,
)
from curator_service.releases.mechanisms.row_noise import GaussianMechanism
from tests.builders import BY_HAND, EXACT, group_release, laplace
from tests.curator_service.seeded_noise import seed_gaussian_releases
from tests.scale import scaled


def _run(study, rows, *, seed=1, on_progress=lambda share: None, **forecast):
    points = simulate(
        study, wire.ForecastCreate(**({"rows": "records"} | forecast)), rows, seed=seed, on_progress=on_progress
    )
    return {(point.mechanism, point.epsilon): point for point in points}


GAUSSIAN = {"mechanisms": ["gaussian"]}


@pytest.fixture(scope="module")
def wide(study_of, rows_of):
    """300 rows, 60 functions, 40 queries, at a level without use, one between, and one without cost.

    The releases are seeded: a mean regret of 60 functions is what is compared, with others that are as noisy.
    """
    shares = []
    with pytest.MonkeyPatch.context() as patched:
        seed_gaussian_releases(patched, 7)
        points = _run(
            study_of(),
            rows_of(300),
            on_progress=shares.append,
            epsilons=["0.01", "1.5", "1000"],
            functions=scaled(60),
            queries=40,
            **GAUSSIAN,
        )
    return points, shares


@pytest.mark.slow(
    sibling="test_group_forecasts.py::test_much_noise_is_as_bad_as_chance_and_almost_none_as_good_as_no_privacy"
)
def test_almost_all_noise_is_as_bad_as_chance_and_almost_none_as_good_as_the_rows(wide):
    points, _ = wide
    identity, chance = points["identity", None], points["random_rows", None]
    useless, between, free = (points["gaussian", level] for level in ("0.01", "1.5", "1000"))
    assert identity.high < 0.06 < 0.25 < chance.low
    # Over releases, the mean regret has a standard deviation of 0.033 (useless), 0.027 (some) and 0.0035 (free),
    # around 0.37, 0.18 and 0.025; chance is at 0.35.
    assert abs(useless.regret - chance.regret) < 0.19
    assert abs(free.regret - identity.regret) < 0.03
    assert between.regret > 0.05 > free.regret
    assert useless.noise_sd > between.noise_sd > free.noise_sd
    verdicts = [point.better_than_chance for point in (identity, chance, useless, free)]
    assert verdicts == [True, None, False, True]
    assert [[part.better_than_chance for part in p.by_lengthscale] for p in (chance, free)] == [[None], [True]]
    assert useless.distance_error > between.distance_error > free.distance_error > identity.distance_error == 0


def test_yardsticks_have_no_level_and_chance_reads_no_distance(wide):
    points, _ = wide
    assert list(points)[:2] == [("identity", None), ("random_rows", None)]
    chance = points["random_rows", None]
    assert (chance.noise_sd, chance.distance_error, chance.runs_as) == (None, None, "random_rows")
    assert points["gaussian", "1000"].runs_as == "gaussian"


def test_random_rows_are_as_good_as_chance_is_on_the_very_functions(study_of, rows_of):
    rows = rows_of(120)
    points = _run(study_of(), rows, seed=9, functions=8, queries=10, epsilons=["1"], mechanisms=["identity"])
    (_, x), *_ = rows.blocks()
    f = draw_functions(x, SquaredExponential(3.0, 4.0), 8, np.random.default_rng([9, 0, 0]))
    regrets = [chance_regret(function, 10) / 2 for function in f]  # the standard deviation of f is 2
    assert points["random_rows", None].regret == pytest.approx(np.mean(regrets), rel=1e-12)


def test_groups_answered_at_once_end_at_the_mean_of_the_rows_of_the_best_one(study_of, rows_of):
    """With next to no noise: by hand from the very functions. With much it is a group at random, or nearly."""
    private = laplace("1000", value_bound=4.0)
    study, rows = study_of(answers=private), rows_of(120)
    forecast = wire.ForecastCreate(rows="records", functions=40, queries=2, epsilons=["1"], mechanisms=["identity"])
    points = {}
    for epsilon in ("1000", "0.0002"):
        at = study.model_copy(update={"budget": wire.Budget(epsilon_per_row=epsilon)})
        total = total_of_groups(at)
        assert total == epsilon
        made = simulate(at, forecast, rows, seed=9, on_progress=lambda share: None, records=12_000, total=total)
        assert [point.mechanism for point in made] == ["identity", "random_rows", "groups_at_once"]
        points[epsilon] = made[2]
    (_, x), *_ = rows.blocks()
    halton = qmc.Halton(2, scramble=False).random(13)[1:]  # 120 / 10 groups
    group = np.argmin(((x[:, None] - (halton - 0.5) * 20) ** 2).sum(axis=2), axis=1)
    functions = draw_functions(x, SquaredExponential(3.0, 4.0), 40, np.random.default_rng([9, 0, 0]))
    means = np.array([[f[group == g].mean() for g in np.unique(group)] for f in functions])
    best, middling = ((functions.max(axis=1) - value) / 2 for value in (means.max(axis=1), means.mean(axis=1)))
    exact, noisy = points["1000"], points["0.0002"]
    assert exact.regret == pytest.approx(best.mean(), abs=0.01)
    assert (exact.epsilon, exact.answers_epsilon, exact.noise_sd, exact.runs_as) == ("1000", None, None, "groups")
    assert noisy.regret == pytest.approx(middling.mean(), abs=0.3)
    assert noisy.regret > exact.regret + 0.5


@pytest.mark.parametrize(
    ("changed", "total"),
    [
        ({}, "3.5"),
        ({"budget": wire.Budget(epsilon_per_row="7")}, "7"),
        ({"refine": wire.Refine(epsilon="2", persons=5)}, "5.5"),
        ({"answers": EXACT}, None),
        ({"release": wire.IdentityRelease(mechanism="identity")}, None),
        ({"measurement": BY_HAND}, None),
        ({"release": group_release()}, None),
        ({"budget": wire.Budget(epsilon_per_row="900000")}, "2000"),  # an answer has 1,000 at most
        ({"budget": wire.Budget(epsilon_per_row="0.000001")}, None),
    ],
)
def test_groups_stand_beside_private_answers_of_a_column_for_what_a_record_uses_in_total(changed, total, study_of):
    study = study_of(answers=wire.AutoAnswers(epsilon="0.5", value_bound=1.0)).model_copy(update=changed)
    assert total_of_groups(study) == total


def test_progress_grows_to_one(wide):
    _, shares = wide
    assert shares == sorted(shares)
    assert shares[0] < 0.02
    assert shares[-1] == pytest.approx(1.0)


def test_all_mechanisms_meet_the_same_functions_and_the_same_noise(study_of, rows_of):
    """With next to no noise on Z every run is that of identity, to the last choice."""
    release = wire.GaussianRelease(mechanism="gaussian", epsilon="3", delta=1e-5, sensitivity=1e-6)
    kernel = wire.Kernel(lengthscale=3.0, signal_variance=4.0, noise_variance=0.5)
    forecast = {"epsilons": ["900", "1000"], "functions": 5, "queries": 15}
    points = _run(study_of(release=release, kernel=kernel), rows_of(150), **forecast, **GAUSSIAN)
    regrets = {point.regret for (name, _), point in points.items() if name != "random_rows"}
    assert len(regrets) == 1


def test_a_seed_decides_the_functions_and_never_what_a_mechanism_draws(study_of, rows_of):
    forecast = {"epsilons": ["1"], "functions": 4, "queries": 8, **GAUSSIAN}
    first, again, other = (_run(study_of(), rows_of(100), seed=seed, **forecast) for seed in (5, 5, 6))
    for yardstick in (("identity", None), ("random_rows", None)):
        assert first[yardstick] == again[yardstick]
        assert first[yardstick].regret != other[yardstick].regret or yardstick[0] == "identity"
    assert first["gaussian", "1"].distance_error != again["gaussian", "1"].distance_error


def test_every_mechanism_can_be_tried(study_of, rows_of):
    forecast = {"epsilons": ["2"], "functions": 2, "queries": 3, "mechanisms": ["gaussian", "po_gp_ucb"]}
    points = _run(study_of(), rows_of(60), **forecast)
    published = points["po_gp_ucb", "2"]
    assert (published.noise_sd, published.runs_as) == (None, "po_gp_ucb")
    assert published.distance_error > 0


def test_private_answers_cost_too_and_both_baselines_are_exact(study_of, rows_of):
    """With the study's own answers, and at levels of them: the recommended row, which the noise hides."""
    answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.1", value_bound=6.0)
    release = wire.GaussianRelease(mechanism="gaussian", epsilon="3", delta=1e-5, sensitivity=1e-6)
    study, forecast = study_of(release=release, answers=answers), {"functions": 30, "queries": 30, "rows": "records"}

    def points(**more):
        request = wire.ForecastCreate(**forecast, **more)
        return simulate(study, request, rows_of(200), seed=1, on_progress=lambda share: None)

    identity, chance, own = points(epsilons=["3"], mechanisms=["gaussian"])
    assert [point.answers_epsilon for point in (identity, chance, own)] == [None, None, "0.1"]
    assert own.low > identity.high
    assert own.better_than_chance is False
    of_answers = points(answers=["0.1", "1000"])
    assert [(p.epsilon, p.answers_epsilon) for p in of_answers[2:]] == [("3", None), ("3", "0.1"), ("3", "1000")]
    _, _, exact, noisy, almost = of_answers
    assert exact.regret == pytest.approx(identity.regret, abs=1e-9)
    assert noisy.regret == pytest.approx(own.regret, abs=1e-9)
    assert almost.regret < 0.2 < noisy.regret


def test_a_study_that_refines_is_forecast_without_second_draws_and_with_them(study_of, rows_of, monkeypatch):
    """A second draw of epsilon 1000 is the record itself; one of the least epsilon leaves the first draw as it is."""
    calls, rows = [], rows_of(60)
    x = np.vstack([block for _, block in rows.blocks()])
    monkeypatch.setattr(simulation, "gp_ucb_regret", lambda *args: calls.append(args) or 1.0)
    release = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1")
    own = {"release": release, "answers": laplace("2")}
    forecast = {"functions": 2, "queries": 2, "rows": "records"}
    levels = {"epsilons": ["0.5", "1"], "mechanisms": ["planar_laplace", "gaussian"]}
    for epsilon in ("1000", "0.0001"):
        study = study_of(**own, refine=wire.Refine(epsilon=epsilon, persons=5))
        for request in (levels, {"answers": ["2"]}):
            calls.clear()
            wanted = wire.ForecastCreate(**forecast, **request)
            points = simulate(study, wanted, rows, seed=1, on_progress=lambda share: None)
            seconds = [(p.runs_as, p.refine_epsilon) for p in points if p.runs_as != "random_rows"]
            pairs = [("planar_laplace", None), ("planar_laplace", epsilon)] * 2
            others = [("gaussian", None)] * 2 if request is levels else []
            assert seconds == [("identity", None), *pairs, *others]
            for number, (_, second) in enumerate(seconds):
                z, *_, sharp = calls[2 * number + 1]
                assert (sharp is None) == (second is None)
                if sharp is not None:
                    places = x if second == "1000" else z
                    assert np.abs(sharp[0] - places).max() < 0.1 < np.abs(x - z).max()


@pytest.mark.parametrize(("rough", "is_better"), [(-0.37, True), (0.1, False)])
def test_the_functions_of_all_length_scales_count_together(study_of, rows_of, monkeypatch, rough, is_better):
    """12 functions of the middle length-scale do not show a gain of 0.11 standard deviations, which is there."""
    means, calls, functions = (rough, -0.11, -0.06), [], 12

    def regret(*_):
        (number, world), _ = divmod(len(calls), 3), calls.append(None)
        return 1 + means[world] + (0.2 if number % 2 else -0.2)

    monkeypatch.setattr(simulation, "gp_ucb_regret", regret)
    monkeypatch.setattr(simulation, "chance_regret", lambda *_: 1.0)
    study = study_of(release=wire.AutoRelease(epsilon="1")).model_copy(update={"kernel": None})
    forecast = wire.ForecastCreate(answers=[], functions=functions)
    *_, own = simulate(study, forecast, rows_of(20), seed=1, on_progress=lambda share: None)
    assert len(calls) == 2 * functions * 3
    assert [part.better_than_chance for part in own.by_lengthscale] == [is_better, False, False]
    assert own.better_than_chance is is_better


def test_levels_of_answers_need_private_answers(study_of, rows_of):
    with pytest.raises(Invalid, match="exact"):
        _run(study_of(), rows_of(20), answers=["1"])
    assert len(_run(study_of(release=wire.AutoRelease(epsilon="1")), rows_of(20), answers=[], functions=2)) == 3


def test_the_variance_of_an_outcome_is_that_of_its_measurement(study_of):
    study = study_of()
    assert outcome_variance(study, study.kernel) == 1e-4
    measured = wire.ColumnMeasurement(column="y", direction="maximize", noise_variance=0.25)
    study = study.model_copy(update={"measurement": measured})
    assert outcome_variance(study, study.kernel) == 0.25


def test_two_rows_are_enough_and_one_is_not(study_of, rows_of):
    forecast = {"epsilons": ["1"], "functions": 2, "queries": 5, **GAUSSIAN}
    assert _run(study_of(), rows_of(2), **forecast)["random_rows", None].regret == 0
    with pytest.raises(Invalid, match="two rows"):
        _run(study_of(), rows_of(1), **forecast)


def test_rows_that_are_all_the_same_have_no_distances_to_read(study_of, rows_of):
    rows = rows_of(20)
    rows.values[:] = 0.5
    points = _run(study_of(), rows, epsilons=["1"], functions=2, queries=5, **GAUSSIAN)
    assert points["gaussian", "1"].distance_error is None
    assert points["identity", None].regret < 1e-3


def test_pairs_are_of_different_rows_and_uniform():
    first, second = draw_pairs(5, 100_000, np.random.default_rng(1))
    assert (first != second).all()
    counts = np.zeros((5, 5))
    np.add.at(counts, (first, second), 1)
    expected = 100_000 / 20
    chi_square = sum((counts[i, j] - expected) ** 2 / expected for i in range(5) for j in range(5) if i != j)
    assert chi_square < 19 + 6 * np.sqrt(2 * 19)


def _reference(x, pairs, sd, rng, *, debias=True):
    """The median error when the difference of two noises is one Gaussian of twice the variance."""
    difference = np.repeat(x[pairs[0]] - x[pairs[1]], 50, axis=0)
    true = np.sqrt((difference**2).sum(axis=1))
    squared = ((difference + rng.normal(0, np.sqrt(2) * sd, difference.shape)) ** 2).sum(axis=1)
    estimated = np.sqrt(np.maximum(squared - 2 * x.shape[1] * sd**2 * debias, 0))
    return float(np.median(np.abs(estimated - true) / true))


@pytest.mark.parametrize("epsilon", ["0.7", "1"])
def test_the_error_of_the_gaussian_mechanism_is_that_of_a_simulation(epsilon, rows_of, monkeypatch):
    """10 releases of 400 rows, 2,000 pairs of each: the median has a standard error of 1.5 % at most.

    Distances that are read as if there were no noise are 16 % off or more.
    """
    seed_gaussian_releases(monkeypatch, 7)
    rows, rng = rows_of(400, d=3), np.random.default_rng(2)
    (_, x), *_ = rows.blocks()
    mechanism = GaussianMechanism(Decimal(epsilon), 1e-5, 1.0)
    law, z, errors, pairs = mechanism.noise(3), np.empty((400, 3)), [], draw_pairs(400, 2_000, rng)
    for _ in range(10):
        mechanism.draw(rows, z)
        errors.append(relative_errors(x, z, law, pairs))
    error = float(np.median(np.concatenate(errors)))
    assert error == pytest.approx(_reference(x, pairs, law.sd, rng), rel=0.08)
    assert error != pytest.approx(_reference(x, pairs, law.sd, rng, debias=False), rel=0.08)


def test_squares_of_distances_are_read_without_bias():
    rng = np.random.default_rng(3)
    x, law = np.array([[0.0, 0.0], [12.0, 16.0]]), NoiseLaw(family="gaussian", sd=2.0)
    z = x + rng.normal(0, 2.0, (20_000, 2, 2))
    squares = np.array([read_distances(pair, law, (np.array([0]), np.array([1])))[0] ** 2 for pair in z])
    assert abs(squares.mean() - 400) < 5 * squares.std() / np.sqrt(20_000)
    assert 10 * squares.std() / np.sqrt(20_000) < 2 * 2 * 2.0**2  # the bias would be seen


def test_no_noise_no_error_and_rows_that_coincide_do_not_count():
    x = np.array([[0.0, 1.0], [0.0, 1.0], [3.0, 5.0]])
    pairs = np.array([0, 0, 1]), np.array([1, 2, 2])
    assert relative_errors(x, x, NoiseLaw(family="none"), pairs).tolist() == [0.0, 0.0]
    assert len(relative_errors(x[:2], x[:2], NoiseLaw(family="none"), (pairs[0][:1], pairs[1][:1]))) == 0


def test_a_square_below_its_noise_is_a_distance_of_zero():
    x = np.array([[0.0], [1.0]])
    pairs = np.array([0]), np.array([1])
    assert relative_errors(x, x, NoiseLaw(family="gaussian", sd=5.0), pairs).tolist() == [1.0]


POINTS = np.array([[0.0, 0.0], [1.0, 0.5], [4.0, 0.0], [4.0, 0.0]])


def test_their_covariance_is_the_kernel():
    """40,000 draws, 5.5 standard errors; a lengthscale off by a tenth is caught."""
    kernel = SquaredExponential(1.5, 4.0)
    drawn = draw_functions(POINTS, kernel, 40_000, np.random.default_rng(1))
    assert drawn.shape == (40_000, 4)
    sample_covariance, exact = drawn.T @ drawn / 40_000, kernel(POINTS, POINTS)
    error = 5.5 * np.sqrt((exact**2 + 16) / 40_000)
    assert (np.abs(sample_covariance - exact) < error).all()
    assert (np.abs(sample_covariance - SquaredExponential(1.65, 4.0)(POINTS, POINTS)) > error).any()
    assert (np.abs(drawn.mean(axis=0)) < 5.5 * 2 / 200).all()


def test_records_that_coincide_have_one_outcome():
    drawn = draw_functions(POINTS, SquaredExponential(1.5, 4.0), 100, np.random.default_rng(2))
    assert np.abs(drawn[:, 2] - drawn[:, 3]).max() < 0.1


def test_many_records_in_a_smooth_kernel_can_be_factorized():
    points = np.random.default_rng(3).uniform(0, 1, (500, 2))
    drawn = draw_functions(points, SquaredExponential(5.0, 1e-6), 3, np.random.default_rng(4))
    assert np.isfinite(drawn).all()
    assert 1e-5 < drawn.std() * 1e2 < 1


def test_a_seed_decides_them():
    kernel = SquaredExponential(1.5)
    first, again = (draw_functions(POINTS, kernel, 3, np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("q", [1, 2, 3, 6])
def test_chance_regret_is_the_mean_over_every_choice_of_rows(q):
    f = np.array([0.3, -1.0, 2.5, 2.5, 0.0, 1.7])
    exact = np.mean([f.max() - f[list(chosen)].max() for chosen in combinations(range(6), q)])
    assert chance_regret(f, q) == pytest.approx(exact, abs=1e-12)


def test_chance_regret_is_what_random_rows_find():
    """Within 5 standard errors of 20,000 searches; one query more or less would be seen."""
    rng = np.random.default_rng(1)
    f, q = rng.normal(size=400), 20
    best = np.array([f[rng.permutation(400)[:q]].max() for _ in range(20_000)])
    error = 5 * best.std() / np.sqrt(len(best))
    assert abs(chance_regret(f, q) - (f.max() - best.mean())) < error
    for other in (q - 1, q + 1):
        assert abs(chance_regret(f, other) - (f.max() - best.mean())) > error / 2.5


def test_whoever_asks_every_row_has_no_regret_left():
    f = np.random.default_rng(2).normal(size=50)
    assert chance_regret(f, 50) == chance_regret(f, 99) == 0
    assert chance_regret(f, 1) == pytest.approx(f.max() - f.mean())


@pytest.fixture
def smooth():
    """60 points on a line, and functions of their Gaussian process."""
    x = np.linspace(0, 10, 60)[:, None]
    kernel = SquaredExponential(1.0, 4.0)
    rng = np.random.default_rng(4)
    f = np.linalg.cholesky(kernel(x, x) + 1e-8 * np.eye(60)) @ rng.standard_normal((60, 10))
    return x, kernel, f.T


def test_the_search_does_what_the_modelers_algorithm_does(smooth):
    """Their kernel is so wide that no candidates tie but at first: the two draw from different seeds later."""
    x, _, functions = smooth
    declared = wire.Kernel(lengthscale=2.5, signal_variance=4.0, noise_variance=0.01)
    noise = 0.1 * np.random.default_rng(5).standard_normal((10, 12))
    for f, errors in zip(functions, noise, strict=True):
        theirs = GpUcb(x, AlgorithmSettings(declared, 1, seed=8, capacity=12), wire.GpUcb(name="gp_ucb").delta_ucb)
        queried = []
        for step, error in enumerate(errors, start=1):
            queried.append(theirs.choose(step).row)
            theirs.observe(queried[-1], f[queried[-1]] + error)
        wide = SquaredExponential(2.5, 4.0)
        ours = gp_ucb_regret(x, f, errors, wide, 0.01, np.random.default_rng([8, 1]))
        means, _ = theirs.moments(np.array(queried))
        assert ours == f.max() - f[queried[int(np.argmax(means))]]


def test_with_the_rows_themselves_and_almost_no_noise_the_best_row_is_found(smooth):
    x, kernel, functions = smooth
    z = np.random.default_rng(6).permutation(x)  # the control: candidates that tell nothing of the rows
    through_x, blind = [], []
    for number, f in enumerate(functions):
        for candidates, regrets in ((x, through_x), (z, blind)):
            rng = np.random.default_rng(number)
            regrets.append(gp_ucb_regret(candidates, f, np.zeros(40), kernel, 1e-6, rng))
    assert max(through_x) < 1e-3
    assert np.mean(blind) > 0.05


def test_second_draws_bring_a_search_nearer_to_the_best_row(smooth):
    x, kernel, functions = smooth
    blurred, sharp = x + np.random.default_rng(7).standard_normal(x.shape), refined(kernel, "gaussian", 1.0, 1e-3, 1)
    wide, nugget = noise_aware(kernel, NoiseLaw(family="gaussian", sd=1.0), 1)
    mixed_up = np.random.default_rng(8).permutation(x)  # the control: places of other rows
    once, refines, misled = [
        np.mean(
            [
                gp_ucb_regret(blurred, f, np.zeros(25), wide, 1e-6, np.random.default_rng(number), nugget, second)
                for number, f in enumerate(functions)
            ]
        )
        for second in (None, (x, sharp), (mixed_up, sharp))
    ]
    assert refines < once / 3 < misled / 6


def _coverage(draw, mean, widen=1.0, trials=3_000):
    hits = 0
    for _ in range(trials):
        sample = draw()
        mean_interval = mean_regret(sample)
        centre, half = mean_interval.value, (mean_interval.high - mean_interval.value) * widen
        hits += centre - half <= mean <= centre + half
    return hits / trials


def test_the_interval_covers_the_mean_as_often_as_it_says():
    """3,000 trials: 5 standard errors are 0.02. Two thirds of its width would be caught."""
    rng = np.random.default_rng(7)
    assert abs(_coverage(lambda: rng.normal(9.0, 1.0, 20), 9.0) - 0.95) < 0.02
    assert abs(_coverage(lambda: rng.normal(9.0, 1.0, 2), 9.0) - 0.95) < 0.02
    assert abs(_coverage(lambda: rng.normal(9.0, 1.0, 20), 9.0, widen=2 / 3) - 0.95) > 0.05
    # Regrets are skewed: the interval of 20 is then a little too short.
    assert 0.88 < _coverage(lambda: rng.exponential(1.0, 20), 1.0) < 0.96


def test_the_interval_is_not_below_zero():
    interval = mean_regret(np.array([0.0, 0.0, 0.0, 1.0]))
    assert (interval.low, interval.value) == (0.0, 0.25)
    assert mean_regret(np.zeros(5)).high == 0
