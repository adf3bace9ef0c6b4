"""A forked process is what a new interpreter is, and outlives no tests."""

import json
import os
import subprocess
import sys
import textwrap

from tests.processes import ROOT, Forked, fresh

PORTRAIT = """
import json, multiprocessing, os, signal, sys, threading

signals = {n.name: str(signal.getsignal(n)).split(" at ")[0] for n in signal.Signals}
files = {n: os.readlink(f"/proc/self/fd/{n}") for n in sorted(os.listdir("/proc/self/fd")) if int(n) < 3}
more = [n for n in range(3, 256) if os.path.exists(f"/proc/self/fd/{n}")]
umask = os.umask(0)
environment = {k: v for k, v in os.environ.items() if k != "LC_CTYPE"}
native = sorted(line.split("=")[0] for line in os.popen("env").read().splitlines() if line.startswith("ONLY_"))
print(json.dumps({
    "name": __name__, "file": __file__, "argv": sys.argv, "main": sys.modules["__main__"].__name__, "cwd": os.getcwd(),
    "path": sys.path[0], "environment": environment, "native": native, "signals": signals, "files": files, "more": more,
    "umask": umask, "threads": threading.active_count(), "daemon": multiprocessing.current_process().daemon,
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "spec": __spec__.name,
}))
print("and this", file=sys.stderr)
"""


def ran(start, folder, code, *arguments, **more):
    """The exit status of a module with ``code``, and what it wrote to both outputs."""
    folder.mkdir(exist_ok=True)
    (folder / "portrait.py").write_text(textwrap.dedent(code))
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = start("portrait", *arguments, stdout=out, stderr=err, cwd=folder, env=os.environ | more)
        status = process.wait(120)
    return status, (folder / "out").read_text(), (folder / "err").read_text()


def test_a_fork_is_as_a_new_interpreter_is(tmp_path, monkeypatch):
    monkeypatch.setenv("ONLY_THE_TESTS", "1")
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        results = [ran(start, tmp_path / "here", PORTRAIT, "a", "b c", ONLY_IT="2") for start in (fresh, Forked)]
    portraits = [json.loads(out) for _, out, _ in results]
    assert portraits[1] == portraits[0]
    assert portraits[1]["native"] == ["ONLY_IT", "ONLY_THE_TESTS"]
    assert [(status, err) for status, _, err in results] == [(0, "and this\n")] * 2


def test_no_fork_outlives_the_tests(tmp_path, until):
    (tmp_path / "sleeper.py").write_text("import time; time.sleep(60)")
    script = f"""
        import os, sys
        from pathlib import Path
        from tests import processes
        processes.PRELOADED = ()
        process = processes.Forked(
            "sleeper", stdout=sys.stderr, stderr=sys.stderr, cwd=Path({str(tmp_path)!r}), env=os.environ
        )
        print(process.pid, flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as tests:
        pid = int(tests.stdout.readline())
        os.kill(pid, 0)
        tests.kill()
    until(lambda: not _is_there(pid))


def _is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
