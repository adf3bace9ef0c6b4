"""Completion of both commands, as a real bash asks for it after --install-completion."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = shutil.which("bash")
ASKS = """
source ~/.bashrc
COMP_WORDS=({words} ""); COMP_CWORD={last}
{function} {command}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.slow(every=4)
@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("command", "words", "expected"),
    [
        ("blindopt-curator", "", {"serve", "study", "grant", "inbox", "backup"}),
        ("blindopt-curator", "study", {"list", "create", "preview", "release"}),
        ("blindopt-modeler", "", {"serve", "run", "runs", "recommendation", "audit"}),
        ("blindopt-modeler", "audit", {"verify", "export"}),
    ],
)
def test_bash_completes_the_commands_after_they_installed_their_completion(command, words, expected, tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"HOME": str(tmp_path), "PATH": path, "LC_ALL": "C.UTF-8", "TERM": "dumb"}

    def bash(program):
        done = subprocess.run(
            [BASH, "--norc", "-c", program], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())

    bash(f"{command} --install-completion bash && :")  # so that bash waits, for the command looks for a shell above it
    function = f"_{command.replace('-', '_')}_completion"
    question = ASKS.format(words=f"{command} {words}", last=1 + len(words.split()), function=function, command=command)
    assert bash(question) >= expected
