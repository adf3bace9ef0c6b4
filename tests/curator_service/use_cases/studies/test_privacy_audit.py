"""`blindopt-curator audit-privacy`: what it prints, when it fails, and that no record is read."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from blindopt import wire
from curator_service import cli
from curator_service.privacy import groups as of_answers
from curator_service.privacy.answers import mechanism_of as answers_of
from curator_service.privacy.noise import add_integer_laplace
from curator_service.release import groups as of_release
from curator_service.release import private_centres as of_centres
from curator_service.release.registry import mechanism_of
from curator_service.use_cases.studies import privacy_audit
from tests.curator_service.replaced_noise import replace_answer_mechanism, replace_integer_laplace
from tests.curator_service.use_cases.inbox.in_process_curator import InProcessCurator

RELEASE = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1")
ANSWERS = wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=1.0)

GROUPS = wire.GroupsRelease(mechanism="groups", epsilon="1", cells=wire.GridCells(kind="grid", parts=[2, 2]))
PRIVATE = wire.GroupsRelease(
    mechanism="groups", epsilon="1.25", cells=wire.PrivateCells(kind="private", number=2, epsilon="1")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small):
    """A curator's folder without any file of records, its studies by what they promise."""
    data, ids = tmp_path_factory.mktemp("audited"), {}
    service = InProcessCurator(data)
    files, form = {"file": ("a.csv", small.csv)}, {"name": "d", "public": "true"}
    dataset = service.call("owner", "POST", "/v1/datasets", files=files, data=form)["id"]
    for name, release, answers in (
        ("private", RELEASE, ANSWERS),
        ("groups", GROUPS, ANSWERS),
        ("centres", PRIVATE, ANSWERS),
        ("public", wire.IdentityRelease(mechanism="identity"), wire.NoAnswerNoise(mechanism="none")),
    ):
        spec = wire.StudyCreate(
            name="s",
            dataset_id=dataset,
            features=small.features,
            measurement=wire.ColumnMeasurement(column=small.names[2], direction="maximize"),
            release=release,
            answers=answers,
        )
        ids[name] = service.call("owner", "POST", "/v1/studies", json=spec.model_dump(mode="json"))["id"]
    service.curator.context.close()
    shutil.rmtree(data / "data" / "files")
    return data / "data", ids


def run(folder, name, *options, draws="400"):
    data, ids = folder
    arguments = ["audit-privacy", ids.get(name, name), "--draws", draws, *options]
    return CliRunner().invoke(cli.app, arguments, env={"BLINDOPT_CURATOR_DATA_DIR": str(data)})


def test_a_right_study_is_not_contradicted_and_no_record_is_read(folder):
    done = run(folder, "private")
    assert done.exit_code == 0, done.output
    words = " ".join(done.stdout.split())
    assert "release (planar_laplace, version 2): epsilon 1 is promised" in words
    assert "answers (laplace): epsilon 1 is promised" in words
    assert words.count("no contradiction, which proves nothing") == 2


@pytest.mark.slow(sibling="test_a_right_study_is_not_contradicted_and_no_record_is_read")
def test_as_json_it_has_the_bounds(folder):
    done = run(folder, "private", "--json", "--confidence", "0.99")
    body = json.loads(done.stdout)
    assert [part["part"] for part in body["audits"]] == ["release", "answers"]
    for part in body["audits"]:
        assert (part["claimed"], part["draws"], part["confidence"]) == ({"epsilon": "1", "delta": 0.0}, 400, 0.99)
        assert part["epsilon_at_least"] <= 1 < part["most_that_could_be_seen"]
        assert part["contradicts"] is False


@pytest.mark.slow(sibling="test_a_broken_answer_exits_with_three")
def test_a_broken_release_exits_with_three(folder, monkeypatch):
    wrong = RELEASE.model_copy(update={"epsilon": "8"})
    monkeypatch.setattr(privacy_audit, "mechanism_of", lambda spec, release: mechanism_of(spec, wrong))
    done = run(folder, "private", "--json")
    assert done.exit_code == 3
    assert [part["contradicts"] for part in json.loads(done.stdout)["audits"]] == [True, False]


def test_a_broken_answer_exits_with_three(folder, monkeypatch):
    broken = answers_of(ANSWERS.model_copy(update={"epsilon": "8"}))
    replace_answer_mechanism(monkeypatch, lambda answers, persons=1: broken)
    done = run(folder, "private")
    assert done.exit_code == 3
    assert done.stdout.count("THE PROMISE IS FALSE") == 1


BROKEN = [("groups", None), ("groups", of_release), ("groups", of_answers), ("centres", None), ("centres", of_centres)]


@pytest.mark.slow(every=2)
@pytest.mark.parametrize(("study", "broken"), BROKEN, ids=str)
def test_groups_are_audited_and_a_tenth_of_the_noise_is_noticed(folder, monkeypatch, study, broken):
    """Of the numbers of records, or of the answers; of private centres, which draw 16 times, a hundredth."""

    def too_little(values, sensitivity, epsilon):
        return add_integer_laplace(values, sensitivity, (100 if broken is of_centres else 10) * epsilon)

    if broken is not None:
        replace_integer_laplace(monkeypatch, too_little, broken)
    done = run(folder, study, "--json", draws="200")
    contradicts = [part["contradicts"] for part in json.loads(done.stdout)["audits"]]
    assert contradicts == [broken in (of_release, of_centres), broken is of_answers]
    assert done.exit_code == (0 if broken is None else 3)


def test_where_nothing_is_promised_there_is_nothing_to_check(folder):
    done = run(folder, "public")
    assert done.exit_code == 0
    assert done.stdout.count("nothing is promised") == 2


@pytest.mark.parametrize("options", [["--draws", "99"], ["--confidence", "1"]])
def test_numbers_out_of_range_are_refused(folder, options):
    assert run(folder, "private", *options).exit_code == 2


def test_a_study_that_does_not_exist_is_an_error(folder):
    done = run(folder, "std_0000000000000000")
    assert done.exit_code == 1
    assert "there is no such study" in done.output
