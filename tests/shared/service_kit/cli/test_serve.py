"""What `serve` says to a person at a terminal, and its options."""

import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress

import httpx
import pytest

from blindopt.version import VERSION
from curator_service.cli import PROGRAM
from curator_service.settings import Settings
from service_kit.cli.main import _banner
from tests import processes


def test_at_a_terminal_serve_says_where_it_is_and_what_is_missing(make_service, tmp_path):
    service = make_service("curator", tmp_path)
    service.folder.mkdir()
    ours, theirs = os.openpty()
    log = (tmp_path / "log").open("wb")
    arguments = ("serve", "--port", str(service.port), "--data-dir", str(tmp_path / "moved"))
    unwanted = ("BLINDOPT_CURATOR_PORT", "BLINDOPT_CURATOR_DATA_DIR")
    environment = {name: value for name, value in service.environment.items() if name not in unwanted}
    with os.fdopen(theirs, "wb") as terminal, log:
        service.process = processes.Forked("curator_service", *arguments, env=environment, stdout=terminal, stderr=log)
    service.await_ready()
    service.process.terminate()
    assert service.process.wait(240) == 0
    shown = b""
    with suppress(OSError):  # the terminal has ended
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    lines = shown.decode().splitlines()
    assert lines[0] == f"blindopt-curator {VERSION}"
    assert lines[1].split() == ["Console", f"http://127.0.0.1:{service.port}/"]
    assert lines[3].split() == ["Data", str(tmp_path / "moved")]
    assert lines[4].strip() == (
        f"No user yet: BLINDOPT_CURATOR_DATA_DIR={tmp_path / 'moved'} blindopt-curator user add NAME"
    )
    assert not service.data.exists()
    assert all(line.startswith("{") for line in (tmp_path / "log").read_text().splitlines())  # no terminal: JSON


DEAD_PROXY = dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"), "http://127.0.0.1:9")


@pytest.mark.parametrize("name", ["curator", "modeler"])
def test_a_health_check_asks_the_own_service_and_no_proxy(name, request, monkeypatch):
    """Docker puts the proxy of its user into each container."""
    service = request.getfixturevalue(name)
    monkeypatch.setenv("http_proxy", DEAD_PROXY["http_proxy"])
    with pytest.raises(httpx.ConnectError):  # the control: this client asks the proxy
        httpx.get(f"{service.url}/readyz")
    done = processes.run(f"{name}_service", "healthy", env=service.environment | DEAD_PROXY)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    port = f"BLINDOPT_{name.upper()}_PORT"
    done = processes.run(f"{name}_service", "healthy", env=service.environment | {port: "9"})
    assert (done.returncode, done.stderr) == (6, "error: http://127.0.0.1:9/ is not ready\n")


@pytest.mark.parametrize(
    ("chosen", "address", "console"),
    [
        ({}, "http://127.0.0.1:8410", "http://127.0.0.1:8410/"),
        ({"host": "localhost"}, "http://127.0.0.1:8410", "http://localhost:8410/"),
        ({"host": "::1"}, "http://[::1]:8410", "http://[::1]:8410/"),
        ({"host": "0.0.0.0"}, None, "http://127.0.0.1:8410/"),
        ({"host": "192.0.2.7"}, None, "http://192.0.2.7:8410/"),
        ({"public_url": "http://curator-exchange:8410/"}, "http://curator-exchange:8410", "http://127.0.0.1:8410/"),
        (
            {"host": "0.0.0.0", "public_url": "https://curator.example/blind"},
            "https://curator.example/blind",
            "http://127.0.0.1:8410/",
        ),
    ],
)
def test_the_address_to_hand_over(chosen, address, console):
    settings = Settings(**chosen)
    assert (settings.address, settings.console_url) == (address, console)
    shown = _banner(PROGRAM, settings, has_users=True, moved=False)
    assert (address or "set BLINDOPT_CURATOR_PUBLIC_URL") in shown
    assert "user add" not in shown


@pytest.mark.parametrize("url", ["curator.example", "ftp://x", "https://a:b@x", "https://x/?q", "https://x\n"])
def test_a_public_url_that_is_no_address_is_refused(url):
    with pytest.raises(ValueError, match="public_url"):
        Settings(public_url=url)


def _dumps_core_when_aborted(command, folder, environment, is_up):
    """Whether the system wrote the memory of a process that may leave a core and was aborted."""

    def allow_core():
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    folder.mkdir()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=allow_core,
    )
    is_up(process)
    process.send_signal(signal.SIGABRT)
    _, status = os.waitpid(process.pid, 0)
    assert os.WTERMSIG(status) == signal.SIGABRT
    return os.WCOREDUMP(status), [path.name for path in folder.iterdir()]


@pytest.mark.skipif(sys.platform != "linux", reason="cores of Linux")
def test_a_service_that_is_aborted_leaves_no_core(make_service, tmp_path, until):
    """Neither as a file nor for a program that takes cores. The control: any other process here leaves one."""
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != resource.RLIM_INFINITY:
        pytest.skip("no process may leave a core here")
    service = make_service("curator", tmp_path)
    other = [sys.executable, "-c", "import os, signal; open('up', 'w').close(); signal.pause()"]
    has_dumped, _ = _dumps_core_when_aborted(
        other, tmp_path / "other", service.environment, lambda _: until((tmp_path / "other" / "up").exists)
    )
    if not has_dumped:
        pytest.skip("the system writes no cores")
    service.folder.mkdir()
    environment = {
        **service.environment,
        "PYTHONPATH": os.pathsep.join((str(processes.ROOT), str(processes.ROOT / "shared"))),
    }

    def is_up(process):
        service.process = process
        service.await_ready()

    serve = [sys.executable, "-m", "curator_service", "serve"]
    assert _dumps_core_when_aborted(serve, tmp_path / "served", environment, is_up) == (False, [])
