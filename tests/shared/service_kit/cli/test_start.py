"""What a command imports, seen from a fresh process: a token must not wait for a web server that it does not need."""

import json
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
try:
    app({arguments!r})
finally:
    names = sorted(set(sys.modules) & {heavy!r})
    print(json.dumps(names), file=sys.stderr)
"""


def loaded(service, data, *arguments):
    """Which heavy libraries a command has loaded at its end, and what it printed."""
    script = SCRIPT.format(service=service, arguments=list(arguments), heavy=HEAVY | {"numpy"})
    environment = {f"BLINDOPT_{service.upper()}_DATA_DIR": str(data), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1])), done.stdout


@pytest.mark.parametrize("service", SERVICES)
def test_token_and_audit_load_no_web_framework_and_no_noise_library(service, tmp_path):
    libraries, printed = loaded(service, tmp_path, "token", "create", "--name", "x")
    assert libraries == set()  # numpy neither
    assert printed.startswith("blindopt_")
    libraries, printed = loaded(service, tmp_path, "audit", "export")
    assert libraries == set()
    assert f"blindopt-{service}" in printed
    libraries, printed = loaded(service, tmp_path, "audit", "verify")
    assert libraries & {"fastapi", "starlette", "uvicorn", "opendp", "dp_accounting"} == set()
    assert "records, root" in printed


@pytest.mark.parametrize("service", SERVICES)
def test_what_builds_the_service_loads_it(service, tmp_path):
    """The control: the names are those by which the libraries go."""
    script = f"import json, sys; import {service}_service.app; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert {"fastapi", "starlette", "numpy"} <= set(json.loads(done.stdout))
