"""Fits within an algorithm: when they are made, what they depend on, what they leave alone, how they fail."""

import math
from dataclasses import replace

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import Invalid, NumericalFailure
from blindopt.gp.fitting import ANSWERS_MAX, FitProblem, fit, typical_distance
from blindopt.gp.marginal_likelihood import Evidence, Hyper
from blindopt.gp.posterior import Posterior
from blindopt.optimizer.algorithms.factory import build_algorithm
from blindopt.optimizer.algorithms.gp import surrogate as module
from blindopt.optimizer.algorithms.gp.rules import GpUcb
from blindopt.optimizer.algorithms.gp.surrogate import FitSchedule, Surrogate
from blindopt.optimizer.algorithms.settings import AlgorithmSettings
from curator_service.privacy.answers import mechanism_of
from tests.interventions import act_before

KERNEL = wire.Kernel(lengthscale=0.8, signal_variance=2.0, noise_variance=1e-3, mean=0.5)
FIT = wire.Fit(every=4, starts=3, ard="off")
PLANAR = wire.NoiseLaw(family="planar_laplace", sd=0.2)


def candidates(n=200):
    return np.random.default_rng(0).uniform(0, 4, size=(n, 2))


def outcome_of(z):
    return np.sin(2 * z[:, 0]) + np.cos(3 * z[:, 1]) * z[:, 0] / 2 + 3.0


def make(z, kernel=KERNEL, *, settings=FIT, initial=6, sign=1, seed=1, noise=wire.NoiseLaw(family="none"), **chosen):
    of_run = {"capacity": 60, "initial": initial, "noise": noise, "fit": settings} | chosen
    return GpUcb(z, AlgorithmSettings(kernel, sign, seed, **of_run), 0.05)


def run(algorithm, y, initial=6, steps=20, passport=None):
    """Rows 0 .. initial - 1, then what is chosen; the choices, and after how many answers each fit was made."""
    choices, fits = [], []
    for row in range(initial):
        algorithm.observe(row, float(y[row]), passport)
    for step in range(1, steps + 1):
        choices.append(algorithm.choose(step))
        fits.append(algorithm.fitted.answers if algorithm.fitted else None)
        algorithm.observe(choices[-1].row, float(y[choices[-1].row]), passport)
    return choices, fits


@pytest.mark.parametrize(
    ("initial", "every", "expected"),
    [
        (6, 4, [6, 7, 8, 8, 10, 10, 12, 12, 12]),
        (1, 4, [None, None, 3, 4, 5, 6, 7, 8, 8]),
        (0, 1, [None, None, None, 3, 4, 5, 6, 7, 8]),
        (7, 1, [7, 8, 9, 10, 11, 12, 13, 14, 15]),
    ],
)
@pytest.mark.parametrize("kernel", [KERNEL, None], ids=["given", "none"])
def test_fits_are_made_after_the_initial_rows_and_every_so_often(initial, every, expected, kernel):
    z = candidates()
    algorithm = make(z, kernel, settings=wire.Fit(every=every, starts=2), initial=initial)
    assert run(algorithm, outcome_of(z), initial, 9)[1] == expected


@pytest.mark.parametrize("noise", [wire.NoiseLaw(family="none"), PLANAR], ids=lambda law: law.family)
def test_a_choice_is_that_of_a_posterior_with_the_values_of_the_fit(noise):
    """Every fit again from the answers before it, with what surrogate and posterior are made of.

    By version 2, whose fits see outcomes and candidates as they are.
    """
    z, distance = candidates(), typical_distance(candidates(), noise)
    y = outcome_of(z)
    choices, fits = run(make(z, noise=noise, engine=2), y, steps=12)
    rows = [*range(6), *(choice.row for choice in choices)]
    for number, (choice, count) in enumerate(zip(choices, fits, strict=True)):
        seen = np.array(rows[:count])
        evidence = Evidence(z[seen], seen, y[seen], np.zeros(count), np.ones(count, bool))
        hyper = fit(
            FitProblem(evidence, "squared_exponential", noise, HYPER, FIT, distance, has_kernel=True, engine=2),
            [1, count, 3],
        ).hyper
        kernel = wire.Kernel(
            lengthscale=hyper.lengthscale,
            signal_variance=hyper.signal_variance,
            noise_variance=hyper.noise_variance,
            mean=hyper.mean,
        )
        fixed = make(z, kernel, settings=None, noise=noise)
        for row in rows[: 6 + number]:
            fixed.observe(row, float(y[row]))
        again = fixed.choose(number + 1)  # outcomes one by one, those of a fit together: the last digits differ
        assert (again.row, again.ties) == (choice.row, choice.ties)
        assert (again.mean, again.sd, again.acquisition) == pytest.approx(
            (choice.mean, choice.sd, choice.acquisition), rel=1e-9
        )


HYPER = Hyper(0.8, 2.0, 1e-3, 0.5)


def test_length_scales_of_coordinates_are_one_length_scale_of_scaled_candidates():
    """y depends on the first coordinate: the choice is that with both coordinates divided by their length-scales."""
    z = candidates()
    y = np.sin(2 * z[:, 0]) + 3.0
    algorithm = make(z, settings=wire.Fit(starts=2), initial=20)
    for row in range(20):
        algorithm.observe(row, float(y[row]))
    choice, fitted = algorithm.choose(1), algorithm.fitted
    assert 5 * fitted.lengthscales[0] < fitted.lengthscales[1]
    assert fitted.lengthscale == pytest.approx(np.sqrt(np.prod(fitted.lengthscales)), rel=1e-3)
    values = {name: getattr(fitted, name) for name in ("signal_variance", "noise_variance", "mean")}
    fixed = make(z / np.array(fitted.lengthscales), wire.Kernel(lengthscale=1.0, **values), settings=None)
    for row in range(20):
        fixed.observe(row, float(y[row]))
    again = fixed.choose(1)
    assert (again.row, again.ties) == (choice.row, choice.ties)
    assert again.acquisition == pytest.approx(choice.acquisition, rel=1e-9)
    noisy = make(z, settings=wire.Fit(starts=2), initial=20, noise=PLANAR)
    for row in range(20):
        noisy.observe(row, float(y[row]))
    noisy.choose(1)
    assert noisy.fitted.lengthscales is None


def test_an_exact_value_that_is_repeated_is_no_evidence():
    z, y = candidates(), outcome_of(candidates())
    fits, moments = [], []
    for rows in ([*range(12)], [*range(12), 3, 3, 7]):
        surrogate = Surrogate(z, AlgorithmSettings(None, 1, 0, 60, 12, fit=FIT, exact=True))
        for row in rows:
            surrogate.observe(row, float(y[row]), wire.NoisePassport(measurement_variance=0.0))
        moments.append(surrogate.posterior.mean.tolist())
        fits.append(surrogate.fitted)
    assert fits[0] == fits[1]
    assert moments[0] == moments[1]


@pytest.mark.parametrize("kernel", [KERNEL, None], ids=["given", "none"])
def test_a_run_that_goes_on_chooses_what_it_would_have_chosen(kernel):
    """Whatever was chosen, and fitted, before: after any number of answers the choice is the same to the last bit."""
    z = candidates()
    y = outcome_of(z)
    choices, _ = run(make(z, kernel, noise=PLANAR), y)
    rows = [*range(6), *(choice.row for choice in choices)]
    for done in (0, 1, 4, 5, 11, 19):
        again = make(z, kernel, noise=PLANAR)
        for row in rows[: 6 + done]:
            again.observe(row, float(y[row]))
        assert again.choose(done + 1) == choices[done]
        assert again.choose(done + 1) == choices[done]


def test_fits_follow_the_direction_and_the_settings():
    z = candidates()
    y = outcome_of(z)
    plain = make(z)
    choices = run(plain, y, steps=8)[0]
    mirrored = make(z, KERNEL.model_copy(update={"mean": -0.5}), sign=-1)  # minimizes -y: it is shown y
    assert run(mirrored, y, steps=8)[0] == choices
    assert mirrored.fitted.mean == -plain.fitted.mean != 0.0
    kept = make(z, settings=wire.Fit(every=4, mean="kernel"))
    run(kept, y, steps=1)
    assert kept.fitted.mean == 0.5
    empty = make(z, None, settings=wire.Fit(every=4, mean="kernel"))
    run(empty, y, steps=1)
    assert empty.fitted.mean == 0.0


def test_a_fit_finds_a_scale_that_was_given_wrongly():
    """A length-scale ten times too small, a mean far off: after 30 answers both are those of the data."""
    z = candidates()
    wrong = wire.Kernel(lengthscale=0.05, signal_variance=0.01, noise_variance=1e-6, mean=-50.0)
    algorithm = make(z, wrong, initial=30)
    for row in range(30):
        algorithm.observe(row, float(outcome_of(z)[row]))
    algorithm.choose(1)
    assert 0.4 < algorithm.fitted.lengthscale < 2.5
    assert abs(algorithm.fitted.mean - 3.0) < 3.0
    assert algorithm.fitted.problem is None


def test_noise_that_a_passport_declares_stays_as_it_is():
    """A noise of 0.25 on every answer is not taken for less, however smooth they are; what is not known is fitted."""
    z, y = candidates(), outcome_of(candidates())
    declared = wire.NoisePassport(measurement_variance=0.25)
    guessed = wire.NoisePassport(measurement_variance=0.25, measurement_variance_known=False)
    private = wire.NoisePassport(privacy=wire.PrivacyNoise(family="laplace", variance=0.25), measurement_variance=0.0)
    own = {}
    for name, passport in {"declared": declared, "guessed": guessed, "private": private, "none": None}.items():
        algorithm = make(z, initial=25)
        for row in range(25):
            algorithm.observe(row, float(y[row]), passport)
        algorithm.choose(1)
        posterior, fitted = algorithm.surrogate.posterior, algorithm.fitted
        own[name] = posterior.variance[:25].mean(), fitted.noise_variance
    assert own["declared"][1] == pytest.approx(1e-3, rel=1e-12)  # nothing to fit: that of the kernel
    assert max(own[name][1] for name in ("guessed", "private", "none")) < 0.05
    assert own["guessed"] == own["none"]
    assert own["private"][0] == pytest.approx(own["declared"][0], rel=0.2)
    assert own["declared"][0] > 5 * own["none"][0]


def test_a_fit_that_fails_keeps_what_was_before_and_says_so(monkeypatch):
    z = candidates()
    y = outcome_of(z)

    def fail_late(problem, *_):
        if len(problem.evidence.outcomes) > 6:
            raise NumericalFailure("made to fail")

    act_before(monkeypatch, module, "fit", fail_late)
    algorithm = make(z)
    choices, _ = run(algorithm, y, steps=11)
    fitted = algorithm.fitted
    assert (fitted.answers, fitted.log_likelihood) == (15, None)
    assert fitted.problem == "no fit after 15 answers, earlier values were kept: made to fail"
    first = make(z)
    run(first, y, steps=1)
    assert first.fitted.problem is None
    assert (fitted.lengthscale, fitted.mean) == (first.fitted.lengthscale, first.fitted.mean)
    again = make(z)
    for row in [*range(6), *(choice.row for choice in choices[:-1])]:
        again.observe(row, float(y[row]))
    assert again.choose(11) == choices[-1]
    monkeypatch.undo()
    whole = make(z)
    run(whole, y, steps=11)
    assert whole.fitted.problem is None
    assert whole.fitted.lengthscale != fitted.lengthscale


@pytest.mark.parametrize("kernel", [KERNEL, None], ids=["given", "none"])
def test_answers_that_are_all_equal_leave_the_start(kernel):
    z = candidates()
    algorithm = make(z, kernel)
    run(algorithm, np.full(200, 7.0), steps=3)
    fitted = algorithm.fitted
    assert fitted.problem is not None
    assert "all equal" in fitted.problem
    guess = 0.4 * typical_distance(z, wire.NoiseLaw(family="none"))
    assert fitted.lengthscale == (0.8 if kernel else pytest.approx(guess))


def test_values_that_the_posterior_cannot_take_count_as_a_failed_fit(monkeypatch):
    z = candidates()
    y = outcome_of(z)

    def refuse(posterior, z, kernel, **_):
        if kernel.lengthscale != 0.8:
            raise NumericalFailure("too far apart")

    act_before(monkeypatch, Posterior, "__init__", refuse)
    algorithm = make(z)
    run(algorithm, y, steps=2)
    assert algorithm.fitted.lengthscale == 0.8
    assert algorithm.fitted.problem is not None
    assert "too far apart" in algorithm.fitted.problem


# --- only if the kernel does not fit ----------------------------------------------------------------


def drawn(z, kernel, seed=0):
    """Outcomes that the kernel is right about."""
    squared = ((z[:, None] - z) ** 2).sum(axis=2)
    gram = kernel.signal_variance * np.exp(-squared / (2 * kernel.lengthscale**2)) + 1e-3 * np.eye(len(z))
    return kernel.mean + np.linalg.cholesky(gram) @ np.random.default_rng(seed).normal(size=len(z))


WRONG = {
    "mean": ({"mean": 60.0}, "times as far"),
    "signal variance": ({"signal_variance": 1e-3}, "times as far"),
    "too large": ({"signal_variance": 500.0, "noise_variance": 10.0}, "only"),
    "short length-scale": ({"lengthscale": 0.02}, "much better"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_kernel_that_does_not_fit_is_replaced_and_the_fit_says_why(name):
    changed, why = WRONG[name]
    z = candidates()
    y, wrong = drawn(z, KERNEL), KERNEL.model_copy(update=changed)
    surrogate = Surrogate(z, AlgorithmSettings(wrong, 1, 0, 60, 5, fit=FIT, fit_when="misfit"))
    alone = Surrogate(z, AlgorithmSettings(None, 1, 0, 60, 5, fit=FIT))
    fits = []
    for row in range(41):
        for each in (surrogate, alone):
            each.observe(row, float(y[row]))
        posterior = surrogate.posterior
        fits.append(surrogate.fitted)
    fitted = fits[-1]
    assert fitted.reason is not None
    assert why in fitted.reason
    assert "the given kernel does not fit" in fitted.reason
    assert 0.3 < fitted.lengthscale < 2.0
    assert posterior.mean.tolist() == alone.posterior.mean.tolist()
    assert fitted.model_dump(exclude={"reason"}) == alone.fitted.model_dump(exclude={"reason"})
    late = Surrogate(z, AlgorithmSettings(wrong, 1, 0, 60, 5, fit=FIT, fit_when="misfit"))  # a run that goes on
    for row in range(41):
        late.observe(row, float(y[row]))
    assert late.posterior.mean.tolist() == posterior.mean.tolist()
    assert late.fitted == fitted


def test_a_kernel_that_fits_is_kept_as_it_is():
    z = candidates()
    for seed in range(2):
        y = drawn(z, KERNEL, seed)
        kept = Surrogate(z, AlgorithmSettings(KERNEL, 1, 0, 60, 5, fit=wire.Fit(starts=2), fit_when="misfit"))
        fixed = Surrogate(z, AlgorithmSettings(KERNEL, 1, 0, 60, 5))
        for row in range(41):
            kept.observe(row, float(y[row]))
            fixed.observe(row, float(y[row]))
        assert kept.posterior.mean.tolist() == fixed.posterior.mean.tolist()
        assert kept.fitted is None


def test_a_kernel_under_which_the_answers_are_impossible_no_longer_repeats_few_candidates():
    """With a mean far below all answers, gp_ucb asks the same few candidates again; the fit asks new ones."""
    z = candidates()
    y = outcome_of(z) + 100.0
    bad = wire.Kernel(lengthscale=0.3, signal_variance=1.0, noise_variance=1e-3, mean=0.0)
    rows = {}
    for when in (None, "auto"):
        algorithm = build_algorithm(
            wire.GpUcb(name="gp_ucb"),
            z,
            AlgorithmSettings(bad, sign=1, seed=1, capacity=60, initial=5, fit=when, exact=True),
        )
        choices, _ = run(algorithm, y, initial=5, steps=45, passport=wire.NoisePassport(measurement_variance=0.0))
        rows[when] = [choice.row for choice in choices]
    assert len(set(rows[None])) < 20
    assert len(set(rows["auto"])) > 30
    assert max(y[rows["auto"]]) >= max(y[rows[None]])


def test_runs_of_before_version_0_3_0_go_on_with_a_fit_after_each_ten():
    def fits(settings):
        surrogate = Surrogate(candidates(), settings)
        return list(dict.fromkeys(surrogate._due(count) for count in range(6, 50)))

    settings = AlgorithmSettings(KERNEL, 1, seed=0, capacity=9, initial=6, fit=wire.Fit())
    assert fits(replace(settings, engine=1)) == [6, 16, 26, 36, 46]
    assert fits(settings) == [6, 7, 8, 10, 12, 15, 18, 22, 27, 33, 41]


def test_an_outcome_that_is_no_number_is_refused_and_changes_nothing():
    z = candidates()
    y = outcome_of(z)
    algorithm, untouched = make(z), make(z)
    for row in range(6):
        algorithm.observe(row, float(y[row]))
        untouched.observe(row, float(y[row]))
    with pytest.raises(NumericalFailure):
        algorithm.observe(7, math.nan)
    assert algorithm.choose(1) == untouched.choose(1)


# --- by request -------------------------------------------------------------------------------------


def test_a_request_with_a_fit_needs_no_kernel_and_without_a_fit_there_is_none():
    z = candidates()
    spec = wire.GpUcb(name="gp_ucb")
    algorithm = build_algorithm(spec, z, AlgorithmSettings(None, sign=1, seed=1, capacity=60, fit=FIT, initial=6))
    assert run(algorithm, outcome_of(z))[0] == run(make(z, None), outcome_of(z))[0]
    with pytest.raises(Invalid, match="kernel"):
        build_algorithm(spec, z, AlgorithmSettings(None, sign=1, seed=1, capacity=60))
    plain = build_algorithm(spec, z, AlgorithmSettings(KERNEL, sign=1, seed=1, capacity=60, initial=6))
    assert plain.fitted is None


@pytest.mark.parametrize("kernel", [KERNEL, None], ids=["given", "none"])
def test_algorithms_that_take_hyper_parameters_as_given_refuse_a_fit(kernel):
    with pytest.raises(Invalid, match="leave out fit"):
        build_algorithm(
            wire.Thompson(name="thompson"), candidates(), AlgorithmSettings(kernel, sign=1, seed=1, capacity=9, fit=FIT)
        )
    with pytest.raises(ValueError, match="leave out fit"):
        wire.RunSpec(
            curator_url="http://curator:8000",
            study_id="std_0123456789abcdef",
            algorithm=wire.Thompson(name="thompson"),
            fit=FIT,
        )


def test_the_scale_is_a_factor_of_beta():
    z = candidates()
    beta = 2 * math.log(200 * math.pi**2 / (6 * 0.025))
    for scale in (1.0, 0.25):
        spec = wire.GpUcb(name="gp_ucb", scale=scale)
        choice = build_algorithm(spec, z, AlgorithmSettings(KERNEL, sign=1, seed=1, capacity=9)).choose(1)
        assert choice.acquisition == pytest.approx(0.5 + math.sqrt(scale * beta * 2.0), rel=1e-12)


@pytest.mark.parametrize("plays", [1, 4, 64])
def test_a_mean_of_many_people_counts_with_the_variance_of_its_passport(plays):
    """Against the closed form for one outcome: the more plays, the more it is believed."""
    z, kernel = candidates(3), KERNEL
    answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=1.0, plays="mean")
    privacy = mechanism_of(answers, plays).noise
    algorithm = make(z, kernel, settings=None)
    algorithm.observe(1, 2.5, wire.NoisePassport(privacy=privacy, measurement_variance=0.0))
    means, sds = algorithm.moments([1])
    signal, noise = kernel.signal_variance, kernel.noise_variance + 2 * (2 / plays) ** 2
    assert means[0] == pytest.approx(kernel.mean + signal / (signal + noise) * (2.5 - kernel.mean), rel=1e-6)
    assert sds[0] ** 2 == pytest.approx(signal * noise / (signal + noise), rel=1e-6)


def fits(schedule, counts):
    return list(dict.fromkeys(schedule.last(count) for count in counts))


@pytest.mark.parametrize(
    ("initial", "every", "engine", "expected"),
    [
        (6, 4, 1, [0, 6, 10, 14, 18, 22, 26, 30, 34, 38]),
        (1, 4, 1, [0, 3, 5, 9, 13, 17, 21, 25, 29, 33, 37]),
        (0, 10, 1, [0, 3, 10, 20, 30]),
        (2, 100, 1, [0, 3]),
        (6, 10, 2, [0, 6, 7, 8, 10, 12, 15, 18, 22, 27, 33]),
        (6, 3, 2, [0, 6, 7, 8, 10, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39]),
        (0, 1, 2, [0, *range(3, 40)]),
        (25, 10, 2, [0, 25, 31, 38]),
    ],
)
def test_a_fit_comes_after_a_quarter_more_outcomes_or_every_few(initial, every, engine, expected):
    schedule = FitSchedule(initial, every, engine)
    assert fits(schedule, range(40)) == expected
    assert [schedule.before(due) for due in expected[1:]] == expected[:-1]


def test_a_fit_comes_after_every_few_more_outcomes_at_most_and_not_after_very_many():
    assert fits(FitSchedule(6, 10), range(51, 1_000)) == list(range(51, ANSWERS_MAX, 10))
    assert fits(FitSchedule(6, 4, 1), range(298, 10**4)) == [6 + (ANSWERS_MAX - 6) // 4 * 4]
    for engine in (1, 2):
        late = FitSchedule(ANSWERS_MAX + 50, 4, engine)
        assert [late.last(count) for count in (ANSWERS_MAX, ANSWERS_MAX + 50, 10**6)] == [0, *[ANSWERS_MAX + 50] * 2]


@pytest.mark.parametrize(
    ("initial", "every", "expected"),
    [(6, 10, [6, 16, 26, 36]), (0, 10, [3, 10, 20, 30]), (1, 4, [3, 5, 9, 13, 17, 21, 25, 29, 33, 37])],
)
def test_a_kernel_is_checked_every_few_outcomes(initial, every, expected):
    schedule, check, seen = FitSchedule(initial, every), FitSchedule(initial, every).first, []
    for count in range(40):
        while schedule.is_check_due(check, count):
            seen.append(count)
            assert check == count
            check = schedule.next_check(check)
    assert seen == expected


def test_after_very_many_outcomes_a_kernel_is_not_checked():
    schedule = FitSchedule(6, 10)
    assert schedule.is_check_due(ANSWERS_MAX, 10**4)
    assert not schedule.is_check_due(ANSWERS_MAX + 1, 10**4)
    assert FitSchedule(ANSWERS_MAX + 50, 10).is_check_due(ANSWERS_MAX + 50, 10**4)
