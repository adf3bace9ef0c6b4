"""Notebooks run against real services when the site is built, and their pages show every output."""

import ast
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.website.notebooks import page
from tests import processes
from tests.docs.site_checks import faults

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def sources(path):
    """The sources of a notebook's code cells."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def unshown(path, text):
    """The code cells that print, end in a value or plot, and whose page does not show it."""
    missing = []
    for source in sources(path):
        shown = text.partition(f"```python\n{source}\n```\n")[2].partition("\n```python\n")[0]
        ends_in_value = isinstance(ast.parse(source).body[-1], ast.Expr) and not source.endswith(";")
        if (ends_in_value or "print(" in source) and not re.match(r'\n(```text\n.|<div class="outputs">.)', shown):
            missing.append(source)
        if re.search(r"\.plot\(|new_axes\(", source) and not re.search(r"\n!\[.+\]\(\S+\.svg\)", shown):
            missing.append(source)
    return missing


@pytest.mark.slow(sibling="test_a_wrong_cell_fails_and_is_named")
def test_each_notebook_runs_and_its_page_shows_every_output(tmp_path):
    done = processes.run("docs.website", str(tmp_path), env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert faults(tmp_path / "site") == []  # each picture is there
    pages = {path: (tmp_path / f"site-source/pages/notebooks/{path.stem}.md").read_text() for path in NOTEBOOKS}
    assert {path.stem: unshown(path, text) for path, text in pages.items() if unshown(path, text)} == {}
    own_loop = next(text for path, text in pages.items() if path.stem.startswith("c-"))
    assert ("BoTorch chooses." if find_spec("botorch") else "the product's optimizer chooses.") in own_loop
    first = next(text for path, text in pages.items() if path.stem.startswith("a-"))
    assert "<caption>Low risk: " in first


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
