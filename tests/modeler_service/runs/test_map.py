"""Rows on the principal axes of Z, against a singular value decomposition; maps; views that are too large."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy.exc import DBAPIError

from blindopt import wire
from blindopt.client import Vendor
from blindopt.errors import Invalid
from modeler_service.runs import posterior_views
from modeler_service.runs.posterior_views import PosteriorViews
from modeler_service.runs.record import Outline, Record
from service_kit.store.database import Database
from tests import beside, postgres


@pytest.mark.parametrize("r", [1, 2, 5])
def test_axes_are_those_of_the_singular_value_decomposition(r):
    z = np.random.default_rng(r).normal(size=(50, r)) * np.arange(1, r + 1) + 3
    rows = np.array([0, 7, 49])
    projected, shares = posterior_views.on_axes(z, rows, block=7)  # 50 rows in eight blocks, the last one short
    _, sizes, axes = np.linalg.svd(z - z.mean(axis=0), full_matrices=False)
    expected = (z - z.mean(axis=0))[rows] @ axes[:2].T
    for axis in range(min(r, 2)):
        np.testing.assert_allclose(np.abs(projected[:, axis]), np.abs(expected[:, axis]), atol=1e-10)
    expected_shares = [*(sizes**2 / (sizes**2).sum()), 0.0][:2]
    np.testing.assert_allclose(shares, expected_shares, atol=1e-12)


def test_a_column_that_does_not_vary_has_a_share_of_nothing():
    projected, shares = posterior_views.on_axes(np.ones((4, 2)), np.arange(4))
    assert shares == [0.0, 0.0]
    assert not projected.any()


def test_the_map_of_a_run_holds_every_queried_row_with_its_posterior(owner, dataset, open_study, curator, modeler):
    study = open_study(owner, dataset)
    with Vendor(modeler.url, modeler.token) as vendor, modeler.http() as http:
        access = {"curator_url": curator.url, "study_id": study.id, "token": study.token}
        run = vendor.wait(vendor.start(wire.RunCreate(iterations=6, initial_rows=2, **access)).id, timeout_s=60)
        queried = [trial.row for trial in vendor.export(run.id).trials]
        reply = http.get(f"/v1/runs/{run.id}/map", params={"points": 20})
        points = {point.row: point for point in wire.PosteriorMap.model_validate_json(reply.content).points}
        assert {row for row, point in points.items() if point.asked} == set(queried)
        assert 20 <= len(points) <= 28
        page = {point.row: point for point in vendor.posterior(run.id, page_size=400).points}
        gains = vendor.posterior(run.id, top=400, by="improvement").points
        assert [p.improvement for p in gains] == sorted((p.improvement for p in gains), reverse=True)
        cuts = wire.PosteriorSlices.model_validate_json(http.get(f"/v1/runs/{run.id}/slices").content)
        assert cuts.by == "column"
        assert sum(part.rows for part in cuts.axes[0].parts) == len(page)
        for row, point in points.items():
            assert (point.mean, point.sd) == pytest.approx((page[row].mean, page[row].sd), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("bins", [2, 5, 20])
def test_the_relevance_of_an_axis_is_its_correlation_ratio(bins):
    """Against sums by hand, total = within + between: high along a line, and next to nothing across it."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(997, 2))
    f = 3 * x[:, 0] + 0.5 * rng.normal(size=997)
    for axis in (0, 1):
        cut = posterior_views.axis_slice(axis + 1, 0.5, x[:, axis], f, bins)
        order = np.argsort(x[:, axis])
        within = sum(((f[g] - f[g].mean()) ** 2).sum() for g in np.array_split(order, bins))
        assert cut.relevance == pytest.approx(1 - within / ((f - f.mean()) ** 2).sum(), abs=1e-12)
        assert sum(part.rows for part in cut.parts) == 997
        assert [part.at for part in cut.parts] == sorted(part.at for part in cut.parts)
        assert all(part.low <= part.high for part in cut.parts)
        assert (cut.relevance > 0.5) if axis == 0 else (cut.relevance < 0.05)
    assert posterior_views.axis_slice(1, 1.0, x[:, 0], np.full(997, 2.0), bins).relevance == 0.0


def test_expected_improvement_is_the_mean_of_what_draws_gain():
    mean, sd, best = np.array([0.0, 1.0, -2.0, 3.0]), np.array([1.0, 0.5, 2.0, 0.0]), 0.7
    draws = mean + sd * np.random.default_rng(8).normal(size=(400_000, 4))
    expected = np.maximum(draws - best, 0).mean(axis=0)
    np.testing.assert_allclose(posterior_views.improvements(mean, sd, best), expected, rtol=0.02)


@dataclass
class Reading:
    """A database that a service has open, for reading alone."""

    path: Path

    def read(self):
        return Database.read_from(self.path, postgres.address_for(self.path))


LOOKS = {
    "posterior": lambda views, run: views.posterior(run, 3, 20),
    "top": lambda views, run: views.top(run, 5),
    "map": lambda views, run: views.map(run, 20),
    "slices": lambda views, run: views.slices(run, 20),
    "recommendation": lambda views, run: views.recommendation(run, "asked"),
    "recommendation over all": lambda views, run: views.recommendation(run, "all"),
}


@pytest.fixture(scope="module")
def ended(owner, dataset, open_study, curator, modeler):
    """A run that has ended, and the database it is in."""
    study = open_study(owner, dataset)
    with Vendor(modeler.url, modeler.token) as vendor:
        access = {"curator_url": curator.url, "study_id": study.id, "token": study.token}
        spec = wire.RunCreate(iterations=6, initial_rows=2, algorithm=wire.GpUcb(name="gp_ucb"), **access)
        yield vendor.wait(vendor.start(spec).id, timeout_s=60).id, modeler.database, modeler.data / "candidates"


@pytest.mark.parametrize("look", LOOKS)
def test_what_is_too_much_is_refused_before_its_trials_are_read(look, ended, tmp_path):
    """In a copy whose trials can be counted and not be read."""
    run, database, folder = ended
    copy = tmp_path / "modeler.sqlite"
    beside.copy(database, copy)
    with closing(beside.connect(copy)) as db, db:
        db.execute("ALTER TABLE trials RENAME COLUMN sd TO lost")
    database = copy
    with pytest.raises(Invalid, match=r"8 outcomes and .* are too many to compute at once"):
        LOOKS[look](PosteriorViews(Reading(database), folder, 100), run)
    with pytest.raises(DBAPIError, match="sd"):  # the control: with memory enough they are read
        LOOKS[look](PosteriorViews(Reading(database), folder, 1 << 30), run)
    with pytest.raises(Invalid, match="too many"):
        LOOKS[look](PosteriorViews(Reading(database), folder, 1 << 30, work_max=1.0), run)


def test_the_outline_of_a_run_is_that_of_its_record(ended):
    run, database, _ = ended
    with Reading(database).read() as db:
        record = Record.of(db, run)
        assert Outline.of(db, run) == record.outline
        assert record.outcomes == len(record.trials) == 8


def test_the_last_outcomes_of_a_record_are_its_last_trials_and_then_past_measurements(ended, tmp_path):
    """Two past measurements, then trials of which the seventh was declined: nine outcomes."""
    run, database, _ = ended
    copy = tmp_path / "modeler.sqlite"
    beside.copy(database, copy)
    with closing(beside.connect(copy)) as db, db:
        db.execute("UPDATE trials SET y = NULL, declined = 1 WHERE number = 7")
        past = "INSERT INTO observations (run_id, number, row, y) VALUES (?, ?, ?, 0.5)"
        for number in (1, 2):
            db.execute(past, (run, number, number))
    with Reading(copy).read() as db:
        records = {count: Record.of(db, run, last=count) for count in (1, 3, 7, 8, 9, 10)}
        assert Record.of(db, run) == records[9] == records[10]
    answered = {count: [t.number for t in r.trials if t.y is not None] for count, r in records.items()}
    every = [1, 2, 3, 4, 5, 6, 8]
    assert answered == {1: [8], 3: [5, 6, 8], 7: every, 8: every, 9: every, 10: every}
    past = {count: [each.row for each in r.observations] for count, r in records.items()}
    assert past == {1: [], 3: [], 7: [], 8: [2], 9: [1, 2], 10: [1, 2]}


def test_where_all_answers_are_too_many_the_last_ones_are_used_and_counted(ended, tmp_path):
    """Found by hand: at 6,105 answers the page was empty. A recommendation is still one of all answers, or none."""
    run, database, folder = ended
    with Reading(database).read() as db:
        record = Record.of(db, run)
    work = posterior_views.work_of(record.outline, record.begun.n)
    short = PosteriorViews(Reading(database), folder, 1 << 30, work_max=0.9 * work, last_outcomes=5)
    count, points = short.top(run, 3)
    assert count == 5
    full = PosteriorViews(Reading(database), folder, 1 << 30)
    copy = tmp_path / "modeler.sqlite"
    beside.copy(database, copy)
    with closing(beside.connect(copy)) as db, db:
        db.execute("DELETE FROM trials WHERE number <= 3")
    of_last = PosteriorViews(Reading(copy), folder, 1 << 30)
    assert of_last.top(run, 3) == (5, points)  # the oracle: a run of which only these are stored
    assert full.top(run, 3)[0] == 8
    with pytest.raises(Invalid, match="too many"):
        short.recommendation(run, "all")
