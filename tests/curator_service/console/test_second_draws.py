"""What the console shows of studies whose measured records leave again: the tick of consent, and the text to read."""

import pytest

from blindopt import wire
from tests.builders import registered_apart
from tests.curator_service.queries.inbox.measured_study import draft, open_measured_study

PLANAR = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1")
REFINE = wire.Refine(epsilon="3", persons=9)


@pytest.fixture(scope="module")
def study(service, small):
    with open_measured_study(small, service, release=PLANAR, refine=REFINE) as study:
        yield study


def test_a_measurer_reads_the_consent_and_saves_nothing_without_it(study, measurer):
    query = study.ask(3)
    measurer.get("/inbox")
    assert "Read this to the person" in measurer.shown
    assert "becomes surer than 73.2 %" in measurer.shown
    (item,) = study.items(query.id)
    measurer.get(f"/inbox/{item.id}")
    measurer.submit(f"/inbox/{item.id}:answer", value="0.5")
    assert "read the consent to each person" in measurer.shown
    assert study.items(query.id)[0].state == "open"
    measurer.submit(f"/inbox/{item.id}:answer", value="0.5", consent="on")
    assert len(study.reply(query.id).refined) == 1


def test_an_owner_confirms_the_consent_where_nobody_measures(study, owner, small):
    dataset = registered_apart(study.owner, "private", small.csv)
    column = wire.ColumnMeasurement(column=small.names[2], direction="maximize")
    spec = draft(small, dataset.id, release=PLANAR, refine=REFINE).model_copy(update={"measurement": column})
    made = study.owner.create_study(spec)
    owner.get(f"/studies/{made.id}")
    assert "All persons agreed beforehand" in owner.shown
    owner.submit(f"/studies/{made.id}:release", sure="on")
    assert "Tick this too before you release: a measured record leaves again" in owner.shown
    owner.get(f"/studies/{made.id}/settings")
    assert "a measured record leaves again, with epsilon 3; 9 persons at most" in owner.shown
    assert study.owner.draft(made.id).release(confirm_consent=True).view.state == "open"
