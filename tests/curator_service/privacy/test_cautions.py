"""Cautions about drafts that no expert would pass: each where it belongs, and none about a careful draft."""

import numpy as np
import pytest

from blindopt import wire
from curator_service.privacy.accounting import price
from curator_service.privacy.calibration import concrete
from curator_service.privacy.cautions import mean_spacing, of_bounds, of_categories, of_released, of_study
from tests.builders import a_study

CAREFUL = {
    "release": wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1", sensitivity=0.25),
    "answers": wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=2.0),
    "budget": wire.Budget(epsilon_per_row="3"),
}
EXACT = wire.NoAnswerNoise(mechanism="none")


def study(**changed):
    return a_study(**({"features": [wire.Feature(column=c, lower=0.0, upper=20.0) for c in "ab"]} | CAREFUL | changed))


def cautions(spec, n=500, is_public=False):
    release, _ = concrete(spec)
    found_by = of_study(spec, release, price(spec, release), n=n, is_public=is_public)
    return [(caution.code, caution.field) for caution in found_by]


def gaussian(**changed):
    return wire.GaussianRelease(**({"mechanism": "gaussian", "epsilon": "1", "delta": 1e-6} | changed))


def planar(**changed):
    return CAREFUL["release"].model_copy(update=changed)


def answers(**changed):
    return CAREFUL["answers"].model_copy(update=changed)


CHANCE = ("answers_hide_search", "answers.epsilon")  # 18 at epsilon 0.5 are worth less than 1 exact answer


def test_each_caution_names_the_step_that_mends_it_and_only_what_promises_next_to_nothing_is_high():
    release = gaussian(epsilon="11", delta=1e-3)
    spec = study(release=release, answers=EXACT, budget=wire.Budget())
    found_by = of_study(spec, release, price(spec, release), n=500, is_public=False)
    assert {(c.code, c.level, c.fix.step) for c in found_by} == {
        ("epsilon_large", "high", "release"),
        ("delta_large", "high", "release"),
        ("exact_answers", "note", "answers"),  # the verdict of a check is high already
        ("no_cap", "high", "answers"),
    }


def test_a_careful_draft_has_none():
    assert cautions(study()) == []


@pytest.mark.parametrize(
    ("changed", "n", "expected"),
    [
        ({"release": gaussian(delta=2e-5)}, 500, [("delta_large", "release.delta")]),  # 2e-5 * 500 = 0.01
        ({"release": gaussian(delta=1.9e-5)}, 500, []),
        ({"release": gaussian(delta=1.9e-5)}, 1_000, [("delta_large", "release.delta")]),
        # auto takes planar Laplace for two features, which spends no delta
        ({"release": wire.AutoRelease(epsilon="1", delta=1e-5, sensitivity=0.5)}, 5_000, []),
        ({"budget": wire.Budget()}, 500, [("no_cap", "budget.epsilon_per_row")]),
        ({"budget": wire.Budget(queries=100)}, 500, [CHANCE, ("row_epsilon_large", "budget.epsilon_per_row")]),
        ({"budget": wire.Budget(queries=18)}, 500, [CHANCE]),  # 1 + 18 * 0.5 = 10
        ({"budget": wire.Budget(epsilon_total="10")}, 500, [CHANCE]),
        ({"budget": wire.Budget(queries=18, epsilon_per_row="2"), "answers": answers(epsilon="8")}, 500, []),
        ({"budget": wire.Budget(epsilon_per_row="11")}, 500, [("row_epsilon_large", "budget.epsilon_per_row")]),
        ({"answers": EXACT, "budget": wire.Budget(queries=5)}, 500, [("exact_answers", "answers.mechanism")]),
        (
            {"answers": EXACT, "budget": wire.Budget()},
            500,
            [("exact_answers", "answers.mechanism"), ("no_cap", "budget.queries")],
        ),
        (
            {"privacy_unit": "answer", "measurement": wire.WebhookMeasurement(source="webhook", direction="maximize")},
            500,
            [("no_cap", "budget.queries")],
        ),
        ({"release": planar(sensitivity=0.02)}, 500, [("sensitivity_small", "release.sensitivity")]),
        ({"release": planar(sensitivity=0.02)}, 1, [("few_records", "dataset_id")]),  # nobody is near
        ({"release": planar(sensitivity=0.02)}, 5_000, []),
    ],
    ids=str,
)
def test_each_caution_is_where_it_belongs_and_only_there(changed, n, expected):
    assert cautions(study(**changed), n) == expected


def test_a_large_epsilon_is_one_above_10_of_a_release_or_of_answers():
    budget = wire.Budget(epsilon_per_row="10")
    assert cautions(study(release=planar(epsilon="9.999"), budget=budget)) == []
    assert cautions(study(release=planar(epsilon="10"), budget=budget)) == []
    of_caps = ("row_epsilon_large", "budget.epsilon_per_row")
    loud = study(release=planar(epsilon="10.001"), budget=wire.Budget(epsilon_per_row="11"))
    assert cautions(loud) == [("epsilon_large", "release.epsilon"), of_caps]
    loud = study(answers=answers(epsilon="10.001"), budget=wire.Budget(epsilon_per_row="12"))
    assert cautions(loud) == [("epsilon_large", "answers.epsilon"), of_caps]


def messages(spec, n=500, rho=None):
    release, _ = concrete(spec)
    of_draft = of_study(spec, release, price(spec, release), n=n, is_public=False, rho=rho)
    return {caution.code: caution.message for caution in of_draft}


def test_a_small_delta_is_one_below_the_mean_spacing_from_two_records_on():
    """Two of them are 0.5 apart on average, in a box of one unit; with a hidden change it is the unit."""
    spacing = mean_spacing(study().features, 2)
    assert spacing == pytest.approx(0.5)
    assert messages(study(release=planar(sensitivity=spacing)), 2).keys() == {"few_records"}
    said = messages(study(release=planar(sensitivity=0.49)), 2)["sensitivity_small"]
    assert "would be 0.5 scaled units away" in said
    assert "The hidden change is 0.49." in said
    hidden = [wire.Feature(column=c, lower=0.0, upper=20.0, hidden_change=0.5) for c in "ab"]
    said = messages(study(features=hidden, release=planar(sensitivity=1.0)), 2)["sensitivity_small"]
    assert "would be 20 times the hidden change away" in said
    assert "Delta" not in said


def test_noise_that_hides_the_search_is_among_the_cautions_of_a_draft():
    assert messages(study(), rho=0.1) == {}
    assert "correlate by 0.09 with" in messages(study(), rho=0.09)["noise_hides_search"]


def test_a_vendor_without_a_cap_learns_y_where_answers_add_up():
    others = {"privacy_unit": "answer", "measurement": wire.WebhookMeasurement(source="webhook", direction="maximize")}
    said = [messages(study(budget=wire.Budget(), **more))["no_cap"] for more in ({}, others, {"answers": EXACT})]
    assert ["learn each outcome as precisely" in text for text in said] == [True, False, False]
    assert all("without end" in text and text.endswith(" Set a cap.") for text in said)
    assert ["without end. Set" in text for text in said] == [False, True, True]


@pytest.mark.parametrize(
    ("epsilon", "rows", "min_count", "says"),
    [
        ("0.5", 3, 16, "1.1 C"),  # sqrt(2) * 2 * 3 / 0.5 / 16 = 1.06
        ("0.5", 3, 17, None),  # 0.998
        ("2", 1, 1, "1.4 C"),
        ("282.842712474619", 100, 1, "1 C"),  # as large as C to the last digit
    ],
)
def test_groups_whose_answers_are_noise_are_a_caution(epsilon, rows, min_count, says):
    cells = wire.GridCells(kind="grid", parts=[2, 2])
    release = wire.GroupsRelease(mechanism="groups", epsilon="0.5", cells=cells, min_count=min_count)
    spec = study(release=release, answers=answers(epsilon=epsilon), budget=wire.Budget(epsilon_per_row="500"))
    spec = spec.model_copy(update={"rows_per_person": rows, "person_column": True})
    price_of = price(spec, release)
    small = [c for c in of_study(spec, release, price_of, n=500, is_public=False) if c.field == "release.min_count"]
    assert [caution.code for caution in small] == ["groups_small"] * (says is not None)
    assert all(
        f"In a group of {min_count} records" in c.message and f"deviation of {says}," in c.message for c in small
    )
    exact = spec.model_copy(update={"answers": EXACT})
    assert [c.code for c in of_study(exact, release, price_of, n=500, is_public=False) if "small" in c.code] == []


def test_what_was_accepted_with_a_release_stays_but_for_its_caps():
    """Caps may change after a release: then the cautions about those of now are in place of those of then."""
    codes = ("epsilon_large", "no_cap", "row_epsilon_large", "delta_large")
    accepted = [wire.Caution(code=code, field="f", message="then") for code in codes]

    def now(budget, is_public=False):
        spec = study(budget=budget)
        said = of_released(spec, accepted, price(spec, spec.release), is_public=is_public)
        return [caution.code for caution in said if caution.message == "then"], [
            caution.code for caution in said if caution.message != "then"
        ]

    assert now(wire.Budget()) == (["epsilon_large", "delta_large"], ["no_cap"])
    assert now(wire.Budget(epsilon_per_row="11")) == (["epsilon_large", "delta_large"], ["row_epsilon_large"])
    assert now(wire.Budget(epsilon_per_row="3")) == (list(codes), [])
    assert now(wire.Budget(), is_public=True) == (list(codes), [])


def test_public_records_need_none():
    loud = study(answers=EXACT, budget=wire.Budget(), release=gaussian(epsilon="1000", delta=0.1, sensitivity=1e-3))
    assert len(cautions(loud)) == 5
    assert cautions(loud, is_public=True) == []


@pytest.mark.parametrize(("sides", "n"), [((1.0, 1.0), 1_500), ((4.0,), 400), ((1.0, 2.0, 0.5), 1_500)])
def test_the_spacing_is_that_of_uniform_rows(sides, n):
    """By distances between simulated rows, away from the faces of the box."""
    from scipy.spatial import cKDTree

    features = [wire.Feature(column=f"c{i}", lower=0.0, upper=side, scale=1.0) for i, side in enumerate(sides)]
    rng, means = np.random.default_rng(3), []
    for _ in range(8):
        rows = rng.uniform(0, sides, size=(n, len(sides)))
        inside = np.all(np.abs(rows / sides - 0.5) < 0.35, axis=1)
        means.append(cKDTree(rows).query(rows[inside], k=2)[0][:, 1].mean())
    assert mean_spacing(features, n) == pytest.approx(np.mean(means), rel=0.05)


@pytest.mark.parametrize("n", [2, 3, 101])
def test_the_spacing_in_one_and_two_dimensions_is_that_of_the_closed_forms(n):
    """Half a part of a line; half the root of the area of each (Clark & Evans). The box is 8 by 18 scaled units."""
    features = [
        wire.Feature(column="a", lower=-1.0, upper=3.0, scale=0.5),
        wire.Feature(column="b", lower=5.0, upper=41.0, scale=2.0),
    ]
    assert mean_spacing(features[:1], n) == pytest.approx(8 / (n - 1) / 2)
    assert mean_spacing(features, n) == pytest.approx(np.sqrt(8 * 18 / (n - 1)) / 2)


def test_a_change_of_a_category_that_is_not_hidden_is_a_caution_at_its_first_column():
    """Two columns of 1 / 0.5 and 1 / 2 scaled units move together: sqrt(4.25) = 2.062; of three, the two largest."""
    units = {"x": 1.0, "cut_1": 2.0, "cut_2": 0.5, "cut_3": 4.0}
    features = [wire.Feature(column=c, lower=0.0, upper=1.0, scale=unit) for c, unit in units.items()]
    made = {"unused": ["u"], "cut": ["cut_1", "cut_2", "cut_3"]}

    def of(sensitivity, one_hot, chosen=features):
        spec = study(features=chosen, release=planar(sensitivity=sensitivity))
        return [(each.code, each.field, each.message) for each in of_categories(spec, one_hot)]

    ((code, field, message),) = of(2.06, made)
    assert (code, field) == ("category_not_hidden", "features.1")
    assert message.startswith(
        "Another category of cut moves a record by 2.06 in scaled units, and changes up to 2.06 are hidden"
    )
    assert of(2.07, made) == []
    alone = [feature for feature in features if feature.column in {"x", "cut_2"}]
    assert [field for _, field, _ in of(1.99, made, alone)] == ["features.1"]
    assert of(2.0, made, alone) == []  # as far as is hidden
    assert of(0.01, {"unused": ["u"]}) == []
    identity = study(features=features, release=wire.IdentityRelease(mechanism="identity"))
    assert of_categories(identity, made) == []


# --- from the records -------------------------------------------------------------------------------

EXTREMES = {"a": (0.0, 17.25), "b": (1.5, 20.0), "y": (-0.7, 3.1)}


def of_records(spec):
    return [(caution.code, caution.field) for caution in of_bounds(spec, EXTREMES)]


def test_bounds_that_are_the_extremes_of_a_column_are_pointed_out():
    assert of_records(study()) == [("bound_is_extreme", "features.0.lower"), ("bound_is_extreme", "features.1.upper")]
    wide = [wire.Feature(column=c, lower=-1.0, upper=21.0) for c in "ab"]
    assert of_records(study(features=wide)) == []
    near = [wire.Feature(column="a", lower=np.nextafter(0.0, 1.0), upper=np.nextafter(17.25, 0.0))]
    assert of_records(study(features=near)) == []


def test_so_are_bounds_of_y_also_where_they_are_a_centre_and_a_radius():
    wide = [wire.Feature(column="a", lower=-1.0, upper=21.0)]
    computed = answers(centre=(-0.7 + 3.1) / 2, value_bound=(3.1 + 0.7) / 2)
    assert of_records(study(features=wide, answers=computed)) == [("bound_is_extreme", "answers.value_bound")]
    rounded = answers(centre=1.2, value_bound=1.901)
    assert of_records(study(features=wide, answers=rounded)) == []
    people = wire.WebhookMeasurement(source="webhook", direction="maximize")
    assert of_records(study(features=wide, answers=computed, measurement=people)) == []


def test_each_bound_is_named_with_its_value_and_the_end_of_the_column_that_it_is():
    features = [wire.Feature(column=c, lower=lower, upper=20.0) for c, lower in (("a", -3.5), ("b", 0.0))]
    extremes = {"a": (-3.5, 17.25), "b": (1.5, 20.0), "y": (-1.0, 3.0)}
    named = of_bounds(study(features=features, answers=answers(centre=1.0, value_bound=2.0)), extremes)
    assert [(caution.field, caution.message.partition(" value of the column.")[0]) for caution in named] == [
        ("features.0.lower", "a: -3.5 is exactly the smallest"),
        ("features.1.upper", "b: 20.0 is exactly the largest"),
        ("answers.value_bound", "y: -1.0 is exactly the smallest and 3.0 is exactly the largest"),
    ]


@pytest.mark.parametrize(("ulps", "count"), [(4, 1), (5, 0)])
@pytest.mark.parametrize("end", [0, 1])
def test_a_bound_of_y_is_an_extreme_up_to_four_roundings(end, ulps, count):
    """About a centre of 0, where the differences are exact: 1 and four units in the last place."""
    wide = [wire.Feature(column="a", lower=-1.0, upper=21.0)]
    y = [-0.5, 0.5]
    y[end] *= 2 * (1 + ulps * 2.0**-52)
    spec = study(features=wide, answers=answers(value_bound=1.0))
    assert len(of_bounds(spec, {"a": (0.0, 20.0), "y": tuple(y)})) == count
