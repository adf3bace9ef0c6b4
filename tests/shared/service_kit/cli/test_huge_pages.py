"""A service begins again in large pages where the machine offers them, as the same process, and no child knows."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes

VARIABLES = ("PYTHONMALLOC", "GLIBC_TUNABLES", "BLINDOPT_HUGE_PAGES")
CODE = """
import json, os, sys
from pathlib import Path
from service_kit.cli import huge_pages
huge_pages.use("serve")
begun = dict(each.split("=", 1) for each in Path("/proc/self/environ").read_text().split("\\0") if "=" in each)
print(json.dumps([os.getpid(), sys.argv[1:], begun, dict(os.environ)]))
"""


def started(*arguments, **environment):
    """Its number, and what a process of ``CODE`` says of itself: number, arguments, variables at its begin and now."""
    given = {name: value for name, value in os.environ.items() if name not in VARIABLES} | environment
    command = [sys.executable, "-X", "utf8", "-c", CODE, *arguments]
    with subprocess.Popen(command, env=given, cwd=processes.ROOT, stdout=subprocess.PIPE, text=True) as process:
        written, _ = process.communicate()
    assert process.returncode == 0
    return process.pid, *json.loads(written)


def are_offered():
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    library, version = platform.libc_ver()
    is_new = library == "glibc" and [int(part) for part in version.split(".")] >= [2, 35]
    return is_new and modes.exists() and "[never]" not in modes.read_text()


def test_a_service_begins_again_as_the_same_process_and_its_children_inherit_nothing():
    pid, own, arguments, begun, environment = started("serve", "--port", "0")
    assert (own, arguments) == (pid, ["serve", "--port", "0"])
    assert not set(VARIABLES) & environment.keys()
    if are_offered():
        assert begun["PYTHONMALLOC"] == "malloc"
        assert "glibc.malloc.hugetlb=1" in begun["GLIBC_TUNABLES"]
    else:
        assert not set(VARIABLES) & begun.keys()


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (("audit", "verify"), {}),
        (("token", "serve"), {}),
        ((), {}),
        (("serve",), {"PYTHONMALLOC": "pymalloc"}),
        (("serve",), {"GLIBC_TUNABLES": "glibc.malloc.check=0"}),
    ],
)
def test_another_command_and_a_choice_of_the_owner_stay_as_they_are(arguments, environment):
    pid, own, seen, begun, after = started(*arguments, **environment)
    assert (own, seen) == (pid, [*arguments])
    for variables in (begun, after):
        assert {name: value for name, value in variables.items() if name in VARIABLES} == environment
