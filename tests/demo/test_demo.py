"""`python -m demo`, as a newcomer runs it; where it only refuses, in forks.

The demos of tuning and of groups run in this process, and their services in forks: that the demo starts interpreters is
seen where it is played as a whole.
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
from demo import groups, parties, report, story, tuning
from demo.property_data import csv_bytes
from service_kit.store.folder_lock import only_process
from tests import postgres, processes

ROOT = Path(__file__).parents[2]
QUERIES = 12
"""Of each run: a fifth of what the demo asks by default, more than its random first rows."""
METHODS = (
    "non-private GP-UCB",
    "po_gp_ucb, r = ",
    "gaussian",
    "auto: planar_laplace",
    "auto, ei",
    "uniform random rows",
)


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


@pytest.mark.slow(sibling="test_the_demo_of_groups_finds_a_place_over_both_services")
def test_the_demo_prints_the_methods_with_what_each_guarantees(played):
    lines = played.text.splitlines()
    for method in METHODS:
        assert [line for line in lines if line.startswith(f"│ {method}")], method
    assert any("4" in line and "no DP: as published, refuted" in line for line in lines)
    numbers = [line.split("│")[-2].strip() for line in lines if line.startswith("│ uniform")]
    assert numbers == [str(QUERIES)]
    assert "nan" not in played.text  # the spread of a single run
    assert max(len(line) for line in lines if line.startswith("│")) <= 120


@pytest.mark.slow(sibling="test_the_demo_of_groups_finds_a_place_over_both_services")
def test_the_table_shows_what_an_attacker_rebuilds_of_each_release(played):
    known_rows = {m["method"].partition(",")[0]: m["known_rows"] for m in played.table["methods"]}
    cells = {line.split("│")[1].strip().partition(",")[0]: line.split("│")[4].strip() for line in _rows(played.text)}
    assert cells.keys() == known_rows.keys()
    for bare in ("non-private GP-UCB", "po_gp_ucb"):
        assert cells[bare] == "100 %, exactly"
        assert (known_rows[bare]["figure"], known_rows[bare]["low"] > 0.99) == (1.0, True)
    for noisy in ("gaussian", "auto: planar_laplace", "auto"):
        # noise of a third of Delta and more in each of three coordinates leaves one row in 1,000 this near at most
        assert known_rows[noisy]["figure"] < 0.005
        assert known_rows[noisy]["distance"] > 0.3
        assert cells[noisy] == f"0 %, off by {known_rows[noisy]['distance']:.2g} Delta"
    assert known_rows["auto: planar_laplace"]["distance"] < known_rows["gaussian"]["distance"]  # the smaller noise
    assert (cells["uniform random rows"], known_rows["uniform random rows"]) == ("-", None)


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("runs", [1, 5])
def test_the_table_shows_every_guarantee_in_a_narrow_terminal_too(width, runs):
    """No word of a guarantee, of the rebuilt rows or of a regret is cut."""
    finding = wire.Finding(
        attack="known_rows", figure=0.0, low=0.0, high=0.01, confidence=0.95, unit="u", distance=0.67, sentence="s"
    )
    outcome = story.Outcome(run_id="run_1", seed=0, queries=60, seconds=1.0, best=4.875, regrets=[0.125])
    methods = [
        story.Method(name, "std_1", guarantee, story.EPSILON, finding, wire.GpUcb(name="gp_ucb"))
        for name, guarantee in story.GUARANTEES.items()
    ]
    shown = io.StringIO()
    console = report.Console(width=width, file=shown)
    console.print(report.table({method: [outcome] * runs for method in methods}, width))
    assert "…" not in shown.getvalue()
    assert max(len(line) for line in shown.getvalue().splitlines()) <= width
    words = set(shown.getvalue().replace("│", " ").split())
    for guarantee in story.GUARANTEES.values():
        assert set(guarantee.split()) <= words
    for number in ("0.67", "0.125", "planar_laplace"):
        assert number in words


@pytest.mark.slow(sibling="test_the_demo_of_groups_finds_a_place_over_both_services")
def test_the_table_in_json_has_a_regret_for_every_query_of_every_method(played):
    assert [re.sub(r"= \d+", "= ", m["method"]) for m in played.table["methods"]] == list(METHODS)
    cheapest = min(float(row["log10_price"]) for row in csv.DictReader(io.StringIO(csv_bytes().decode())))
    for method in played.table["methods"]:
        assert method.keys() >= {"method", "study_id", "epsilon", "guarantee", "known_rows", "best", "regret", "runs"}
        (run,) = method["runs"]
        assert (run["seed"], run["queries"], len(run["regrets"])) == (0, QUERIES, QUERIES)
        assert all(a >= b >= 0 for a, b in zip(run["regrets"], run["regrets"][1:], strict=False))
        # Which method wins is a matter of chance in one run: the row order is secret and drawn anew.
        assert method["regret"] == run["regrets"][-1] == pytest.approx(run["best"] - cheapest, abs=1e-12)
        assert run["seconds"] > 0
        assert re.fullmatch(r"std_[0-9a-f]{16}", method["study_id"])


@pytest.mark.slow(sibling="test_the_demo_of_groups_finds_a_place_over_both_services")
def test_the_plot_is_an_image_with_a_line_for_every_method(played):
    svg = ET.parse(played.folder / "regret.svg").getroot()  # refuses what is not well-formed
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    text = (played.folder / "regret.svg").read_text()
    for method in METHODS:
        assert method.strip("= ") in text
    assert len(text) > 5_000


@pytest.mark.slow(sibling="test_the_demo_of_groups_finds_a_place_over_both_services")
def test_the_demo_leaves_two_logs_that_agree_and_no_process(played):
    study, exchanges = played.table["methods"][0]["study_id"], []
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
    # gp_ucb and random share the study, each under a grant of its own; random rows are one query
    assert about.count(f"/v1/studies/{study}/queries") == QUERIES + 1


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


def test_the_demo_of_groups_finds_a_place_over_both_services(forked, tmp_path, monkeypatch, capsys):
    """One method, few queries: the recommended group's regret, by the place that its owner opens."""
    one_method = groups.methods()[1:2]
    monkeypatch.setattr(groups, "QUERIES", 8)
    monkeypatch.setattr(groups, "methods", lambda: one_method)
    status = groups.main(["--runs", "1", "--json", str(tmp_path / "regrets.json")])
    done = capsys.readouterr()
    assert (status, done.err) == (0, "")
    assert re.search(r"groups, epsilon = 1 +│ 1-DP of whole records", done.out)
    (line,) = json.loads((tmp_path / "regrets.json").read_text())
    assert (line["method"], line["epsilon"], len(line["regrets"])) == ("groups", "1", 1)
    assert 0 <= line["regrets"][0] < 1.2


def test_every_method_of_the_demo_of_groups_has_the_same_promise_for_a_record():
    """The charge of its release and of one answer: epsilon in all; and the groups are those of the sales."""
    for method in groups.methods()[1:]:
        study = method.study("ds_0000000000000000")
        spent = sum(wire.amount(part.epsilon) for part in (study.release, study.answers))
        assert spent == wire.amount(method.epsilon) == wire.amount(study.budget.epsilon_per_row)
    sales = groups.Sales()
    assert sales.size.sum() == 21_613
    best = int(np.argmax(np.where(sales.size >= groups.LEAST, sales.mean, -np.inf)))
    rows = list(csv.DictReader(io.StringIO(sales.centres_csv().decode())))
    at = max(rows, key=lambda row: float(row[groups.OUTCOME]))
    assert float(at[groups.OUTCOME]) == sales.mean[best]
    assert sales.regret([float(at["long"]), float(at["lat"])]) == 0
