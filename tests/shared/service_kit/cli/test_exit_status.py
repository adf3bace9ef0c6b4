"""The exit status of commands: one table for both services. And what a command to a running service imports."""

import json
import subprocess
import sys

import pytest

STUDY, RUN = "std_0000000000000000", "run_0000000000000000"
COMMANDS = [
    (2, "curator", "study list --colour"),
    (2, "curator", "token create --name x --role nurse"),
    (2, "curator", "study create {text}"),
    (2, "modeler", "run --grant {text}"),
    (2, "curator", "report verify {text}"),
    (2, "curator", "letter verify {text}"),
    (3, "curator", "audit verify {changed}"),
    (3, "modeler", "audit verify {changed}"),
    (3, "curator", "report verify {report}"),
    (4, "curator", "study list --token-file {token}"),
    (4, "modeler", "runs --token-file {token}"),
    (4, "curator", "dataset erase {dataset} --yes"),
    (5, "curator", f"study show {STUDY}"),
    (5, "curator", f"dataset archive {STUDY.replace('std', 'ds')}"),
    (5, "modeler", f"recommendation {RUN}"),
    (5, "curator", "study create {folder}/missing.json"),
    (5, "curator", "user disable nobody"),
    (5, "curator", "audit verify {folder}/missing.jsonl"),
    (6, "curator", "study list --token-file {token} --url http://127.0.0.1:9"),
    (6, "modeler", "runs --token-file {token} --url http://127.0.0.1:9"),
    (0, "curator", "study list"),
    (0, "modeler", "runs"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory, curator, owner, dataset):
    """Files and ids that the commands name: text, a changed export, a report with a changed date, a wrong token."""
    folder = tmp_path_factory.mktemp("files")
    named = {name: folder / name for name in ("text", "changed", "report", "token")}
    named["text"].write_text("text", encoding="utf-8")
    named["token"].write_text("blindopt_0000000000000000.nonsense", encoding="utf-8")
    export = curator.run_in_process("audit", "export").stdout
    changed = export.replace('actor\\":\\"', 'actor\\":\\"x', 1)
    assert changed != export
    named["changed"].write_text(changed, encoding="utf-8")
    report = json.loads(owner.report(dataset.id).model_dump_json())
    report["report"]["made_at"] = "2020" + report["report"]["made_at"][4:]
    named["report"].write_text(json.dumps(report), encoding="utf-8")
    return named | {"folder": folder, "dataset": dataset.id}


def test_all_commands_of_both_services_end_with_the_statuses_of_one_table(curator, modeler, files):
    services = {"curator": curator, "modeler": modeler}
    wrong = []
    for status, service, words in COMMANDS:
        done = services[service].run_in_process(*words.format(**files).split())
        if done.returncode != status:
            wrong.append((status, done.returncode, words, done.stderr))
    assert wrong == []


def test_an_export_that_verifies_says_so_and_whose_key_it_was(curator, tmp_path):
    """The file's own key proves little: so the command says where it came from, unless it was given another way."""
    file = tmp_path / "log.jsonl"
    file.write_text(curator.run_in_process("audit", "export").stdout, encoding="utf-8")
    key = curator.run_in_process("audit", "key").stdout.strip()
    for arguments, source in (((str(file),), "the file"), ((), ""), ((str(file), "--key", key), "")):
        done = curator.run_in_process("audit", "verify", *arguments)
        assert done.stdout.startswith("valid: "), done.stderr
        assert f"signed by {key}" in done.stdout
        assert done.stderr.startswith(f"the key is the one in {source}") if source else done.stderr == ""


@pytest.mark.parametrize("command", [("study", "list"), ("inbox", "list")])
def test_a_command_to_a_running_service_imports_no_database(curator, tmp_path, command):
    """SQLAlchemy was a third of its time. The control is a command that reads the data folder."""
    (tmp_path / "token").write_text(curator.token, encoding="utf-8")
    command_line = [*command, "--url", curator.url, "--token-file", str(tmp_path / "token")]
    for arguments, imported in ((command_line, False), (["token", "list"], True)):
        code = (
            "import sys; from curator_service.cli import app\n"
            f"try: app({arguments!r})\nfinally: print('sqlalchemy' in sys.modules, file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], env=curator.environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr.split()[-1]) == (0, str(imported)), done.stderr
