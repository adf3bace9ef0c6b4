"""A test that hangs fails, and says where, whatever hangs."""

import subprocess
import sys

from tests.processes import ROOT

LIMITS = ("-o", "timeout=0.2", "-o", "faulthandler_timeout=1")
"""The settings of the project with shorter limits."""
HANGING = """
import itertools

def test_python_code_that_hangs():
    while True:
        pass

def test_the_next_test():
    pass

def test_compiled_code_that_takes_no_signal():
    sum(itertools.repeat(0))
"""


def test_a_test_that_hangs_ends_and_says_where(tmp_path):
    file = tmp_path / "test_hanging.py"
    file.write_text(HANGING)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-c",
        ROOT / "pyproject.toml",
        "--rootdir",
        tmp_path,
        *LIMITS,
        file,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "test_python_code_that_hangs FAILED" in done.stdout
    assert "test_the_next_test PASSED" in done.stdout
    assert "in test_compiled_code_that_takes_no_signal" in done.stderr
