"""Snippets that need a service beside them, run as they stand: commands of each day, people who are added, Python."""

import os
import re
import shlex
import subprocess
from importlib import import_module

import numpy as np
import pytest
from typer.testing import CliRunner

import blindopt as bo
from blindopt import wire
from blindopt.client import Owner, StudyClient, new_key
from tests.curator_service.test_daily_commands import by_hand
from tests.docs.snippets import ROOT, run_blocks, run_by

THIS_FILE = "tests/docs/test_services.py"
PYTHON = "docs/howto/from-python.md"
PASSWORD = "correct horse battery staple"


def of(document, language="bash"):
    """The blocks of a document that say that this file runs them."""
    return [block.text for block in run_by(THIS_FILE) if (block.document, block.language) == (document, language)]


def type_in(service, line, answers):
    """Run a command as at a terminal, where ``answers`` are typed; returns its output."""
    program, *words = shlex.split(line, comments=True)
    assert program == f"blindopt-{service.name}"
    settings = {k: v for k, v in service.environment.items() if k.startswith("BLINDOPT_")}
    app = import_module(f"{service.name}_service.cli").app
    done = CliRunner().invoke(app, words, env=settings, input=answers)
    assert done.exit_code == 0, f"{line}\n{done.output}"
    return done.stdout


def query(grant, rows):
    access = wire.GrantFile.model_validate_json(grant.read_text())
    with StudyClient(access.curator_url, access.token, access.study_id) as client:
        client.ask(wire.QueryRequest(rows=[wire.RowPlays(row=row) for row in rows]), key=new_key())


def test_services_start_and_people_and_tokens_are_added_as_the_pages_say(make_service, tmp_path):
    services = {name: make_service(name, tmp_path).start() for name in ("curator", "modeler")}
    pages = ("docs/owner.md", "docs/vendor.md", "docs/operations.md", "docs/howto/users-and-tokens.md")
    lines = [line for page in pages for text in of(page) for line in text.splitlines()]
    commands = [line.replace('"$USER"', "ann").removesuffix(" &") for line in lines if "bin/activate" not in line]
    assert len(commands) >= 13
    for line in commands:
        program, *words = shlex.split(line, comments=True)
        service = services[program.removeprefix("blindopt-")]
        if words == ["serve"]:  # which ``make_service`` runs
            assert service.http(token="").get("/readyz").status_code == 200
        elif words[0] in ("user", "token"):
            type_in(service, line, f"{PASSWORD}\n{PASSWORD}\n")
    people = {name: service.run_in_process("user", "list").stdout for name, service in services.items()}
    assert all(person in people["curator"] for person in ("olga", "mia", "ada"))
    assert all(person in people["modeler"] for person in ("vera", "ivo"))
    assert [" ann" in service.run_in_process("token", "list").stdout for service in services.values()] == [True, True]


@pytest.fixture(scope="module")
def quiet(make_service, tmp_path_factory):
    """A curator whose inbox has what these tests request, and nothing else."""
    service = make_service("curator", tmp_path_factory.mktemp("quiet")).start()
    yield service
    service.process.kill()


def test_the_commands_of_each_day_run_at_a_curator(quiet, small, tmp_path, monkeypatch):
    curator = quiet
    with Owner(curator.url, curator.token) as owner:
        dataset = owner.register("small", small.csv, public=True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.json").write_text(by_hand(dataset, small).model_dump_json())
    names = {}
    (text,) = [text for text in of("docs/operations.md") if "study create" in text]
    for line in text.splitlines():
        if "inbox list" in line:
            query(tmp_path / "acme.json", [3])
        for placeholder, name in names.items():
            line = line.replace(placeholder, name)
        output = type_in(curator, line, "y\n")
        for prefix in ("std", "msr"):
            if (name := re.search(rf"{prefix}_[0-9a-f]{{16}}", output)) is not None:
                names[f"{prefix}_0123456789abcdef"] = name[0]
    with bo.Measurer(curator.url, curator.token) as measurer:
        assert names["std_0123456789abcdef"] not in {item.view.study_id for item in measurer.inbox}


def test_the_python_of_owners_and_measurers_runs(quiet, small, tmp_path, monkeypatch, capsys):
    curator = quiet
    monkeypatch.chdir(tmp_path)
    owned, measured = (text.replace("https://curator.example", curator.url) for text in of(PYTHON, "python"))
    names = {"token": curator.token}
    exec(compile(owned, PYTHON, "exec"), names)
    study = names["study"]
    assert study.view.state == "open"
    printed = capsys.readouterr().out
    assert printed.startswith(("Low risk", "Notable risk"))
    assert "confirm_high_risk" not in owned

    answers = {}
    with bo.Study.from_grant(tmp_path / "grant.json", log=tmp_path / "own.sqlite") as own:
        optimizer = own.optimizer(seed=1, iterations=own.view.n - 5, initial_rows=5)
        for _ in range(own.view.n):
            answer = own.query(optimizer.ask())
            optimizer.tell(answer.row, answer.y, passport=answer.passport)
            answers[answer.row] = answer.y
        recommended = optimizer.recommendation().row
    groups = [study.open_group(group.row) for group in study.groups()]
    features, outcomes = in_the_file(names)
    for group in groups:
        records = np.array(group.records) - 1
        assert np.all((group.lower <= features[records]) & (features[records] <= group.upper))
        assert group.mean == pytest.approx(outcomes[records].mean())
    assert recommended in answers
    assert answers.keys() == {group.row for group in groups}
    check_that_answers_follow_the_groups(groups, np.array([answers[group.row] for group in groups]))

    with Owner(curator.url, curator.token) as owner:
        dataset = owner.register("small", small.csv, public=True)
        study = owner.release(owner.create_study(by_hand(dataset, small)).id)
    grant = bo.Owner(curator.url, curator.token).study(study.id).grant("Bolt").save(tmp_path / "by-hand.json")
    query(grant, [5, 6])
    exec(compile(measured, PYTHON, "exec"), {"bo": bo, "token": curator.token})
    with Owner(curator.url, curator.token) as owner:
        assert owner.study(study.id).view.state == "open"
    with bo.Measurer(curator.url, curator.token) as measurer:
        assert list(measurer.inbox) == []


def in_the_file(names):
    """Features (n, 2), and outcomes clipped to their range (n,), as the file of the page has them."""
    rounded = np.round([names["age"], names["stay"], names["charges"]], 1)
    return rounded[:2].T, np.clip(rounded[2], 0, 100)


def check_that_answers_follow_the_groups(groups, answers):
    """The better half of the groups has better answers, by 0.3 of what is expected or more, but once in 10^9 times.

    An answer is 50 + (S + L) / N with Laplace noise L of scale 2 * 50 / 0.5. Chernoff's bound holds for a weighted sum.
    """
    counts = np.array([max(group.count, 1) for group in groups])
    expected = 50 + np.array([(group.mean - 50) * group.size for group in groups]) / counts
    better = expected > np.median(expected)
    weights = counts * better / counts[better].sum() - counts * ~better / counts[~better].sum()
    scales = np.abs(weights) * 200 / counts
    tilt = np.linspace(0, 0.999 / scales.max(), 1000)
    excess = 0.7 * (weights @ expected)
    chance = np.exp(-excess * tilt - np.log1p(-(np.outer(tilt, scales) ** 2)).sum(axis=1))
    assert chance.min() < 1e-9
    assert weights @ answers > 0.3 * (weights @ expected)
    assert abs(weights @ np.full(len(groups), 50)) < 1e-9  # the control: answers that follow nothing


def test_the_search_of_the_python_page_recommends_a_group_of_the_best_fifth():
    """On average over five searches, with the data and the noise of the page, from seeds."""
    names = {}
    (owned, _) = of(PYTHON, "python")
    exec(compile(owned.partition("\nowner = ")[0], PYTHON, "exec"), names)
    features, outcomes = in_the_file(names)
    parts = np.minimum((features - [20, 0]) / [70, 40] * 6, 5).astype(int)
    at = parts @ [6, 1]
    counts = np.bincount(at, minlength=36)
    means = np.bincount(at, outcomes, minlength=36) / counts
    centres = np.array([[age, stay] for age in range(6) for stay in range(6)]) / 6
    group_means = []
    for seed in range(5):
        answers = means + np.random.default_rng(seed).laplace(0, 200 / counts)
        optimizer = bo.Optimizer(centres, seed=seed, iterations=31, initial_rows=5)
        for _ in range(36):
            row = optimizer.ask()
            optimizer.tell(row, answers[row], variance=2 * (200 / counts[row]) ** 2)
        best = optimizer.recommendation()
        assert 0 <= best.mean <= 100  # in the declared range
        group_means.append(means[best.row])
    assert np.mean(group_means) > np.quantile(means, 0.8)  # at random: the mean of all, far below


def test_past_measurements_are_checked_by_the_command_of_the_page(curator, modeler, vendor, opened, run_of, tmp_path):
    run = vendor.start(run_of(curator.url, opened, hold=True))
    (tmp_path / "past.csv").write_text("row,y\n3,0.25\n")
    first_steps = "".join(block.text for block in run_blocks("docs/vendor.md", "bash"))
    functions = [line for line in first_steps.splitlines() if line.startswith(("key() {", "vendor() {"))]
    script = "\n".join([*functions, *of("docs/howto/steer-a-run.md")])
    names = {"VENDOR": modeler.token, "MODELER": modeler.url, "RUN": run.id}
    done = subprocess.run(
        ["bash", "-euc", script], env=os.environ | names, capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert vendor.run(run.id).view.observations == 0
    vendor.stop(run.id)


def test_each_file_that_a_page_names_runs_its_blocks():
    for file in {block.runner for block in run_by()}:
        assert "run_by(" in (ROOT / file).read_text(), file
