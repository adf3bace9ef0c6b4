"""Releases of groups: partitions by hand, what is drawn and kept, and the faults of drafts, each at its field."""

from decimal import Decimal

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import ReleaseImpossible
from curator_service.datasets.scaling import ScaledRows
from curator_service.releases.mechanisms import groups
from curator_service.releases.mechanisms.groups import NO_CANDIDATE, WITHHELD, Groups, faults
from curator_service.releases.mechanisms.mechanism import Assessment
from tests.builders import a_study, group_release

BOX = [
    wire.Feature(column="a", lower=-1.0, upper=3.0, scale=0.5),
    wire.Feature(column="b", lower=10.0, upper=16.0, scale=2.0),
]
"""8 by 3 scaled units."""
GRID = wire.GridCells(kind="grid", parts=[2, 3])
CENTRES = wire.CentreCells(kind="centres", centres=[[-1.0, 10.0], [3.0, 16.0], [1.0, 13.0]])
PRIVATE = wire.PrivateCells(kind="private", number=4, epsilon="0.25")


def of(cells, min_count=2, rows=1, epsilon="0.5"):
    return Groups(BOX, cells, Decimal(epsilon), min_count, rows)


# --- partitions -------------------------------------------------------------------------------------


def test_a_grid_has_equal_parts_the_last_feature_first():
    grid = of(GRID)
    lower, upper = grid.bounds()
    assert lower.tolist() == [[-1, 10], [-1, 12], [-1, 14], [1, 10], [1, 12], [1, 14]]
    assert upper.tolist() == [[1, 12], [1, 14], [1, 16], [3, 12], [3, 14], [3, 16]]
    assert grid.raw_centres().tolist() == [[0, 11], [0, 13], [0, 15], [2, 11], [2, 13], [2, 15]]
    assert grid.centres().tolist() == [[-2, -1], [-2, 0], [-2, 1], [2, -1], [2, 0], [2, 1]]
    assert grid.raw_centres()[grid.parts_of(grid.centres())].tolist() == grid.raw_centres().tolist()
    ends = np.array([[-4, -1.5], [-4, 1.5], [0, -1.5], [4, 1.5], [-4 - 1e-12, -0.501], [4 + 1e-12, -0.499]])
    assert grid.parts_of(ends).tolist() == [0, 2, 3, 5, 0, 4]  # also where rounding is beyond an end


def test_public_centres_have_the_records_that_are_nearest_in_scaled_units():
    """By hand. In raw units the last record would be nearest to the third centre."""
    by_centres = of(CENTRES)
    assert by_centres.raw_centres().tolist() == CENTRES.centres
    assert by_centres.centres().tolist() == [[-4, -1.5], [4, 1.5], [0, 0]]
    assert by_centres.parts_of(np.array([[-4, 1.5], [-2, -0.25], [3.9, -1.5], [-3.0, 1.4]])).tolist() == [0, 2, 1, 0]
    assert by_centres.parts_of(np.array([[1.0, 0.0]]), np.array([[9.0, 9.0], [1.0, 0.5]])).tolist() == [1]


def test_drawn_centres_are_sent_in_raw_units():
    scaled = np.array([[-4.0, 1.5], [0.0, 0.0], [1.0, -0.5]])
    assert of(PRIVATE).in_raw_units(scaled).tolist() == [[-1, 16], [1, 13], [1.5, 12]]


def test_the_number_of_parts_and_what_draws_centres_follow_from_the_partition():
    assert [of(cells).number for cells in (GRID, CENTRES, PRIVATE)] == [6, 3, 4]
    assert of(GRID).private is of(CENTRES).private is None
    private = of(PRIVATE, rows=3).private
    assert (private.features, private.number, private.epsilon, private.rows) == (BOX, 4, Decimal("0.25"), 3)
    grid = of(GRID)
    assert (grid.columns(2), grid.noise(2).family, grid.assess(None)) == (2, "none", Assessment())
    with pytest.raises(ReleaseImpossible):
        grid.draw(None, None)


# --- what is drawn ----------------------------------------------------------------------------------


@pytest.fixture
def laws(monkeypatch):
    """The noise takes 1 from each number; its laws."""
    drawn = []

    def add(values, sensitivity, epsilon):
        drawn.append((values, sensitivity, epsilon))
        return [value - 1 for value in values]

    monkeypatch.setattr(groups, "add_integer_laplace", add)
    return drawn


def test_records_are_counted_by_part_and_parts_with_enough_are_candidates(laws):
    """Ten stored records, of which 0 and 9 are withheld, in a secret order; two blocks: 2,048 more are of one part."""
    grid, shares = of(GRID, rows=3), []
    part = np.array([0, 5, 1, 5, 1, 3, 5, 1, 5, 2] + [4] * 2_048)
    values = np.column_stack([np.full(2_058, 1e9), grid.raw_centres()[part] + 0.25])
    order = np.array([8, 1, 7, 2, *range(2_057, 9, -1), 6, 3, 5, 4])
    divided = grid.divide(ScaledRows(values, [1, 2], BOX, order), shares.append)
    assert laws == [([0, 3, 0, 1, 2_048, 4], 6, Decimal("0.5"))]
    assert (divided.kept.tolist(), divided.counts) == ([1, 4, 5], [2, 2_047, 3])
    assert divided.centres.tolist() == [[-2, 0], [2, 0], [2, 1]]
    expected = (
        {0: WITHHELD, 9: WITHHELD, 5: NO_CANDIDATE} | dict.fromkeys((2, 4, 7), 0) | dict.fromkeys((1, 3, 6, 8), 2)
    )
    assert divided.candidates.tolist() == [expected[i] for i in range(10)] + [1] * 2_048
    assert (WITHHELD, NO_CANDIDATE) == (-2, -1)
    assert shares == [2_048 / 2_056, 1]


def test_where_no_part_has_enough_the_largest_is_the_candidate():
    grid = of(GRID, min_count=5)
    assert grid.chosen([-3, 4, 4, -9, 1, 2]).tolist() == [1]
    assert grid.chosen([5, 4, 4, 6, 1, 2]).tolist() == [0, 3]


def test_private_centres_are_sought_first_and_take_eight_of_nine_parts_of_the_time(laws, monkeypatch):
    drawn = np.array([[-4.0, 0.0], [4.0, 0.0], [0.0, 1.5], [0.0, -1.5]])

    def seek(self, rows, on_progress):
        on_progress(0.5)
        return drawn

    monkeypatch.setattr(groups.PrivateCentres, "seek", seek)
    values, shares = np.array([[-1.0, 13.0], [3.0, 13.0], [2.5, 13.0], [3.0, 12.5]]), []
    divided = of(PRIVATE, rows=2).divide(ScaledRows(values, [0, 1], BOX, np.arange(4)), shares.append)
    assert (laws[0][0], divided.counts, divided.centres.tolist()) == ([1, 3, 0, 0], [2], [[4, 0]])
    assert shares == pytest.approx([4 / 9, 1])


# --- drafts -----------------------------------------------------------------------------------------


def draft(cells=GRID, epsilon="0.5", features=BOX, **more):
    values = {"release": group_release(epsilon, cells=cells), "answers": laplace("0.5"), "features": features}
    return a_study(**values | more)


def many(d, **more):
    return [wire.Feature(column=f"x{j}{len(more)}", lower=0.0, upper=1.0, **more) for j in range(d)]


def grid(*parts):
    return wire.GridCells(kind="grid", parts=list(parts))


def centres(*points):
    return wire.CentreCells(kind="centres", centres=list(points))


def laplace(epsilon="0.5", **more):
    return wire.LaplaceAnswers(mechanism="laplace", epsilon=epsilon, value_bound=1.0, **more)


CORNERS = centres([-1.0, 10.0], [3.0, 16.0])
THREE = {"rows_per_person": 3, "person_column": True}


def thin(most):
    return {"features": [BOX[0], wire.Feature(column="b", lower=-most / 4, upper=most / 4, scale=0.5)]}


GOOD = [
    {},
    {"cells": CORNERS},
    {"cells": grid(100, 100)},
    {"features": many(20), "cells": grid(*[1] * 20)},
    thin(1e-100),
    {"answers": wire.AutoAnswers(mechanism="auto", epsilon="0.5", value_bound=1.0)},
    {"answers": laplace("0.000001"), **THREE},
    {"cells": wire.PrivateCells(kind="private", number=2, epsilon="0.499999999999")},
    {"cells": wire.PrivateCells(kind="private", number=2, epsilon="0.000001")},
]


@pytest.mark.parametrize("changed", GOOD, ids=repr)
def test_a_draft_that_groups_can_release_has_no_fault(changed):
    assert faults(draft(**changed)) == []


WRONG = {
    "21 features": ({"features": many(21), "cells": grid(*[1] * 20)}, ["features", "release.cells.parts"]),
    "hidden": ({"features": [*many(1), *many(1, hidden_change=0.5)]}, ["features.1.hidden_change"]),
    "thin": (thin(9.9e-101), ["features.1.scale"]),
    "parts": ({"cells": grid(2)}, ["release.cells.parts"]),
    "groups": ({"cells": grid(73, 137)}, ["release.cells.parts"]),
    "short centre": ({"cells": centres([0.0, 12.0], [1.0])}, ["release.cells.centres.1"]),
    "below": ({"cells": centres([0.0, 12.0], [0.0, 13.0], [0.0, 9.9], [5.0, 9.0])}, ["release.cells.centres.2"]),
    "above": ({"cells": centres([3.1, 12.0])}, ["release.cells.centres.0"]),
    "twice": ({"cells": centres([0.0, 12.0], [0.0, 13.0], [0.0, 12.0])}, ["release.cells.centres"]),
    "all for centres": (
        {"cells": wire.PrivateCells(kind="private", number=2, epsilon="0.5")},
        ["release.cells.epsilon"],
    ),
    "people": (
        {"measurement": wire.WebhookMeasurement(source="webhook", direction="maximize")},
        ["measurement.source"],
    ),
    "noise": (
        {"measurement": wire.ColumnMeasurement(column="y", direction="maximize", noise_variance=1.0)},
        ["measurement.noise_variance"],
    ),
    "answer": ({"privacy_unit": "answer"}, ["privacy_unit"]),
    "exact": ({"answers": wire.NoAnswerNoise(mechanism="none")}, ["answers.mechanism"]),
    "mean": ({"answers": laplace(plays="mean")}, ["answers.plays"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_of_a_draft_is_at_its_field(name):
    changed, fields = WRONG[name]
    named = faults(draft(**changed))
    assert [fault["field"] for fault in named] == fields
    assert all(isinstance(fault["message"], str) for fault in named)


def test_the_least_epsilons_are_named_in_the_fault():
    """A person's 1,000 records: 2^31 * 1000 / 2^57 of an answer; 16 times as much, in two features, of centres."""
    persons = {"rows_per_person": 1000, "person_column": True}
    answer, of_centres = Decimal("0.000014901162"), 16 * Decimal("0.000029802323")
    private = wire.PrivateCells(kind="private", number=2, epsilon=str(of_centres))
    assert faults(draft(cells=private, answers=laplace(str(answer)), **persons)) == []
    less = Decimal("0.000000000001")
    private = wire.PrivateCells(kind="private", number=2, epsilon=str(of_centres - less))
    assert faults(draft(cells=private, answers=laplace(str(answer - less)), **persons)) == [
        {"field": field, "message": f"noise does not fit 64 bits: take {least} or more"}
        for field, least in (("release.cells.epsilon", of_centres), ("answers.epsilon", answer))
    ]
    assert faults(draft(cells=grid(73, 137)))[0]["message"].startswith("this grid has 10,001 groups, and 10,000 are")
    assert faults(draft(cells=GRID, release=wire.IdentityRelease(mechanism="identity"))) == []


def test_the_mechanism_of_a_study_has_what_its_centres_leave_of_epsilon_and_all_rows_of_a_person():
    spec = draft(cells=PRIVATE, epsilon="0.625", **THREE)
    made = Groups.of(spec, spec.release)
    assert (made.features, made.cells, made.epsilon, made.min_count, made.rows) == (
        BOX, PRIVATE, Decimal("0.375"), 20, 3,
    )  # fmt: skip
    assert Groups.of(draft(), draft().release).epsilon == Decimal("0.5")
