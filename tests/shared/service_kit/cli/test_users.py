"""`user add | list | password | disable` of both services, and what a running console makes of it."""

import pytest
from typer.testing import CliRunner

from curator_service import app as curator_app
from curator_service import cli as curator_cli
from curator_service.settings import Settings as CuratorSettings
from modeler_service import cli as modeler_cli
from service_kit.cli.users import first_user
from service_kit.identity import passwords
from service_kit.store import users
from tests import beside
from tests.shared.service_kit.console.conftest import Browser

PASSWORD = "a password of some length"
OTHER = "another one of some length"


@pytest.fixture(params=["curator", "modeler"])
def user(request, tmp_path, monkeypatch):
    """Runs the command line: ``user("add", "ann", input=...)``."""
    name = request.param
    monkeypatch.setenv(f"BLINDOPT_{name.upper()}_DATA_DIR", str(tmp_path))
    monkeypatch.setenv(f"BLINDOPT_{name.upper()}_PASSWORD_HASH", "minimal")
    cli = {"curator": curator_cli, "modeler": modeler_cli}[name]

    def run(*arguments, **more):
        return CliRunner().invoke(cli.app, arguments, **more)

    run.program = cli.PROGRAM

    run.role = {"curator": "owner", "modeler": "vendor"}[name]
    run.data = tmp_path
    return run


def test_a_password_is_asked_for_twice_and_shown_nowhere(user):
    assert user("user", "add", "ann", input=f"{PASSWORD}\n{PASSWORD}\n").exit_code == 0
    done = user("user", "add", "bob", input=f"{PASSWORD}\n{OTHER}\n")
    assert done.exit_code != 0
    output = user("user", "list").stdout
    assert [line.split()[1:3] + line.split()[-1:] for line in output.splitlines()] == [[user.role, "live", "ann"]]
    output += user("audit", "export").stdout
    assert "user.added" in output
    assert "argon2" not in output
    kept = beside.stored(user.data / f"{'curator' if user.role == 'owner' else 'modeler'}.sqlite")
    assert b"argon2id" in kept
    for secret in (PASSWORD, OTHER):
        assert secret not in output
        assert secret.encode() not in kept
    assert user("audit", "verify").exit_code == 0


def test_what_cannot_be_is_refused_in_words(user, tmp_path):
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    add = ("user", "add", "--password-file", str(file))
    assert user(*add, "ann").exit_code == 0
    file.write_text("too short\n")
    for arguments, why in {
        (*add, "bob"): "12 to 1024 characters",
        (*add, "--role", "modeler", "bob"): "knows",
        ("user", "disable", "nobody"): "no user of this name",
        ("user", "password", "nobody"): "no user of this name",
        ("user", "password", "ann", "--password-file", str(file)): "12 to 1024",
        ("user", "add", "bob", PASSWORD): "unexpected extra argument",  # never as an argument
    }.items():
        done = user(*arguments)
        assert done.exit_code != 0
        assert why in done.output.replace("\n", " "), (arguments, done.output)
    file.write_text(PASSWORD + "\n")
    for name in ("ann", " x", "x" * 101, "a\nb", ""):
        assert user(*add, name).exit_code == (4 if name == "ann" else 2), name
    file.write_text("")
    assert user(*add, "bob").exit_code == 2
    assert len(user("user", "list").stdout.splitlines()) == 1


@pytest.mark.usefixtures("unset_tempdir")
def test_a_new_password_and_disabling_end_sessions_of_a_running_console(tmp_path, monkeypatch):
    monkeypatch.setenv("BLINDOPT_CURATOR_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("BLINDOPT_CURATOR_PASSWORD_HASH", "minimal")
    app = curator_app.build(CuratorSettings())
    file = tmp_path / "password"
    file.write_text(PASSWORD)

    def run(*arguments):
        done = CliRunner().invoke(curator_cli.app, ["user", *arguments])
        assert done.exit_code == 0, done.output

    run("add", "ann", "--password-file", str(file))
    browser = Browser(app)
    assert browser.login("ann", PASSWORD).status_code == 303
    assert browser.get("/console/").status_code == 200
    file.write_text(OTHER)
    run("password", "ann", "--password-file", str(file))
    assert browser.get("/console/").status_code == 303
    assert browser.login("ann", PASSWORD).status_code == 401
    assert browser.login("ann", OTHER).status_code == 303
    assert browser.get("/console/").status_code == 200
    run("disable", "ann")
    assert browser.get("/console/").status_code == 303
    assert browser.login("ann", OTHER).status_code == 401
    app.state.context.database.close()
    assert CliRunner().invoke(curator_cli.app, ["audit", "verify"]).exit_code == 0


def test_a_first_start_adds_a_user_whose_random_password_only_this_user_of_the_machine_can_read(user):
    """And a start with users, even disabled ones, adds nobody."""
    program = user.program
    file = user.data / "first-password"
    settings = program.checked_settings().model_copy(update={"first_password_file": file})
    with program.opened(new=True) as context:
        first_user(context, program.main_role, settings)
        password = file.read_text()
        assert (len(password), file.stat().st_mode & 0o777) == (24, 0o600)
        with context.database.read() as db:
            (only,) = users.list_all(db)
        assert (only.name, only.role) == (user.role, user.role)
        assert passwords.matches(password, only.password_hash)
        file.unlink()
        context.database.write(lambda db: users.disable(db, only.id, context.clock(), context.seal.mac))
        first_user(context, program.main_role, settings)
    assert not file.exists()
    assert password not in user("audit", "export").stdout
