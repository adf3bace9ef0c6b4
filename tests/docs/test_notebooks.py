"""Every notebook runs from its first cell to its last in a fresh interpreter, against real services.

They run in the order of their names in one folder: the owner's notebook leaves grants for the
vendor's, and a loop of its own leaves a log for the auditor's.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
RUNNER = Path(__file__).with_name("run_notebook.py")
LIMIT_SECONDS = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="module")
def environment(curator, modeler, folder):
    """What the first cell of a notebook explains: the addresses of both services, and files with tokens."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("BLINDOPT_")}
    for service in (curator, modeler):
        token = folder / f"{service.name}-token"
        token.write_text(service.token)
        prefix = f"BLINDOPT_{service.name.upper()}"
        own |= {f"{prefix}_URL": service.url, f"{prefix}_TOKEN_FILE": str(token)}
    path = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "shared"), os.environ.get("PYTHONPATH"))))
    return own | {"MPLBACKEND": "Agg", "PYTHONPATH": path}


def run(path, folder, environment):
    command = [sys.executable, RUNNER, path]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS)


@pytest.mark.slow(sibling="test_services.py::test_the_python_of_owners_and_measurers_runs")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_a_clean_start(path, folder, environment, curator):
    if path.stem.startswith("f-"):  # an auditor has this file of the curator's owner
        (folder / "curator.jsonl").write_text(curator.run_in_process("audit", "export").stdout)
    done = run(path, folder, environment)
    assert done.returncode == 0, done.stderr
    if path.stem.startswith("c-"):  # with the extra peers its cell for BoTorch runs, without it the product's own
        assert ("BoTorch chooses." if find_spec("botorch") else "the product's optimizer chooses.") in done.stdout


def test_a_wrong_cell_fails_and_is_named(tmp_path):
    path = tmp_path / "wrong.ipynb"
    cells = [{"cell_type": "code", "source": ["x = 2\n", "x * 21"]}, {"cell_type": "code", "source": ["x / 0"]}]
    path.write_text(json.dumps({"cells": cells}))
    done = run(path, tmp_path, None)
    assert done.stdout == "42\n"
    assert done.returncode != 0
    assert "wrong.ipynb, code cell 2" in done.stderr
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_and_says_what_it_needs_first(path):
    notebook = json.loads(path.read_text())
    first, *rest = notebook["cells"]
    assert first["cell_type"] == "markdown"
    assert first["source"][0].startswith("# ")
    assert "BLINDOPT_" in "".join(first["source"])
    for cell in rest:
        assert (cell.get("outputs", []), cell.get("execution_count")) == ([], None)
