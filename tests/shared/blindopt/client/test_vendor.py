"""A vendor's runs from Python, against real services; and the optimizer beside them, choice by choice."""

import ast
import asyncio
import json
import sys
from dataclasses import asdict

import pytest

import blindopt as bo
from blindopt import wire
from blindopt.client import StudyClient
from blindopt.errors import Invalid, NotFound, StillRunning
from blindopt.formats import npy_files
from tests.builders import ALGORITHMS

FIELDS = ("phase", "row", "mean", "sd", "acquisition", "ties")


@pytest.fixture(scope="module")
def data(owner, small):
    return owner.register("vendors", small.csv, public=True)


@pytest.fixture(scope="module")
def grant(curator, owner, data, open_study, tmp_path_factory):
    """Makes a study with these settings, and the grant file of it."""

    def make(**settings):
        opened = open_study(owner, data, **settings)
        given = {"curator_url": curator.url, "study_id": opened.id, "token": opened.token, "name": "vendor"}
        with StudyClient(curator.url, opened.token, opened.id) as client:
            given["log_key"] = client.study().log_key
        path = tmp_path_factory.mktemp("grants") / "grant.json"
        path.write_text(json.dumps(given | {"format": "blindopt-grant-1", "expires_at": "2030-01-01T00:00:00Z"}))
        return path

    return make


@pytest.fixture(scope="module")
def ours(modeler):
    with bo.Vendor(modeler.url, modeler.token) as vendor:
        yield vendor


@pytest.fixture(scope="module")
def run(ours, grant):
    """A run that has ended."""
    return ours.start(grant(), iterations=6, initial_rows=3, seed=7, name="first").wait(timeout_s=240)


LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="4", centre=0.5, value_bound=0.5)


@pytest.mark.slow(every=2)
@pytest.mark.parametrize(
    ("algorithm", "study", "chosen"),
    [
        ("auto", {"kernel": None}, "ei"),
        (
            "auto",
            {"kernel": None, "release": wire.GaussianRelease(mechanism="gaussian", epsilon="4", delta=1e-5)},
            "ei_deblurred",
        ),
        ("gp_ucb", {}, "gp_ucb"),
        ("thompson", {"direction": "minimize", "noise_variance": 0.01}, "thompson"),
        ("auto", {"answers": LAPLACE}, "laplace_adf"),
    ],
)
def test_the_optimizer_makes_the_choices_of_a_run_to_the_last_bit(ours, modeler, grant, algorithm, study, chosen):
    settings = {"algorithm": algorithm, "iterations": 8, "seed": 11}
    export = ours.start(grant(**study), **settings).wait(timeout_s=240).export
    view = export.run.study
    candidates = npy_files.load(modeler.data / "candidates" / f"{view.release_sha256}.npy")
    optimizer = bo.Optimizer(candidates, study=view, **settings)
    assert optimizer.plan == export.run.plan
    assert optimizer.plan.algorithm.name == chosen
    for trial in export.trials:
        proposal = asdict(optimizer.propose())
        assert [proposal[name] for name in FIELDS] == [getattr(trial, name) for name in FIELDS]
        optimizer.tell(trial.row, trial.y, passport=trial.passport)
    assert optimizer.propose() is None
    assert len(export.trials) > 8
    assert optimizer.recommendation() == export.run.recommendation


def test_a_run_waits_recommends_and_is_resumed_by_its_id(ours, run, capsys):
    assert (run.state, run.view.trials) == ("completed", 9)
    assert run.recommendation == run.view.recommendation
    again = ours.run(run.id)
    assert again.wait(progress=True).view == run.view
    assert run.id in [other.id for other in ours.runs()]
    assert "completed" in again._repr_html_()
    assert run.id in repr(again)


def test_a_wait_counts_the_initial_candidates_as_soon_as_they_are_planned(run, monkeypatch, capsys):
    """A run that has only begun knows neither the study nor its plan."""
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    begun = run.view.model_copy(
        update=dict.fromkeys(("plan", "study", "initial_rows", "best", "ended_at")) | {"trials": 0}
    )
    views = iter([begun.model_copy(update={"state": "running"}), run.view])
    vendor = bo.Vendor("http://localhost", "t")
    monkeypatch.setattr(vendor, "_read", lambda run_id, wait_s: next(views))
    bo.Run(vendor, begun).wait(progress=True)
    lines = capsys.readouterr().err.splitlines()
    planned = run.view.iterations + run.view.plan.initial_rows
    assert planned > run.view.iterations
    assert f"0 of {run.view.iterations}" in lines[0]
    assert f"{run.view.trials} of {planned}, completed" in lines[-1]


def test_trials_are_a_data_frame(run):
    pytest.importorskip("pandas")
    table = run.trials
    assert table.index.tolist() == list(range(1, 10))
    assert table["y"].max() == run.view.best.y
    assert table["noise_variance"].tolist() == [0.0] * 9


def test_an_offer_counts_what_runs_of_this_vendor_used(ours, grant, tmp_path):
    path = grant(budget=wire.Budget(queries=9))
    assert "The owner allows 9 measurements." in ours.offer(path).sentences
    ours.start(path, algorithm="random", iterations=3, initial_rows=1).wait(timeout_s=240)
    offer = ours.offer(path)
    assert (offer.used, offer.remaining) == (4, 5)
    assert "of which your runs used 4" in str(offer)
    ended = ours.start(path, algorithm="random").wait(timeout_s=240)  # asks for what is left, and is never refused
    assert (ended.view.trials, ended.view.ended_because) == (5, "budget")
    broken = json.loads(path.read_text(encoding="utf-8")) | {"study_id": "std_0000000000000000"}
    other = tmp_path / "other.json"
    other.write_text(json.dumps(broken), encoding="utf-8")
    with pytest.raises(bo.errors.Invalid, match="not for this study"):
        ours.offer(other)


def test_runs_are_plotted_and_compared(ours, run, grant):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    other = ours.start(grant(), algorithm="random", iterations=3, name="<b>").wait(timeout_s=240)
    axes = run.plot()
    best = axes.get_lines()[-1].get_ydata()
    assert list(best) == sorted(best)
    assert best[-1] == run.view.best.y
    comparison = ours.compare(run, other)
    assert [row["algorithm"] for row in comparison.rows] == ["ei", "random"]
    assert "&lt;b&gt;" in comparison._repr_html_()
    assert len(comparison.plot().get_lines()) == 2
    matplotlib.pyplot.close("all")


def test_the_model_is_shown_as_the_console_shows_it_and_nothing_is_cut(ours, run, modeler):
    """The numbers are those of the API that the console draws; texts lie within the picture that ``savefig`` writes."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    moments = run.posterior()
    assert moments.index.tolist() == list(range(run.view.study.n))
    page = ours.posterior(run.id, page_size=1_000)
    assert moments["mean"].tolist() == [point.mean for point in page.points]
    with modeler.http() as http:
        view = http.get(f"/v1/runs/{run.id}/map").json()
        axes = {axis["axis"]: axis for axis in http.get(f"/v1/runs/{run.id}/slices").json()["axes"]}
    candidates, queried = run.plot_model().collections[:2]
    assert candidates.get_array().tolist() == [point["mean"] for point in view["points"]]
    assert queried.get_offsets().tolist() == [
        [point["first"], point["second"]] for point in view["points"] if point["asked"]
    ]
    bars = run.plot_relevance()
    assert {bar.get_width() for bar in bars.patches} == {100 * axis["relevance"] for axis in axes.values()}
    figure = run.plot_slices()
    for drawn in figure.axes:
        parts = axes[int(drawn.get_title().split()[-1])]["parts"]
        assert drawn.get_lines()[0].get_ydata().tolist() == [part["mean"] for part in parts]
    compared = ours.compare(run, run).plot()
    for shown in (run.plot().figure, run.plot_model().figure, bars.figure, figure, compared.figure):
        shown.canvas.draw()
        box, (width, height) = shown.get_tightbbox(), shown.get_size_inches()
        assert min(box.x0, box.y0) >= 0, box
        assert (box.x1 <= width, box.y1 <= height) == (True, True), box
        titled = [axis for axis in shown.axes if axis.get_title()]
        assert titled != []
        assert all(axis.get_xlabel() for axis in titled)
    matplotlib.pyplot.close("all")


def test_trials_of_compared_runs_are_one_frame(ours, run):
    pytest.importorskip("pandas")
    trials = ours.compare(run, run).trials
    assert trials.loc[run.id]["row"].tolist()[:9] == run.trials["row"].tolist()
    assert ours.compare().trials.empty
    assert run.id in str(ours.compare(run))


def test_queries_counts_all_of_them_and_makes_the_choices_of_the_iterations_that_follow(ours, grant):
    done = ours.start(grant(), queries=9, initial_rows=3, seed=7).wait(timeout_s=240)
    assert (done.view.trials, done.view.queries_max, done.view.queries) == (9, 9, 9)
    counts = (
        {"queries": 9, "initial_rows": 3},
        {"iterations": 6, "initial_rows": 3},
        {"queries": 11},
        {"iterations": 6},
    )
    rows = []
    for count in counts:
        optimizer = bo.Optimizer([[i / 20, (i * 7 % 21) / 20] for i in range(21)], seed=7, **count)
        while (proposal := optimizer.propose()) is not None:
            optimizer.tell(proposal.row, (proposal.row / 20 - 0.3) ** 2, variance=0.0)
        rows.append([outcome.row for outcome in optimizer.history])
    assert [len(each) for each in rows] == [9, 9, 11, 11]
    assert (rows[0], rows[2]) == (rows[1], rows[3])
    with pytest.raises(Invalid, match="queries counts the initial ones too"):
        ours.start(grant(), queries=3, initial_rows=3)


def test_a_result_is_handed_over_to_the_owner(owner, run):
    sent = run.hand_over("measure it once more")
    assert sent.state in ("unsent", "open"), sent
    received = owner.messages(study_id=run.view.study_id)
    assert [(each.message.note, each.message.row) for each in received] == [
        ("measure it once more", run.recommendation.row)
    ]


def test_a_run_is_paused_resumed_and_stopped(ours, grant):
    run = ours.start(grant(), algorithm="random", iterations=5, hold=True)
    assert run.state == "paused"
    with pytest.raises(StillRunning, match="is paused"):
        run.wait(timeout_s=0.0)
    assert run.resume().wait(timeout_s=240).state == "completed"
    other = ours.start(grant(), algorithm="random", iterations=5, hold=True)
    assert other.stop().wait(timeout_s=240).state == "stopped"


def test_wrong_settings_and_ids_are_refused_in_words(ours, grant, tmp_path):
    with pytest.raises(Invalid, match="iterations"):
        ours.start(grant(), iterations=0)
    with pytest.raises(Invalid, match=r"the grant file .*nothing\.json cannot be read: no such file or directory"):
        ours.start(tmp_path / "nothing.json")
    with pytest.raises(Invalid, match=rf'^algorithm is none of the {ALGORITHMS} that exist: did you mean "gp_ucb"'):
        ours.start(grant(), algorithm="ucb")
    with pytest.raises(Invalid, match=r'^iteration is no field here: did you mean "iterations"'):
        ours.start(grant(), iteration=5)
    with pytest.raises(bo.Remote) as missing:
        ours.run("run_0000000000000000")
    assert missing.value.what_to_do == NotFound.what_to_do


def test_threads_wait_for_asyncio(ours, grant):
    path = grant()
    runs = [ours.start(path, algorithm="random", iterations=n, initial_rows=0) for n in (2, 3)]

    async def main():
        return await asyncio.gather(*(asyncio.to_thread(run.wait, timeout_s=240) for run in runs))

    assert [run.view.trials for run in asyncio.run(main())] == [2, 3]
    assert runs[0].recommendation.outcomes == 2


TEN = """
owner = bo.Owner(curator, owner_token)
dataset = owner.upload(file, name="stays")
bounds = {"age_y": (0, 120), "weight_kg": (0, 300), "pressure": (0, 300), "pulse": (0, 300)}
study = dataset.study("stays", features=bounds, outcome="days", privacy=8, answers="exact", budget={"queries": 8})
released = study.release(confirm_high_risk=True)
grant = released.grant("Acme").save(folder / "grant.json")
vendor = bo.Vendor(modeler, vendor_token)
run = vendor.start(grant, queries=8).wait()
print(run.recommendation)
"""


def test_ten_statements_lead_from_a_file_to_a_first_answer(curator, modeler, tmp_path, capsys):
    file = tmp_path / "stays.csv"
    lines = [f"{20 + n},{60 + n % 31},{110 + n % 47},{61 + n % 29},{n % 13}" for n in range(60)]
    file.write_text("\n".join(["age_y,weight_kg,pressure,pulse,days", *lines]) + "\n", encoding="utf-8")
    names = {"bo": bo, "file": file, "folder": tmp_path, "curator": curator.url, "modeler": modeler.url}
    exec(TEN, names | {"owner_token": curator.token, "vendor_token": modeler.token})
    assert len(ast.parse(TEN).body) <= 10
    assert capsys.readouterr().out.startswith("Recommended candidate")
