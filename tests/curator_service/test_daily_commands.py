"""`blindopt-curator study|grant|inbox` against a real curator: for people, for programs, with or without a token."""

import json
import re
import stat

import pytest

import blindopt as bo
from blindopt import wire
from blindopt.client import StudyClient, new_key
from tests.builders import a_study, group_release, laplace, registered_apart


def by_hand(dataset, small):
    """A draft whose outcomes people enter."""
    return wire.StudyCreate(
        name="by hand",
        dataset_id=dataset.id,
        features=small.features,
        measurement=wire.InboxMeasurement(question="How much?", unit="kg", direction="maximize"),
        release=wire.IdentityRelease(mechanism="identity"),
        answers=wire.NONE,
    )


@pytest.fixture
def draft(dataset, small):
    """A draft that people measure, as the body of a request."""
    return by_hand(dataset, small).model_copy(update={"budget": wire.Budget(queries=5)})


@pytest.fixture
def command(curator):
    """Runs a command that has to succeed; its output."""

    def run(*arguments):
        done = curator.run_in_process(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_draft_that_is_refused_is_said_where_it_is_wrong(curator, draft, tmp_path):
    """Found by hand: the command said "errors says where", and showed no errors."""
    body = tmp_path / "study.json"
    wrong = draft.features[0].model_copy(update={"column": "nowhere"})
    body.write_text(draft.model_copy(update={"features": [wrong]}).model_dump_json())
    done = curator.run_in_process("study", "create", str(body))
    assert done.returncode == 4
    first, *others = done.stderr.splitlines()
    assert first.startswith("error: invalid (422): features.0.column names no column of the dataset")
    assert others == []


def test_a_study_from_its_draft_to_its_end(curator, command, draft, tmp_path):
    body, grant = tmp_path / "study.json", tmp_path / "grant.json"
    body.write_text(draft.model_dump_json())
    made = json.loads(command("study", "create", str(body), "--json"))["id"]
    assert command("study", "preview", made)
    assert curator.run_in_process("study", "release", made).returncode == 1  # nobody confirmed
    assert "open" in command("study", "release", made, "--yes")
    shown = command("study", "show", made)
    assert "by hand" in shown
    assert re.search(r"measurements +0 +5$", shown, re.MULTILINE)
    assert [made, "open"] in [line.split()[:2] for line in command("study", "list").splitlines()]

    said = command("grant", "create", made, "--name", "Acme", "--save", str(grant))
    access = wire.GrantFile.model_validate_json(grant.read_text())
    assert stat.S_IMODE(grant.stat().st_mode) == 0o600
    assert access.token not in said
    assert access.curator_url == curator.url
    again = curator.run_in_process("grant", "create", made, "--name", "Acme", "--save", str(grant))
    assert (again.returncode, len(json.loads(command("grant", "list", made, "--json")))) == (2, 1)

    with StudyClient(access.curator_url, access.token, made) as client:
        client.ask(wire.QueryRequest(rows=[wire.RowPlays(row=3), wire.RowPlays(row=4)]), key=new_key())
    items = json.loads(command("inbox", "list", "--study", made, "--json"))
    assert len(items) == 2
    assert "How much? (kg)" in command("inbox", "list", "--study", made)
    command("inbox", "answer", items[0]["id"], "-2.5")
    assert "0 of its query still open" in command("inbox", "decline", items[1]["id"], "--reason", "consent")
    assert json.loads(command("inbox", "list", "--study", made, "--json")) == []

    assert "revoked" in command("grant", "revoke", made, json.loads(command("grant", "list", made, "--json"))[0]["id"])
    assert "closed" in command("study", "close", made, "--yes")
    signed = wire.SignedPrivacyReport.model_validate_json(command("report", "make", made))
    assert made in signed.report.model_dump_json()


def test_a_release_like_chance_is_refused_with_the_option_that_confirms_it(curator, command, draft, tmp_path):
    with bo.Owner(curator.url, curator.token) as owner:
        dataset = registered_apart(owner, "chance", b"a,y\n" + b"".join(b"%d,%d\n" % (n, n) for n in range(40)))
    feature = wire.Feature(column="a", lower=0.0, upper=50.0, hidden_change=1.0)
    release = {"dataset_id": dataset.id, "features": [feature], "release": wire.AutoRelease(epsilon="2")}
    body, answers = tmp_path / "study.json", wire.OneBitAnswers(mechanism="one_bit", epsilon="1", value_bound=1.0)
    body.write_text(draft.model_copy(update=release | {"answers": answers}).model_dump_json(), encoding="utf-8")
    made = json.loads(command("study", "create", str(body), "--json"))["id"]
    refused = curator.run_in_process("study", "release", made, "--yes")
    assert (refused.returncode, "confirm_chance" in refused.stderr) == (4, False)
    assert "with --confirm-chance." in refused.stderr
    assert "open" in command("study", "release", made, "--yes", "--confirm-chance")


def test_all_groups_are_answered_by_a_command_and_in_python_and_a_loop_reads_the_same(curator, command, tmp_path):
    """The grant's reading of them is in both logs. The modeler's algorithm is the oracle of what is recommended."""
    csv = b"a,y\n" + b"".join(b"%d,%d\n" % (i % 8, i % 8 + i % 3) for i in range(800))
    with bo.Owner(curator.url, curator.token) as owner:
        dataset = registered_apart(owner, "groups", csv)
        spec = a_study(
            group_release("4", (8,), 1), laplace("4", value_bound=5.0), upper=8.0, columns="a", dataset_id=dataset.id
        )  # fmt: skip
        study = owner.draft(owner.create_study(spec).id).release()
        grant, copies = tmp_path / "grant.json", [tmp_path / "c.jsonl", tmp_path / "m.jsonl"]
        study.grant("Acme").save(grant)
        assert curator.run_in_process("study", "answer-all", study.id).returncode == 1  # nobody confirmed
        printed = command("study", "answer-all", study.id, "--yes").splitlines()
        groups = study.answer_all()
        charged = [line.row for line in owner.ledger(study.id) if line.kind == "answers"]
    assert charged == [*range(8)]
    with bo.Study.from_grant(grant, log=tmp_path / "log.sqlite") as loop:
        answers = loop.all_answers()
        observations = [{"row": a.row, "y": a.y, "passport": a.passport} for a in answers]
        expected = bo.Optimizer(loop.candidates, seed=0, algorithm="ei", observations=observations).posterior().mean
        loop.settle()
        loop.export(copies[1])
    assert [(group.row, group.y) for group in groups] == [(answer.row, answer.y) for answer in answers]
    assert [group.expected for group in groups] == pytest.approx(expected.tolist())
    best = max(groups, key=lambda group: group.expected)
    assert [group.row for group in groups if group.recommended] == [best.row]
    assert printed[2].split()[0] == str(best.row)
    copies[0].write_text(command("audit", "export"), encoding="utf-8")
    assert command("audit", "reconcile", study.id, *map(str, copies)).endswith(" 0 differences\n")


def test_from_help_to_a_release(curator, command, tmp_path):
    """An owner who reads only --help: each command is named by the help of its group. No bound is from the records."""
    file, body = tmp_path / "stays.csv", tmp_path / "study.json"
    file.write_text(
        "years,charge,nights\n" + "".join(f"{31 + n},{90407 + 13 * n},{n % 7}\n" for n in range(40)), encoding="utf-8"
    )

    def run(group, name, *arguments):
        assert f" {group} " in command("--help")
        assert f" {name} " in command(group, "--help")
        return command(group, name, *arguments)

    stored = run("dataset", "upload", str(file), "--yes", "--json")
    dataset = json.loads(stored)["id"]
    template = run("study", "template", dataset, "--outcome", "nights")
    assert not {"31", "70", "90407", "90914"} & set(re.findall(r"\d+", template.replace(dataset, "")))
    body.write_text(template, encoding="utf-8")
    unedited = curator.run_in_process("study", "create", str(body))
    assert (unedited.returncode, "features.0.lower is text: write a number without quotes" in unedited.stderr) == (
        2,
        True,
    )
    words = {
        "SMALLEST POSSIBLE VALUE": 0,
        "LARGEST POSSIBLE VALUE": 100_000,
        "EPSILON, SUCH AS 3": "8",
        "EPSILON OF AN ANSWER, SUCH AS 0.5": "2",
        "MIDDLE OF THE OUTCOMES": 3,
        "HALF OF THEIR RANGE": 3,
    }
    for word, value in words.items():
        assert f'"{word}"' in template
        template = template.replace(f'"{word}"', json.dumps(value))
    body.write_text(template, encoding="utf-8")
    study = json.loads(run("study", "create", str(body), "--json"))["id"]
    assert "Risk" in run("study", "preview", study)
    options = [
        option
        for option in ("--confirm-high-risk", "--confirm-chance")
        if option in command("study", "release", "--help")
    ]
    assert "open" in run("study", "release", study, "--yes", *options)
    assert "is no column" not in run("grant", "create", study, "--name", "Acme", "--save", str(tmp_path / "g.json"))
    wrong = curator.run_in_process("study", "template", dataset, "--outcome", "night")
    assert (wrong.returncode, 'did you mean "nights"?' in re.sub(r"[\s│]+", " ", wrong.stderr)) == (2, True)


def test_many_features_without_a_delta_are_told_to_take_one(owner):
    names = [f"f{number}" for number in range(384)]
    dataset = owner.upload(f"{','.join(names)}\n{','.join('1' * 384)}\n{','.join('2' * 384)}\n".encode(), name="wide")
    draft = {"features": dict.fromkeys(names[:-1], (0, 3)), "outcome": names[-1], "answers": "exact"}
    with pytest.raises(bo.Remote, match=r"release\.delta is missing: 383 features need a delta, such as 1e-6"):
        dataset.study("wide", privacy=3, **draft)
    assert dataset.study("wide", privacy={"epsilon": 3, "delta": 1e-6}, **draft).id


def test_a_dataset_is_erased_by_commands_and_by_the_library(curator, command):
    with bo.Owner(curator.url, curator.token) as owner:
        first, second = (owner.upload(b"a,y\n1,2\n3,4\n", name=name) for name in ("first", "second"))
        assert curator.run_in_process("dataset", "erase", first.id, "--yes").returncode == 4  # it is not archived
        assert "archived" in command("dataset", "archive", first.id)
        assert curator.run_in_process("dataset", "erase", first.id).returncode == 1  # nobody confirmed
        assert "is erased: 0 studies" in command("dataset", "erase", first.id, "--yes")
        assert second.erase().id == second.id
    rows = [line.split() for line in command("dataset", "list").splitlines()]
    assert {row[0]: row[1] for row in rows if row[0] in (first.id, second.id)} == dict.fromkeys(
        (first.id, second.id), "erased"
    )


def test_the_token_of_a_command_ends_with_it_and_a_file_or_the_environment_names_another(curator, command, tmp_path):
    command("study", "list")
    made = curator.rows("select name, revoked_at from tokens where name like '%command line'")
    assert made
    assert all(revoked for _, revoked in made)
    token = tmp_path / "token"
    token.write_text(curator.token + "\n")
    curator.settings |= {"TOKEN_FILE": str(token), "URL": curator.url, "DATA_DIR": str(tmp_path / "nowhere")}
    try:
        assert command("study", "list").startswith("STUDY")
        del curator.settings["TOKEN_FILE"]
        without = curator.run_in_process("study", "list")
        assert (without.returncode, without.stderr.startswith("error: no token: name a file")) == (4, True)
    finally:
        curator.settings.clear()


def test_a_refusal_is_an_error_in_words_and_a_wrong_reason_names_the_right_ones(curator, tmp_path):
    unknown = curator.run_in_process("study", "show", "std_0000000000000000")
    assert unknown.returncode == 5
    assert unknown.stderr.startswith("error: ")
    half = curator.run_in_process("grant", "create", "std_0000000000000000", "--name", "\udcff")
    assert half.stderr.startswith("error: --name must be text in UTF-8")
    token = tmp_path / "token"
    token.write_text("blindopt_x")
    away = curator.run_in_process("study", "list", "--token-file", str(token), "--url", "http://curator.invalid")
    assert away.returncode == 6
    assert away.stderr.splitlines()[0].startswith("warning: the token goes to http://curator.invalid over plain http")
    wrong = curator.run_in_process("inbox", "decline", "msr_0000000000000000", "--reason", "because")
    assert wrong.returncode == 2
    assert "unavailable" in wrong.stderr
