"""What is set in the process of a command before it begins."""

import os
import signal
from types import SimpleNamespace

import pytest
from cryptography.fernet import Fernet
from typer.testing import CliRunner

from blindopt.client import Owner, Vendor
from curator_service.cli import PROGRAM
from curator_service.cli import app as curator_app
from modeler_service.cli import app as modeler_app
from service_kit import verification
from service_kit.cli.program import one_thread_for_products
from service_kit.cli.remote import access_token
from tests import postgres, processes

SERVE = [] if postgres.ON else [["serve", "--port", "0"]]
"""With PostgreSQL it does not end: it waits as a standby, and logs why."""


@pytest.mark.parametrize(("given", "threads"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "4"}, "4")])
def test_blas_starts_no_threads_unless_the_environment_asks_for_some(monkeypatch, given, threads):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "")
    del os.environ["OPENBLAS_NUM_THREADS"]
    os.environ.update(given)
    before = dict(os.environ)
    one_thread_for_products()
    assert os.environ == before | {"OPENBLAS_NUM_THREADS": threads}


@pytest.fixture(params=["curator", "modeler"])
def run(request, tmp_path, monkeypatch):
    """Run a command of either service over one folder, ``run("token", "list")``; its exit code and errors."""
    monkeypatch.setenv(f"BLINDOPT_{request.param.upper()}_DATA_DIR", str(tmp_path / "data"))
    app = {"curator": curator_app, "modeler": modeler_app}[request.param]

    def command(*arguments):
        if arguments[0] == "serve":  # in a process of its own, whose log it sets up
            done = processes.run(f"{request.param}_service", *arguments, env=os.environ)
            return SimpleNamespace(exit_code=done.returncode, stderr=done.stderr, output=done.stdout)
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return command


@pytest.mark.parametrize("seconds", [0.0, 3.0])
def test_a_command_that_writes_says_how_long_charges_wait_if_that_is_a_second(run, seconds, monkeypatch):
    assert run("token", "create", "--name", "ann").exit_code == 0
    monkeypatch.setattr(verification, "SECONDS_A_RECORD", seconds)
    words = "its charges wait for about 3 s" if seconds else ""
    created, listed = run("token", "create", "--name", "bob"), run("token", "list")
    assert (created.exit_code, words in created.stderr, bool(created.stderr)) == (0, True, bool(words))
    assert listed.stderr == ""


@pytest.mark.parametrize("hangup", [signal.SIG_IGN, signal.SIG_DFL], ids=["under nohup", "at a terminal"])
@pytest.mark.parametrize("run", ["curator"], indirect=True)
def test_a_command_with_a_token_of_its_own_keeps_an_ignored_hangup_and_leaves_signals_as_they_were(
    run, hangup, monkeypatch, capsys
):
    assert run("token", "create", "--name", "ann").exit_code == 0
    monkeypatch.setattr(verification, "SECONDS_A_RECORD", 3.0)
    before, terminate = signal.signal(signal.SIGHUP, hangup), signal.getsignal(signal.SIGTERM)
    try:
        with access_token(PROGRAM, None, "test"):
            assert "s; so that none does, name a file with --token-file" in capsys.readouterr().err
            assert (signal.getsignal(signal.SIGHUP) is signal.SIG_IGN) == (hangup is signal.SIG_IGN)
            with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) == hangup
        assert signal.getsignal(signal.SIGTERM) == terminate
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("which", ["log", "seal"])
def test_a_lost_key_of_data_that_were_used_is_named_and_not_replaced(run, tmp_path, which):
    key = tmp_path / "data" / "secrets" / f"{which}.key"
    assert run("token", "create", "--name", "ann").exit_code == 0
    kept = key.read_bytes()
    key.unlink()
    for command in (["token", "list"], ["audit", "verify"], *SERVE, ["key", "rotate", which]):
        done = run(*command)
        assert done.exit_code == 4, done.output
        assert f"{key} is missing, and the log has records: put back the key that was there" in done.stderr
        assert not key.exists()
    key.write_bytes(kept)
    assert run("audit", "verify").exit_code == 0


@pytest.mark.parametrize("name", ["curator", "modeler"])
def test_a_seal_key_that_opens_nothing_is_found_at_the_start(
    name, make_service, tmp_path, small, open_study, opened, curator, run_of
):
    """Also where no key was ever changed, so that the log names none. The control is the right key, put back."""
    service = make_service(name, tmp_path).start()
    if name == "curator":
        with Owner(service.url, service.token) as owner:
            open_study(owner, owner.register("small", small.csv, public=True))  # its grant is a reply with a token
    else:
        with Vendor(service.url, service.token) as vendor:
            vendor.start(run_of(curator.url, opened, hold=True))
    assert service.stop() == 0
    key = service.data / "secrets" / "seal.key"
    kept = key.read_bytes()
    key.write_bytes(Fernet.generate_key())
    for command in (["token", "list"], ["audit", "verify"], *SERVE):
        done = service.run(*command)
        assert (done.returncode, done.stderr.count("\n")) == (4, 1), done.stderr
        assert (
            "seal.key does not open what is sealed here: put back the key that belongs to this database" in done.stderr
        )
    key.write_bytes(kept)
    assert service.run("audit", "verify").returncode == 0


@pytest.mark.parametrize("content", [b"no database" * 1000, b"", None], ids=["text", "half", "pages"])
def test_a_damaged_database_is_reported_in_a_line(run, tmp_path, content):
    assert run("token", "create", "--name", "ann").exit_code == 0
    (file,) = (tmp_path / "data").glob("*.sqlite")
    whole = file.read_bytes()
    file.write_bytes(
        {b"": whole[: len(whole) // 2], None: whole[:8192] + b"x" * (len(whole) - 8192)}.get(content, content)
    )
    for command in (["token", "list"], ["audit", "verify"], ["backup", tmp_path / "copy"], ["serve", "--port", "0"]):
        done = run(*command)
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.output
        assert done.stderr == "error: a part of the database on its disk is damaged (DatabaseError): keep its files\n"
    assert not list(tmp_path.glob("copy*"))


@pytest.mark.parametrize("name", ["", " ann", "ann\nbob", "x" * 101, "\udcff"])
def test_a_token_has_a_name_of_one_line_as_a_user_has(run, name):
    done = run("token", "create", "--name", name)
    assert done.exit_code == 2
    assert done.stderr == "error: a name has 1 to 100 printable characters, without spaces at its ends\n"


def test_a_password_that_is_no_text_is_an_error_in_a_line(run, tmp_path):
    (tmp_path / "password").write_bytes(b"\xff" * 20)
    done = run("user", "add", "ann", "--password-file", tmp_path / "password")
    what = "is not text in UTF-8: save it in that encoding"
    assert (done.exit_code, done.stderr) == (2, f"error: {tmp_path / 'password'} {what}\n")
