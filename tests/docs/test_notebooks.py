"""Notebooks: their stories, and how they are run and shown. ``test_whole_site`` runs them against real services."""

import json
import os
import subprocess
import sys

import pytest

from docs.website.notebooks import page
from tests.docs.site_checks import NOTEBOOKS, ROOT, unshown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_only_a_boxed_counter_example_is_a_high_risk(path):
    """Owners' stories are of groups; exact answers of records stand below a warning."""
    before, _, _ = path.read_text(encoding="utf-8").partition("> **Do not release this study.**")
    for risky in ("confirm_high_risk", '\\"exact\\"'):
        assert risky not in before


def test_a_page_without_outputs_is_found():
    for path in NOTEBOOKS:
        assert unshown(path, page(path, None)) != []


def run(path, folder):
    command = [sys.executable, "-m", "docs.website.run_notebook", path, folder]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"MPLBACKEND": "Agg"}, capture_output=True, text=True)


def notebook(folder, *cells):
    path = folder / "made.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": [cell]} for cell in cells]}))
    return path


def test_outputs_are_what_a_notebook_shows(tmp_path):
    plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"
    done = run(notebook(tmp_path, "x = 2\nx * 21", "print(x); x", "x;", "None", plot), tmp_path)
    assert json.loads(done.stdout) == [
        [{"text": "42"}],
        [{"text": "2\n"}, {"text": "2"}],
        [],
        [],
        [{"svg": "made-5-1.svg"}],
    ]
    assert "<svg" in (tmp_path / "made-5-1.svg").read_text()


def test_a_wrong_cell_fails_and_is_named(tmp_path):
    done = run(notebook(tmp_path, "x = 2", "x / 0"), tmp_path)
    assert done.returncode != 0
    assert "made.ipynb, code cell 2" in done.stderr
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_and_says_what_it_needs_first(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    first, *rest = notebook["cells"]
    assert first["cell_type"] == "markdown"
    assert first["source"][0].startswith("# ")
    assert "BLINDOPT_" in "".join(first["source"])
    for cell in rest:
        assert (cell.get("outputs", []), cell.get("execution_count")) == ([], None)
