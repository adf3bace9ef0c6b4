"""What a command and a first reply import, seen from a fresh process: nothing waits for what it does not need."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
HEAVY = {"fastapi", "starlette", "uvicorn", "httpx", "scipy", "opendp", "dp_accounting", "pyarrow"}
SERVICES = ("curator", "modeler")
SCRIPT = """
import json, sys
from {service}_service.cli import app
for command in {commands!r}:
    try:
        app(command)
    except SystemExit as ended:
        assert not ended.code, (command, ended.code)
    print(json.dumps(sorted(set(sys.modules) & {heavy!r})), file=sys.stderr, flush=True)
"""

SERVED = """
import asyncio, json, sys
from {service}_service.app import build
from {service}_service.settings import Settings

async def first_reply(app):
    statuses = []
    async def send(message):
        statuses.append(message.get("status"))
    async def receive():
        return {{"type": "http.request", "body": b"", "more_body": False}}
    here = ("127.0.0.1", 8000)
    scope = {{"type": "http", "http_version": "1.1", "method": "GET", "path": "/readyz", "raw_path": b"/readyz"}}
    scope |= {{"headers": [], "query_string": b"", "scheme": "http", "root_path": "", "client": here, "server": here}}
    async with app.router.lifespan_context(app):
        await app(scope, receive, send)
    return statuses[0]

print(asyncio.run(first_reply(build(Settings()))), json.dumps(sorted(sys.modules)))
"""
LATE = {"opendp", "dp_accounting", "scipy", "pyarrow", "sklearn", "matplotlib", "pandas"}
CLIENT = {"httpx", "rich", "pygments"}
"""What only a client loads: httpx, and what httpx loads for its command line."""
NOISE = "curator_service.privacy"


def loaded(service, data, *commands):
    """Which heavy libraries are loaded after each of the commands, one after another, and what all of them printed."""
    script = SCRIPT.format(service=service, commands=commands, heavy=HEAVY | {"numpy"})
    environment = {
        f"BLINDOPT_{service.upper()}_DATA_DIR": str(data),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [set(json.loads(line)) for line in done.stderr.splitlines()[-len(commands) :]], done.stdout


@pytest.mark.parametrize("service", SERVICES)
def test_token_and_audit_load_no_web_framework_and_no_noise_library(service, tmp_path):
    """In one process: what is not loaded after the last of them was loaded by none."""
    commands = ["token", "create", "--name", "x"], ["audit", "export"], ["audit", "verify"]
    (token, export, verify), printed = loaded(service, tmp_path, *commands)
    assert token == export == set()  # numpy neither
    assert verify & {"fastapi", "starlette", "uvicorn", "opendp", "dp_accounting"} == set()
    assert service == "modeler" or verify == set()  # numpy took a third of a short verification
    assert printed.startswith("blindopt_")
    assert f"blindopt-{service}" in printed
    assert "records, root" in printed


@pytest.mark.parametrize("service", SERVICES)
def test_no_numerics_are_loaded_for_the_first_reply(service, tmp_path):
    """And a vendor's process never holds the noise of an owner's.

    The control: what builds the service is loaded, so that the names are those by which libraries go.
    """
    environment = {
        f"BLINDOPT_{service.upper()}_DATA_DIR": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    command = [sys.executable, "-c", SERVED.format(service=service)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    status, _, names = done.stdout.partition(" ")
    assert status == "200"
    modules = set(json.loads(names))
    assert {"fastapi", "starlette", "numpy"} <= modules
    assert LATE & modules == set()
    assert service == "modeler" or CLIENT & modules == set()
    assert (NOISE in modules) is (service == "curator")
