"""What `serve` says to a person at a terminal, and its options."""

import os
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
    assert (done.returncode, done.stderr) == (1, "error: http://127.0.0.1:9/ is not ready\n")


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
