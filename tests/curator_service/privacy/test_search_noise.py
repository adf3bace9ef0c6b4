"""What noise does to a search: rho by simulation, the cautions at their thresholds, and which tool serves."""

from decimal import Decimal

import numpy as np
import pytest

from blindopt import wire
from blindopt.client.reports import Forecast
from curator_service.privacy import accounting, search_noise
from curator_service.privacy.search_noise import CHANCE, CLEAR
from curator_service.privacy.search_simulation import rho, rho_of_variances
from curator_service.releases.mechanisms.registry import planned_mechanism
from curator_service.releases.report import rho_of
from tests.builders import BY_HAND, COLUMN, EXACT, a_study, group_release


def study(features, **release):
    return a_study(wire.AutoRelease(**({"epsilon": "1"} | release)), features=features)


def rho_of_draft(spec):
    return rho_of(spec, planned_mechanism(spec))


BOX = [
    wire.Feature(column="a", lower=0.0, upper=20.0, hidden_change=1.0),
    wire.Feature(column="b", lower=-3.0, upper=5.0),
]


def drawn_rho(x, sd, rng, draws=40, functions=200):
    """The correlation of predictions of drawn functions with their values, through Gaussian noise of closed form."""
    apart = np.sqrt(((x[:, None] - x[None]) ** 2).sum(axis=2).mean())
    square, d = (0.739 * apart) ** 2, x.shape[1]
    wide, products = square + 2 * sd**2, []
    for _ in range(draws):
        records = x[rng.permutation(len(x))[:350]]
        z = records + rng.normal(0, sd, records.shape)
        exact = np.exp(-((records[:, None] - records[None]) ** 2).sum(axis=2) / (2 * square))
        noisy = (square / wide) ** (d / 2) * np.exp(-((z[:, None] - z[None]) ** 2).sum(axis=2) / (2 * wide))
        np.fill_diagonal(noisy, 1.0)
        f = np.linalg.cholesky(exact + 1e-8 * np.eye(350)) @ rng.standard_normal((350, functions))
        predicted = np.linalg.solve(noisy[:50, :50], noisy[:50, 50:]).T @ f[:50]
        of_rows = [values - values.mean(axis=0) for values in (predicted, f[50:])]
        moments = [(a * b).sum() for a, b in ((*of_rows,), (of_rows[0],) * 2, (of_rows[1],) * 2)]
        products.append(moments[0] / np.sqrt(moments[1] * moments[2]))
    return np.mean(products)


@pytest.mark.parametrize("sd", [0.3, 0.6, 2.0])
def test_rho_is_the_correlation_of_what_a_search_predicts_with_the_outcomes(sd):
    """40 draws of 200 functions; control: noise that is half as large predicts visibly better."""
    x = np.random.default_rng(2).random((600, 3)) * [1.0, 2.0, 3.0]
    value = rho(x, wire.NoiseLaw(family="gaussian", sd=sd), 3)
    assert value == pytest.approx(drawn_rho(x, sd, np.random.default_rng(3)), abs=0.035)
    assert rho(x, wire.NoiseLaw(family="gaussian", sd=sd / 2), 3) > value + 0.035


def test_rho_of_axes_is_that_of_the_columns_that_are_released():
    """Rows of 40 features of which three vary: by their axes, and by made-up rows of the same variances.

    Controls: noise on all 40, and axes along which nothing varies.
    """
    rng, law, sds = np.random.default_rng(5), wire.NoiseLaw(family="gaussian", sd=1.0), np.full(40, 0.01)
    sds[:3] = 1.5, 2.0, 3.0
    turned, _ = np.linalg.qr(rng.normal(size=(40, 40)))
    x = (rng.normal(size=(600, 40)) * sds) @ turned.T
    value = rho(x, law, 3, turned[:, :3])
    assert value == pytest.approx(drawn_rho((x @ turned)[:, :3], 1.0, np.random.default_rng(6)), abs=0.035)
    assert rho_of_variances(sds**2, law, 3) == pytest.approx(value, abs=0.05)
    assert rho(x, law, 40) < value - 0.1
    assert rho(x, law, 3, turned[:, 3:6]) < CHANCE


def test_rho_of_digits_by_axes():
    """64 pixels at epsilon 1 and delta 1e-5, a hidden change of 2.7 levels of 16: noise on all, and on 5 or 7 axes."""
    from sklearn.datasets import load_digits

    x = load_digits().data / 2.7
    axes = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)[2].T
    assert rho(x, wire.NoiseLaw(family="gaussian", sd=3.7306), 64) == pytest.approx(0.11, abs=0.01)
    for r, sd in ((5, 2.38), (7, 2.63)):
        law = wire.NoiseLaw(family="planar_laplace", sd=sd)
        assert rho(x, law, r, axes[:, :r]) == pytest.approx(0.5, abs=0.02)


def test_rho_does_not_depend_on_the_unit():
    """What is hidden as one unit, or as a share of a scale, is the same promise and the same noise."""
    stated = [wire.Feature(column=c, lower=0.0, upper=10.0, hidden_change=2.0) for c in "ab"]
    scaled = [wire.Feature(column=c, lower=0.0, upper=10.0, scale=4.0) for c in "ab"]
    by_default = [wire.Feature(column=c, lower=0.0, upper=10.0) for c in "ab"]
    values = [study(stated), study(scaled, sensitivity=0.5), study(by_default, sensitivity=0.2)]
    assert [rho_of_draft(spec) for spec in values] == pytest.approx([rho_of_draft(values[0])] * 3, rel=1e-6)
    assert rho_of_draft(study(by_default)) < CHANCE  # the default hides the whole range
    identity = study(stated).model_copy(update={"release": wire.IdentityRelease(mechanism="identity")})
    assert rho_of_draft(identity) is None
    assert search_noise.in_words(None) is None


def test_uniform_rows_say_nothing_of_many_features():
    spec = a_study(wire.AutoRelease(epsilon="1", delta=1e-6), d=21)
    assert rho_of_draft(spec) is None
    assert rho_of_draft(a_study(wire.AutoRelease(epsilon="1"), d=20)) is not None


def test_the_sentence_follows_the_thresholds():
    said = [search_noise.in_words(value) for value in (CHANCE - 0.01, CHANCE, CLEAR, CLEAR + 0.01)]
    ends = ["no better than random records.", *["look at the forecast."] * 2, "tell records apart."]
    assert all(text.endswith(end) for text, end in zip(said, ends, strict=True))


def test_noise_that_hides_the_search_is_a_caution_at_the_field_that_sets_it():
    for spec, field in ((study(BOX), "features.0.hidden_change"), (study([BOX[1]]), "release.sensitivity")):
        (caution,) = search_noise.of_study(spec, CHANCE - 0.01)
        assert (caution.code, caution.field) == ("noise_hides_search", field)
        assert caution.message.startswith(search_noise.in_words(CHANCE - 0.01))
        assert search_noise.of_study(spec, CHANCE) == search_noise.of_study(spec, None) == []


def test_records_that_lie_closer_than_their_box_are_a_caution_for_the_owner():
    spec, rng = study(BOX), np.random.default_rng(4)
    law, spread = wire.NoiseLaw(family="planar_laplace", sd=1.0), rng.random((300, 2))
    assert search_noise.of_records(spec, 0.5, 20 * spread, law, 2) == []
    (caution,) = search_noise.of_records(spec, 0.5, 0.1 * spread, law, 2)
    assert caution.message.startswith("Your records")
    assert "larger epsilon" in caution.message
    assert search_noise.of_records(spec, 0.05, 0.1 * spread, law, 2) == []  # the box shows it already
    assert search_noise.of_records(spec, None, 0.1 * spread, wire.NoiseLaw(family="none"), 2) == []
    (alike,) = search_noise.of_records(spec, 0.5, np.zeros((300, 2)), law, 2)
    assert (alike.code, alike.field) == ("noise_hides_search", search_noise.field_of_delta(spec))
    assert alike.message.startswith("All of your records are alike in these features")


REST = {"noise_sd": None, "distance_error": None, "low": 0, "high": 1}


def points_of(*levels):
    """Points of a forecast: epsilon of release and answers, gap, and whether it beats chance."""
    made = [
        wire.ForecastPoint(
            mechanism="auto",
            runs_as="auto",
            epsilon=release,
            answers_epsilon=answers,
            regret=gap,
            better_than_chance=better,
            by_lengthscale=[
                wire.LengthscaleRegret(lengthscale=1.0, regret=gap, low=0, high=1, better_than_chance=better)
            ],
            **REST,
        )
        for release, answers, gap, better in levels
    ]
    return [
        wire.ForecastPoint(mechanism="random_rows", runs_as="random_rows", epsilon=None, regret=0.4, **REST),
        *made,
    ]


def test_a_forecast_is_read_at_the_drafts_own_release_and_answers():
    points = points_of(("1", None, 0.3, True), ("1", "1", 0.39, False), ("2.0", "1", 0.2, True))
    private = wire.AutoAnswers(epsilon="1.0", value_bound=1.0)
    for epsilon, answers, gap in (("1", EXACT, 0.3), ("1", private, 0.39), ("2", private, 0.2)):
        spec = study(BOX, epsilon=epsilon).model_copy(update={"answers": answers})
        assert search_noise.own_point(points, spec).regret == gap
        assert search_noise.of_forecast(points, spec).endswith(
            f"short of the best: {gap} (better than random records: {'no' if gap == 0.39 else 'yes'}). "
            "Random records: 0.4."
        )
    refining = study(BOX).model_copy(update={"refine": wire.Refine(epsilon="3.0", persons=5)})
    assert search_noise.own_point(points, refining) is None
    points.append(points[1].model_copy(update={"refine_epsilon": "3", "regret": 0.1, "by_lengthscale": []}))
    assert search_noise.own_point(points, study(BOX)).regret == 0.3
    assert search_noise.of_forecast(points, refining).endswith(
        "short of the best: 0.1 (better than random records: yes). Without second draws: 0.3. Random records: 0.4."
    )
    assert "1, then 3" in Forecast.model_construct(points=points)._repr_html_()
    assert search_noise.of_forecast(points, study(BOX, epsilon="3")) is None
    assert search_noise.of_forecast(points[1:], study(BOX)) is None
    assert search_noise.in_words(0.7, study(BOX, epsilon="3"), points) == search_noise.in_words(0.7)


def test_groups_stand_beside_a_search_and_are_advised_where_they_end_nearer():
    private = wire.AutoAnswers(epsilon="1", value_bound=1.0)
    spec = study(BOX).model_copy(update={"answers": private, "measurement": COLUMN})
    points = points_of(("1", "1", 0.39, True))
    group = points[0].model_copy(update={"mechanism": "groups_at_once", "runs_as": "groups", "epsilon": "2"})
    advised = []
    for gap in (0.2, 0.39):
        beside = [*points, group.model_copy(update={"regret": gap})]
        said = f"Groups answered at once, for epsilon 2 of a record in total: {gap}."
        assert search_noise.of_forecast(beside, spec).endswith(f" Random records: 0.4. {said}")
        hides = [wire.Caution(code="answers_hide_search", field="answers.epsilon", message="-")]
        for value, cautions in ((0.5, ()), (0.5, hides), (0.05, ())):
            tool = search_noise.tool(spec, value, cautions, 1000, is_public=False, points=beside)
            advised.append("for epsilon 2 of a record in total, end nearer to the best record: take groups" in tool.why)
    assert advised == [True] * 3 + [False] * 3


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ((True, True, True), "yes"),
        ((False, True, True), "only if outcomes are smooth"),
        ((False, False, True), "only if outcomes are smooth"),
        ((True, False, False), "only if outcomes are rough"),
        ((False, True, False), "only if outcomes are neither rough nor smooth"),
        ((False, False, False), "no"),
    ],
)
def test_rough_middle_and_smooth_stand_together(flags, word):
    """Control: the middle one alone is not told from all three."""

    def point(**more):
        about = {"runs_as": "auto", "noise_sd": None, "distance_error": None, "low": 0, "high": 1, "regret": 0.3}
        at = {"lengthscale": 1.0, "low": 0, "high": 1}
        ends = zip((0.5, 0.3, 0.1), more.pop("flags"), strict=True)
        parts = [wire.LengthscaleRegret(**at, regret=gap, better_than_chance=flag) for gap, flag in ends]
        return wire.ForecastPoint(**about, **more, by_lengthscale=parts)

    points = [
        point(mechanism="random_rows", epsilon=None, flags=(None,) * 3),
        point(mechanism="auto", epsilon="1", flags=flags, better_than_chance=flags[1]),
    ]
    assert search_noise.of_forecast(points, study(BOX)) == (
        "Forecast of how many standard deviations the recommended record ends short of the best if outcomes are "
        f"rough, middling and smooth: 0.5, 0.3 and 0.1 (better than random records: {word}). "
        "Random records: 0.5, 0.3 and 0.1."
    )
    shown = Forecast.model_construct(points=points)._repr_html_()
    for part in ("Rough", "Smooth", "0.5", "0.1", word):
        assert part in shown
    assert points[0].better is None


def by_people(answers=EXACT, queries=30, n=1000, release=None, **more):
    caps = {} if queries is None else {"queries": queries}
    return a_study(release or wire.AutoRelease(epsilon="2"), answers, features=BOX, measurement=BY_HAND, **caps, **more)


@pytest.mark.parametrize(
    ("epsilon", "queries", "hides"),
    [("1", 30, True), ("1", 98, True), ("1", 99, False), ("4", 30, False), ("4", 9, True), ("1", None, False)],
)
def test_answers_that_are_worth_fewer_than_five_exact_ones_hide_the_search(epsilon, queries, hides):
    """The default: one bit of size 2.164 B at epsilon 1, so N answers are worth N / 19.73; at 4, N / 1.966."""
    spec = by_people(wire.AutoAnswers(epsilon=epsilon, value_bound=8.5), queries)
    cautions = search_noise.of_answers(spec, accounting.price(spec), ())
    assert [(c.code, c.level, c.field) for c in cautions] == [
        ("answers_hide_search", "high", "answers.epsilon")
    ] * hides


def test_a_forecast_that_is_no_better_than_chance_hides_the_search_with_exact_answers_too():
    spec = by_people()
    chance, better = points_of(("2", None, 0.4, False)), points_of(("2", None, 0.1, True))
    (caution,) = search_noise.of_answers(spec, accounting.price(spec), chance)
    assert (caution.code, caution.field) == ("answers_hide_search", "budget.queries")
    assert search_noise.of_answers(spec, accounting.price(spec), better) == []
    assert search_noise.of_answers(spec, accounting.price(spec), ()) == []


def test_private_answers_have_to_be_better_than_chance_for_outcomes_of_each_kind():
    """Exact ones over all three together, even if no kind alone has enough functions to show it."""
    (_, point), cautions = points_of(("2", "8", 0.1, True)), []
    middle = point.by_lengthscale[0]
    rough = middle.model_copy(update={"better_than_chance": False})
    for parts in ([], [rough, middle, middle], [rough] * 3):
        changed = point.model_copy(update={"by_lengthscale": parts})
        for answers, epsilon in ((wire.AutoAnswers(epsilon="8", value_bound=8.5), "8"), (EXACT, None)):
            spec, points = by_people(answers), [changed.model_copy(update={"answers_epsilon": epsilon})]
            cautions.append(len(search_noise.of_answers(spec, accounting.price(spec), points)))
    assert cautions == [0, 0, 1, 0, 1, 0]


PRIVATE = wire.AutoAnswers(epsilon="4", value_bound=1.0)
OF_COLUMN = {"measurement": COLUMN, "queries": 30}
GROUPS = a_study(group_release(), wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=1.0))
WHOLE = wire.AutoRelease(epsilon="1", sensitivity=2**0.5)
WIDE = [wire.Feature(column=c, lower=0.0, upper=1.0) for c in "ab"]
SIX = [wire.Feature(column=f"x{i}", lower=0.0, upper=1.0, hidden_change=0.05) for i in range(6)]
CASES = [
    ("exact column", a_study(wire.AutoRelease(epsilon="2"), EXACT, features=BOX), "sort", "Sort the column"),
    ("public", a_study(wire.IdentityRelease(mechanism="identity"), EXACT), "search", "no noise"),
    ("private column", a_study(wire.AutoRelease(epsilon="2"), PRIVATE, features=BOX), "search", "you could also sort"),
    ("grid", GROUPS, "groups_at_once", "answered at once (:answer_all): no search is needed."),
    (
        "centres",
        GROUPS.model_copy(
            update={"release": group_release(cells=wire.PrivateCells(kind="private", number=9, epsilon="0.1"))}
        ),
        "groups_at_once",
        "(:answer_all)",
    ),
    ("more queries than records", by_people(queries=60), "measure_all", "60 measurements"),
    ("as many", by_people(queries=40), "measure_all", "40 records"),
    ("whole ranges", a_study(wire.AutoRelease(epsilon="1"), features=WIDE, measurement=BY_HAND), "not_useful", "rand"),
    ("whole records", a_study(WHOLE, features=WIDE, measurement=BY_HAND), "not_useful", "random records."),
    ("little rho", by_people(release=wire.AutoRelease(epsilon="0.12")), "search", "look at the forecast"),
    ("embeddings", a_study(wire.AutoRelease(epsilon="1", delta=1e-6), d=64, measurement=BY_HAND), "search", "unknown"),
    ("six features", a_study(wire.AutoRelease(epsilon="4"), features=SIX, measurement=BY_HAND), "search", "apart"),
]


@pytest.mark.parametrize(("spec", "name", "says"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_tool_of_twelve_written_cases(spec, name, says):
    n = 40 if spec.budget.queries else 1000
    is_public = isinstance(spec.release, wire.IdentityRelease)
    tool = search_noise.tool(spec, rho_of_draft(spec), (), n, is_public=is_public)
    assert (tool.name, says in tool.why) == (name, True), tool
    assert bool(tool.hints) == (name == "search" and len(spec.features) >= 4)
    assert all("one feature" not in hint for hint in tool.hints)


def test_a_cap_that_is_in_the_way_of_answers_about_all_groups_is_named_before_the_release():
    capped = GROUPS.model_copy(update={"budget": wire.Budget(queries=2)})
    tools = [search_noise.tool(spec, None, (), 1000, is_public=False) for spec in (capped, GROUPS)]
    assert [tool.figures for tool in tools] == [{"groups": 3}] * 2
    assert ["cap of 2 measurements may be too low for up to 3 groups" in tool.why for tool in tools] == [True, False]


WHOLE_PRIVATE = a_study(WHOLE, PRIVATE, features=WIDE, measurement=BY_HAND)


@pytest.mark.parametrize(
    ("whole", "n", "delta", "says"),
    [
        (None, 500, None, None),  # exact answers: 50 random records, measured, reach a probability of 0.1
        ("3", 500, None, "a single good one of 500 records with a probability above 0.041."),
        ("32", 500, None, None),  # the bound is above 1
        ("6.21", 500, None, None),  # 0.995, which is shown rounded up
        ("3", 500, 0.3, "above 0.35."),
    ],
)
def test_theorem_t_is_said_only_of_a_bound_below_1_that_counts_the_answers(whole, n, delta, says):
    answers, epsilon = (EXACT, None) if whole is None else (PRIVATE, Decimal(whole))
    release = WHOLE.model_copy(update={"delta": delta})
    spec = WHOLE_PRIVATE.model_copy(update={"answers": answers, "release": release})
    tool = search_noise.tool(spec, 0.5, (), n, is_public=False, whole=epsilon)
    assert (tool.name, "Theorem T" in tool.why) == (("search", False) if says is None else ("not_useful", True))
    assert (says or "") in tool.why


def test_a_column_with_private_answers_could_be_sorted_also_where_a_search_is_not_useful():
    spec = WHOLE_PRIVATE.model_copy(update={"measurement": COLUMN})
    hides = [wire.Caution(code="answers_hide_search", field="answers.epsilon", message="-")]
    for value, cautions, whole in ((0.01, (), None), (0.5, hides, None), (0.5, (), Decimal(1))):
        tool = search_noise.tool(spec, value, cautions, 1000, is_public=False, whole=whole)
        assert (tool.name, "you could also sort" in tool.why) == ("not_useful", True)


def test_a_forecast_like_chance_makes_a_search_useless():
    spec = by_people()
    hides = search_noise.of_answers(spec, accounting.price(spec), points_of(("2", None, 0.4, False)))
    assert search_noise.tool(spec, 0.5, hides, 1000, is_public=False).name == "not_useful"
    assert search_noise.tool(spec, 0.5, (), 1000, is_public=False).name == "search"


@pytest.mark.parametrize("epsilon", [0.1, 0.4, 0.68])
def test_theorem_t_by_a_linear_program(epsilon):
    """The best mechanism for n = 3 over all tables of {0, 1}: how often it names the single 1, on average."""
    from itertools import product

    from scipy.optimize import linprog

    n = 3
    tables = list(product((0, 1), repeat=n))
    column = {(table, out): i for i, (table, out) in enumerate(product(tables, range(n)))}
    objective = np.zeros(len(column))
    for j in range(n):
        objective[column[tuple(int(i == j) for i in range(n)), j]] = -1 / n
    neighbours = [(a, b) for a in tables for b in tables if sum(x != y for x, y in zip(a, b, strict=True)) == 1]
    private = np.zeros((len(neighbours) * n, len(column)))
    for line, ((a, b), out) in enumerate(product(neighbours, range(n))):
        private[line, column[a, out]], private[line, column[b, out]] = 1.0, -np.exp(epsilon)
    total = np.array([[float(table == at) for at, _ in column] for table in tables])
    best = -linprog(objective, private, np.zeros(len(private)), total, np.ones(len(tables))).fun
    assert best == pytest.approx(np.exp(epsilon) / n, rel=1e-6)
    assert best > 1 / n + 0.03  # the control: more than a guess
    figures = search_noise.tool(WHOLE_PRIVATE, 0.01, (), n, is_public=False, whole=Decimal(str(epsilon))).figures
    assert figures == {"probability": pytest.approx(best, rel=1e-6)}
