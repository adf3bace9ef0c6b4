"""Public forecasts: once for each set of public inputs, few at a time, from no record, and kept in memory alone."""

import threading
from functools import partial

import pytest

from blindopt import wire
from blindopt.errors import Invalid
from curator_service.releases import forecast_jobs
from curator_service.releases.forecast_jobs import KEPT_MAX, PublicForecasts
from curator_service.releases.forecasts.worker import Job, Reply
from service_kit.runner import Worker
from service_kit.runner.runner import Runner
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.curator_service.queries.inbox.measured_study import draft

POINTS = [
    wire.ForecastPoint(
        mechanism=name, runs_as=name, epsilon=epsilon, noise_sd=None, distance_error=None, regret=regret, low=0, high=1
    )
    for name, epsilon, regret in (("random_rows", None, 0.5), ("auto", "2", 0.1))
]


class Held(Worker):
    """A worker without a process: it replies once it may."""

    jobs: list[Job] = []
    go = threading.Event()

    def __init__(self, program, files):
        self.killed = False

    def work(self, job, array=None):
        assert array is None  # no row is sent: the child draws public ones
        self.jobs.append(job)
        yield Reply(progress=0.5)
        self.go.wait(30)
        yield Reply(points=POINTS, is_last=True)

    def deadline(self, seconds):
        class Never:
            def __enter__(self):
                return threading.Event()

            def __exit__(self, *_):
                return None

        return Never()

    def kill(self):
        self.killed = True

    def end(self):
        return 0


@pytest.fixture
def made(tmp_path, small):
    curator = InProcessCurator(tmp_path)
    identity = curator.open(small.csv, partial(draft, small), public=True)
    spec = wire.StudyCreate.model_validate(curator.call("owner", "GET", f"/v1/studies/{identity}")["spec"])
    spec = spec.model_copy(update={"release": wire.AutoRelease(epsilon="2")})
    Held.jobs, Held.go = [], threading.Event()
    forecasts = _made_by(curator, Held)
    yield forecasts, spec, curator
    Held.go.set()
    curator.close()


def _made_by(curator, make_worker):
    runner = Runner()
    forecasts = PublicForecasts(curator.context, runner)
    runner.kinds["public forecast"].make_worker = make_worker
    return forecasts


def _ended():
    Held.go.set()
    while running := [thread for thread in threading.enumerate() if thread.name.startswith("public forecast")]:
        running[0].join(30)


def hidden(spec, change):
    features = [feature.model_copy(update={"hidden_change": change, "scale": None}) for feature in spec.features]
    return spec.model_copy(update={"features": features})


def test_one_is_made_for_every_epsilon_name_and_cap(made):
    forecasts, spec, _ = made
    assert forecasts.view(spec).state == "running"
    for same in (
        {"name": "other"},
        {"release": wire.AutoRelease(epsilon="7.5")},
        {"reply_after_ms": 50},
    ):
        forecasts.view(spec.model_copy(update=same))
    _ended()
    assert len(Held.jobs) == 1
    assert forecasts.view(spec).points == forecasts.points(spec) == POINTS
    forecasts.view(hidden(spec, 0.5))
    _ended()
    assert len(Held.jobs) == 2  # the control: another Delta is another forecast


def test_the_drafts_own_level_is_made_beside_the_usual_ones_and_alone(made):
    """With the functions of the usual ones, so that the gaps can be compared; 4.0 is a usual level."""
    forecasts, spec, _ = made
    forecasts.view(spec)
    _ended()
    for epsilon in ("4.0", "7.5"):
        forecasts.view(spec.model_copy(update={"release": wire.AutoRelease(epsilon=epsilon)}))
        _ended()
    usual, own = Held.jobs
    assert (usual.forecast.epsilons, own.forecast.epsilons) == (list(forecast_jobs.EPSILONS), ["7.5"])
    assert (own.seed, own.study, own.forecast.functions) == (usual.seed, usual.study, usual.forecast.functions)
    listed = forecasts.view(spec.model_copy(update={"release": wire.AutoRelease(epsilon="7.5")})).points
    assert sorted(listed, key=str) == sorted([*POINTS, *(point for point in POINTS if point.epsilon)], key=str)


def test_it_has_the_drafts_own_answers_and_as_many_queries_as_its_caps_allow(made, small):
    """Of answers: the draft's own epsilon and two more, each with its own release; at most 100 queries."""
    forecasts, spec, _ = made
    private = spec.model_copy(update={"answers": wire.AutoAnswers(epsilon="2", value_bound=1.0)})
    for budget in (wire.Budget(queries=45), wire.Budget(queries=450), wire.Budget(epsilon_total="20"), wire.Budget()):
        forecasts.view(private.model_copy(update={"budget": budget}), of_answers=True)
        _ended()
    assert [job.forecast.queries for job in Held.jobs] == [45, 100, 9, forecast_jobs.QUERIES]
    assert {job.study.answers.epsilon for job in Held.jobs} == {"2"}
    assert {tuple(sorted(job.forecast.answers)) for job in Held.jobs} == {("1", "2", "4")}
    assert {job.study.release.epsilon for job in Held.jobs} == {spec.release.epsilon}
    assert [job.total for job in Held.jobs] == [None] * 4
    of_column = {"measurement": wire.ColumnMeasurement(column=small.names[2], direction="maximize")}
    forecasts.view(private.model_copy(update=of_column), of_answers=True)
    _ended()
    assert (Held.jobs[-1].total, Held.jobs[-1].records) == ("4", 400)  # release and one answer
    forecasts.view(spec, of_answers=True)
    _ended()
    assert Held.jobs[-1].forecast.answers == []  # exact ones: the release alone
    assert forecasts.points(spec) == POINTS


def test_the_job_has_no_dataset_and_no_record(made):
    forecasts, spec, _ = made
    forecasts.view(spec)
    _ended()
    (job,) = Held.jobs
    assert (job.study.dataset_id, job.study.name, job.forecast.rows) == ("-", "-", "public")
    assert job.n <= forecast_jobs.ROWS


def test_nothing_is_logged(made):
    forecasts, spec, curator = made
    before = curator.call("owner", "GET", "/v1/audit/checkpoint")
    forecasts.view(spec)
    _ended()
    assert curator.call("owner", "GET", "/v1/audit/checkpoint") == before


def test_few_wait_and_few_are_kept(made, until):
    forecasts, spec, _ = made
    forecasts.view(hidden(spec, 1.0))
    until(lambda: Held.jobs)  # it runs, until it may end
    for change in range(2, 8):  # as somebody types
        forecasts.view(hidden(spec, float(change)))
    _ended()
    assert len(Held.jobs) == 1 + forecast_jobs.WAITING_MAX
    for change in range(1, KEPT_MAX + 9):
        forecasts.view(hidden(spec, float(change)))
        _ended()
    kept = [change for change in range(1, KEPT_MAX + 9) if forecasts.points(hidden(spec, float(change)))]
    assert kept == list(range(9, KEPT_MAX + 9))


def test_a_release_without_noise_has_none(made):
    forecasts, spec, _ = made
    with pytest.raises(Invalid, match="no privacy level"):
        forecasts.view(spec.model_copy(update={"release": wire.IdentityRelease(mechanism="identity")}))
    assert forecasts.points(spec.model_copy(update={"release": wire.IdentityRelease(mechanism="identity")})) == []


def test_a_process_that_cannot_start_is_a_failure_and_the_next_one_runs(made):
    _, spec, curator = made
    workers = [Held]

    def fails(*_):
        raise OSError("no memory")

    workers.append(fails)
    forecasts = _made_by(curator, lambda *process: workers.pop()(*process))
    forecasts.view(spec)
    _ended()
    assert forecasts.view(spec).problem == "a fault on our side (OSError)"
    forecasts.view(hidden(spec, 2.0))
    _ended()
    assert forecasts.view(hidden(spec, 2.0)).state == "completed"


def test_check_reads_it_in_its_line_on_the_search(made, monkeypatch):
    _, spec, curator = made
    body = spec.model_dump(mode="json")
    assert "Forecast" not in curator.call("owner", "POST", "/v1/studies:check", json=body)["search"]
    monkeypatch.setattr(curator.curator.runner.kinds["public forecast"], "make_worker", Held)
    assert curator.call("owner", "POST", "/v1/studies:forecast", json=body)["state"] == "running"
    _ended()
    said = curator.call("owner", "POST", "/v1/studies:check", json=body)["search"]
    assert "short of the best: 0.1 (better than random records: " in said


def test_of_an_archived_dataset_there_are_none_to_read(made):
    """A draft on it is still previewed."""
    forecasts, spec, curator = made
    curator.call("owner", "POST", f"/v1/datasets/{spec.dataset_id}:archive", key="old")
    assert forecasts.points(spec) == []
