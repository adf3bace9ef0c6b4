"""`python -m demo`, as a newcomer runs it; where it only refuses, in forks.

The demo of tuning runs in this process, and its services in forks: that the demo starts interpreters is seen where
it is played as a whole.
"""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from blindopt import wire
from blindopt.audit import reconciliation
from demo import parties, places, report, story, tuning
from demo.property_data import OUTCOME
from service_kit.store.folder_lock import only_process
from tests import postgres, processes

ROOT = Path(__file__).parents[2]
QUERIES = 10
"""Of each run: a part of what the demo queries by default."""
LEVELS = ("none", "epsilon 1", "epsilon 0.25")


def _environment():
    return {k: v for k, v in os.environ.items() if not k.startswith(("DEMO_", "BLINDOPT_"))}


def _database(folder):
    """In a run on PostgreSQL, the database of a demo."""
    return ("--database", postgres.url_of(folder)) if postgres.ON else ()


def _demo(*arguments, **environment):
    """Run the command in a fork, which spares the start of an interpreter."""
    return processes.run("demo", *map(str, arguments), env=_environment() | environment, timeout=600)


def _shorter_demo(change, *arguments):
    """Run the command in a new interpreter after ``change``, which sets a constant of ``story`` or ``parties``."""
    program = f"import sys, demo.__main__ as m; from demo import parties, story; {change}; sys.exit(m.main())"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    arguments = ("--runs", "1", "--json", folder / "table.json", "--out", folder / "out", *_database(folder))
    done = _shorter_demo(f"story.QUERIES = {QUERIES}", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return SimpleNamespace(
        text=done.stdout, folder=folder / "out", table=json.loads((folder / "table.json").read_text())
    )


@pytest.mark.slow(sibling="test_a_search_of_the_demo_finds_a_place_over_both_services")
def test_the_demo_prints_a_line_for_each_level_and_three_sentences(played):
    lines = _rows(played.text)
    assert [line.split("│")[1].strip() for line in lines] == list(LEVELS)
    assert [line.split("│")[2].strip() for line in lines] == ["certain", "73 % at most", "56 % at most"]
    assert all(line.split("│")[3].strip() in ("low risk", "notable risk") for line in lines[1:])  # a safe story
    sentences = [line for line in played.text.splitlines() if re.match(r"\d\. ", line)]
    assert [sentence[:2] for sentence in sentences] == ["1.", "2.", "3."]
    assert sentences == [f"{i}. {each}" for i, each in enumerate(played.table["conclusions"], start=1)]
    assert "nan" not in played.text  # the spread of a single run


@pytest.mark.slow(sibling="test_a_search_of_the_demo_finds_a_place_over_both_services")
def test_every_run_has_a_release_of_its_own_and_searches_differ_in_privacy_alone(played):
    lines = played.table["methods"]
    assert [line["method"] for line in lines] == [method.name for method in story.METHODS]
    studies = [run["study_id"] for line in lines for run in line["runs"]]
    assert len(set(studies)) == len(studies) == len(story.METHODS)
    for line in lines:
        (run,) = line["runs"]
        assert (run["seed"], run["queries"]) == (0, QUERIES)
        assert 0 <= run["regret"] == line["regret"] < 1
    searches = [method for method in story.METHODS if not method.is_random]
    assert (
        len(
            {
                method.run("http://127.0.0.1:9", "std_0000000000000000", "t", 0)
                .model_copy(update={"name": "-"})
                .model_dump_json()
                for method in searches
            }
        )
        == 1
    )


def _played(regrets):
    """Results of runs without services: by method, shares below the best."""
    outcomes = {
        method: [story.Outcome("run_1", "std_1", seed, 30, 1.0, share) for seed, share in enumerate(regrets[method])]
        for method in story.METHODS
    }
    verdict = wire.Verdict(level="low", sentence="Low risk.")
    return story.Played(outcomes, {epsilon: verdict for epsilon in story.LEVELS if epsilon is not None})


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_table_fits_a_narrow_terminal(width):
    shown = io.StringIO()
    console = report.Console(width=width, file=shown)
    console.print(report.table(_played({method: [0.105, 0.311] for method in story.METHODS})))
    assert "…" not in shown.getvalue()
    assert max(len(line) for line in shown.getvalue().splitlines()) <= width
    words = set(shown.getvalue().replace("│", " ").split())
    assert {"73", "56", "21", "+-", "10", "low", "0.25"} <= words


def test_what_is_concluded_follows_from_the_figures():
    good = {
        method: [0.6 if method.is_random else {None: 0.0, "1": 0.05, "0.25": 0.4}[method.epsilon]]
        for method in story.METHODS
    }
    first, second, third = report.conclusions(_played(good))
    assert "a place 5 % below the best, and without privacy one 0 % below" in first
    assert second.endswith("it is 40 % below, better than random places.")
    assert third.endswith("more than 73 % sure of a sale.")
    assert first.startswith("Privacy has a price")
    by_chance = good | {story.Method(None): [0.3], story.Method("1"): [0.1], story.Method("0.25"): [0.04]}
    assert [sentence.split(":")[0] for sentence in report.conclusions(_played(by_chance))[:2]] == [
        "Too few runs for a price",
        "Too few runs for an order",
    ]
    useless = good | {story.Method("0.25"): [0.7]}
    assert report.conclusions(_played(useless))[1].endswith("70 % below, no better than random places.")


def test_how_sure_anyone_gets_is_what_the_curator_says():
    assert [round(100 * report.surest(epsilon)) for epsilon in ("1", "0.25")] == [73, 56]


@pytest.mark.slow(sibling="test_a_search_of_the_demo_finds_a_place_over_both_services")
def test_the_plot_is_an_image_with_both_ways_at_every_level(played):
    svg = ET.parse(played.folder / "regret.svg").getroot()  # refuses what is not well-formed
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    text = (played.folder / "regret.svg").read_text(encoding="utf-8")
    for name in ("search", "random places", "no privacy", "epsilon 1", "epsilon 0.25"):
        assert name in text
    assert len(text) > 5_000


@pytest.mark.slow(sibling="test_a_search_of_the_demo_finds_a_place_over_both_services")
def test_the_demo_leaves_two_logs_that_agree_and_no_process(played):
    study, exchanges = played.table["methods"][0]["runs"][0]["study_id"], []
    for name in ("curator", "modeler"):
        database = played.folder / name / "data" / f"{name}.sqlite"
        assert (f"schema {name}" if postgres.ON else str(database)) in played.text
        with only_process(database.parent):  # its service has ended
            prefix = f"BLINDOPT_{name.upper()}"
            environment = os.environ | {f"{prefix}_DATA_DIR": str(database.parent)}
            environment |= {f"{prefix}_DATABASE_URL": url for url in _database(played.folder.parent)[1:]}
            done = processes.run(f"{name}_service", "audit", "export", env=environment)
        assert done.returncode == 0, done.stderr
        (played.folder / f"{name}.jsonl").write_text(done.stdout)
        exchanges.append(reconciliation.read(played.folder / f"{name}.jsonl"))
        reconciliation.verify_export(exchanges[-1])
    compared, differences = reconciliation.reconcile(*exchanges, study)
    assert differences == []
    paths = [exchange["path"] for grant in exchanges[0].shared for exchange in exchanges[0].exchanges(grant)]
    about = [path for path in paths if path.startswith(f"/v1/studies/{study}")]
    assert compared == len(about)
    assert about.count(f"/v1/studies/{study}/queries") == QUERIES


def _rows(text):
    return [line for line in text.splitlines() if line.startswith("│")]


def _check_error_line(done):
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_a_curator_that_cannot_be_reached_ends_the_demo_with_an_error_line(tmp_path, modeler):
    (tmp_path / "token").write_text("x")
    tokens = ("--curator-token-file", tmp_path / "token", "--modeler-token-file", modeler.folder / "first-token")
    services = ("--curator", "http://127.0.0.1:9", "--modeler", modeler.url)
    done = _shorter_demo("parties.START_SECONDS = 0.5", *services, *tokens, "--out", tmp_path / "out")
    _check_error_line(done)
    assert "http://127.0.0.1:9" in done.stderr


def test_an_invalid_token_ends_the_demo_with_an_error_line(tmp_path, curator, modeler):
    (tmp_path / "token").write_text("blindopt_nonsense")
    tokens = ("--curator-token-file", tmp_path / "token", "--modeler-token-file", modeler.folder / "first-token")
    done = _demo("--curator", curator.url, "--modeler", modeler.url, *tokens, "--out", tmp_path / "out")
    _check_error_line(done)
    assert "unauthenticated (401)" in done.stderr


def test_a_folder_that_cannot_be_used_ends_the_demo_with_an_error_line(tmp_path):
    (tmp_path / "curator").mkdir()  # as an earlier demo left it
    _check_error_line(_demo("--out", tmp_path))
    (tmp_path / "file").write_text("")
    _check_error_line(_demo("--out", tmp_path / "file" / "out"))


@pytest.mark.parametrize(
    "arguments", [("--runs", "0"), ("--curator", "http://127.0.0.1:9"), ("--nothing",), ("--keep", "--tuning")]
)
def test_arguments_that_do_not_fit_are_a_usage_error(arguments):
    done = _demo(*arguments)
    assert done.returncode == 2
    assert "usage: python -m demo" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def forked(monkeypatch):
    """Services that a demo of this process starts are forks; its table is printed wide."""
    handler = signal.getsignal(signal.SIGTERM)

    def start(command, *, stdin, **given):
        _, flag, module, *arguments = command
        assert (flag, stdin) == ("-m", subprocess.DEVNULL)
        return processes.Forked(module, *arguments, **given)

    names = {"Popen": start, "DEVNULL": subprocess.DEVNULL, "TimeoutExpired": subprocess.TimeoutExpired}
    monkeypatch.setattr(parties, "subprocess", SimpleNamespace(**names))
    monkeypatch.setenv("COLUMNS", "140")
    yield
    signal.signal(signal.SIGTERM, handler)  # a demo sets one of its own


def test_the_table_of_tuning_methods_is_printed_and_a_large_epsilon_finds_the_best_lambda(forked, capsys):
    """One row of it: with epsilon 1000 noise is nearly none, and the program's own scores must be the curator's."""
    status = tuning.main(["--methods", "grid_exponential", "--epsilons", "1000"])
    done = capsys.readouterr()
    assert (status, done.err) == (0, "")
    (row,) = [line for line in done.out.splitlines() if "grid_exponential" in line]
    _, _, _, _, _, chosen, regret, _, _, error, _ = (cell.strip() for cell in row.split("│"))
    assert f"lambda {float(chosen):g}, score" in done.out
    assert float(regret) == 0
    assert float(error) < 1e-3


def test_a_search_of_the_demo_finds_a_place_over_both_services(forked, tmp_path, monkeypatch):
    """One method, few queries: the recommended place, as its owner opens it."""
    search = (story.Method("1"),)
    monkeypatch.setattr(story, "QUERIES", 8)
    monkeypatch.setattr(story, "METHODS", search)
    with parties.start_services(tmp_path / "services") as (curator, modeler):
        played = story.play(curator, modeler, curator.url, range(1), lambda name, answered: None)
    (outcome,) = played.outcomes[search[0]]
    assert 0 <= outcome.regret < 1
    assert played.verdicts["1"].level != "high"  # a safe story


def test_a_study_of_the_demo_uses_as_much_epsilon_as_its_line_says_and_places_are_those_of_the_sales():
    for method in story.METHODS:
        study = method.study("ds_0000000000000000")
        if method.epsilon is None:
            assert (study.release.mechanism, study.answers.mechanism) == ("identity", "none")
            continue
        used = sum(wire.amount(part.epsilon) for part in (study.release, study.answers))
        assert used == wire.amount(method.epsilon) == wire.amount(study.budget.epsilon_per_row)
    sales = places.Sales()
    assert sales.size.sum() == 21_613
    best = int(np.argmax(np.where(sales.size >= places.LEAST, sales.mean, -np.inf)))
    rows = list(csv.DictReader(io.StringIO(sales.centres_csv().decode())))
    at = max(rows, key=lambda row: float(row[OUTCOME]))
    assert float(at[OUTCOME]) == sales.mean[best]
    assert sales.regret([float(at["long"]), float(at["lat"])]) == 0
