"""What `import blindopt` offers: each name is there, loaded when it is used, and the version is one."""

import pydoc
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import blindopt
from blindopt.version import VERSION

ROOT = Path(__file__).parents[3]


def test_every_public_name_is_the_one_that_its_module_defines():
    for name in blindopt.__all__:
        public = getattr(blindopt, name)
        assert public.__name__ == name
        assert public.__module__.startswith("blindopt.")
    assert set(blindopt.__all__) <= set(vars(blindopt))  # kept after the first use
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        blindopt.Nothing  # noqa: B018  reading it is the test


def test_completion_offers_the_public_names_and_help_begins_with_a_line_that_can_be_read():
    """Found by hand: bo.<Tab> showed none of them before its first use, and help of Optimizer a line of 1,258 signs."""
    code = "import blindopt; print(*dir(blindopt))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == blindopt.__all__
    for name in blindopt.__all__:
        lines = pydoc.render_doc(getattr(blindopt, name), renderer=pydoc.plaintext).splitlines()[:4]
        assert max(map(len, lines)) <= 220, lines
    assert "queries=None, initial_rows=None, batch_size=1, stop=None" in pydoc.render_doc(
        blindopt.Optimizer, renderer=pydoc.plaintext
    )


def test_a_name_is_loaded_with_what_it_needs_and_no_more():
    code = "import sys, blindopt; blindopt.BlindoptError; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "blindopt.errors" in run.stdout.split()
    assert {"numpy", "scipy", "httpx", "pydantic"} & set(run.stdout.split()) == set()


def test_there_is_one_version():
    projects = [
        tomllib.loads((ROOT / path).read_text())["project"] for path in ("pyproject.toml", "shared/pyproject.toml")
    ]
    assert {blindopt.__version__, *(project["version"] for project in projects)} == {VERSION}
    assert f"blindopt=={VERSION}" in projects[0]["dependencies"]
