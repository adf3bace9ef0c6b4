"""The help of every command: an example of this service that runs, and a usage line for people."""

import os
import re
import shlex

import pytest
import typer
from typer.testing import CliRunner

from curator_service.cli import app as curator_app
from curator_service.settings import Settings as CuratorSettings
from modeler_service.cli import app as modeler_app
from modeler_service.settings import Settings as ModelerSettings
from tests import postgres, processes
from tests.console_errors import NOT_SAID

SERVICES = {"curator": curator_app, "modeler": modeler_app}
TYPED = "correct horse battery staple\n" * 2


def commands_of(command, path=()):
    if command.hidden:
        return
    for name, part in getattr(command, "commands", {}).items():
        yield from commands_of(part, (*path, name))
    if path and not hasattr(command, "commands"):
        yield path, command


def example_of(command):
    """The words after the variables and before a pipe or a file."""
    match = re.search(r"^Example: (.*)$", command.help or "", re.MULTILINE) or re.search(r"Example: (.*)", command.help)
    words = shlex.split(re.split(r" [|>] ", match[1])[0])
    return [word for word in words if not re.match("[A-Z_]+=", word)]


@pytest.fixture(params=SERVICES)
def service(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(f"BLINDOPT_{request.param.upper()}_DATA_DIR", str(tmp_path / "data"))
    return request.param


def test_the_example_of_every_command_runs(service):
    """Over an empty service that does not serve: a command may report what is missing, and never a wrong usage."""
    app, wrong, seen = SERVICES[service], {}, 0
    for path, command in commands_of(typer.main.get_command(app)):
        program, *words = example_of(command)
        if (program, tuple(words[: len(path)])) != (f"blindopt-{service}", path):
            wrong[path] = words
        elif path != ("serve",):
            done = CliRunner().invoke(app, words, input=TYPED)
            if done.exit_code and not re.search("(?m)^(error|Abort)", done.output):
                wrong[path] = done.output, done.exception
        seen += 1
    assert wrong == {}
    assert seen > 25
    assert CliRunner().invoke(app, ["token", "create", "--nam", "ann"]).exit_code == 2  # the control


def test_the_usage_of_every_command_names_its_arguments_without_braces(service):
    usages = {}
    for path, command in commands_of(typer.main.get_command(SERVICES[service])):
        with command.make_context(path[-1], [], resilient_parsing=True) as context:
            usages[path] = command.get_usage(context)
    assert [usage for usage in usages.values() if re.search("[{}]", usage)] == []
    assert usages["tls", "init"].endswith("init [OPTIONS] NAMES...")


@pytest.mark.parametrize("words", [["user", "add", "ann"], ["user", "password", "ann"]], ids=" ".join)
def test_without_a_terminal_the_file_of_the_password_is_asked_for(words, service, tmp_path):
    """Found by hand: getpass printed warnings, and a traceback."""
    (tmp_path / "password").write_text("correct horse battery staple\n", encoding="utf-8")
    if words[1] == "password":
        CliRunner().invoke(SERVICES[service], ["user", "add", "ann", "--password-file", str(tmp_path / "password")])
    prefix, settings = f"BLINDOPT_{service.upper()}_", postgres.settings_for(tmp_path / "data")
    environment = os.environ | {prefix + name: value for name, value in settings.items()}
    done = processes.run(f"{service}_service", *words, env=environment, session="no terminal")
    assert (done.returncode, done.stderr) == (
        2,
        "error: no terminal can ask for the password: name a file with --password-file\n",
    )


@pytest.mark.parametrize("value", ["no such value", "-1", "1e999"])
def test_a_wrong_setting_is_named_as_it_is_typed(value, service):
    """Found by hand: it was "PORT: Input should be a valid integer"."""
    settings, wrong, refused = {"curator": CuratorSettings, "modeler": ModelerSettings}[service], {}, []
    for variable in map(settings.variable, settings.model_fields):
        done = CliRunner().invoke(SERVICES[service], ["config", "show"], env={variable: value})
        if done.exit_code:
            refused.append(variable)
        if done.exit_code and (done.exit_code != 2 or variable not in done.stderr or NOT_SAID.search(done.stderr)):
            wrong[variable] = done.stderr, done.exception
    assert wrong == {}
    assert len(refused) > 5


def test_a_setting_that_does_not_exist_is_asked_back_with_the_nearest(service):
    done = CliRunner().invoke(
        SERVICES[service], ["config", "show"], env={f"BLINDOPT_{service.upper()}_LOG_LEVL": "info"}
    )
    own = f"BLINDOPT_{service.upper()}_LOG_LEVEL"
    assert done.stderr == f'error: there is no setting {own.replace("LEVEL", "LEVL")}: did you mean "{own}"?\n'


def test_an_option_of_serve_is_named_as_an_option(service):
    done = CliRunner().invoke(SERVICES[service], ["serve", "--port", "99999"])
    assert (done.exit_code, done.stderr) == (2, "error: --port must be at most 65535\n")
