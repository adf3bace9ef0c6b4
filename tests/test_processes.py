"""A forked process is what a new interpreter is, and outlives no tests."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import processes
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
ENDS = {
    "returns": ("pass", 0),
    "exits": ("import sys; sys.exit(3)", 3),
    "exits in words": ("import sys; sys.exit('so')", 1),
    "raises": ("1 / 0", 1),
    "leaves": ("import os; os._exit(7)", 7),
    "killed": ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    "terminated": ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM),
    "interrupted": (
        "import os, time; os.kill(os.getpid(), 2); time.sleep(1)",
        # Where tests run in the background of a script, interrupts are ignored, by what they start too.
        0 if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else -signal.SIGINT,
    ),
    "waits for threads": (
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print(5))).start()",
        0,
    ),
    "says more at its end": ("import atexit; atexit.register(print, 'at the end')", 0),
}


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


def test_what_one_fork_does_to_itself_the_next_does_not_see(tmp_path):
    assert ran(Forked, tmp_path, "import os, json; os.environ['LEFT'] = '1'; os.chdir('/'); json.left = 1")[0] == 0
    code = "import os, json; assert 'LEFT' not in os.environ; assert not hasattr(json, 'left'); print(os.getcwd())"
    assert ran(Forked, tmp_path, code) == (0, f"{tmp_path}\n", "")


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("end", ENDS)
def test_a_fork_ends_as_a_new_interpreter_does(end, tmp_path):
    code, status = ENDS[end]
    results = [ran(start, tmp_path, code) for start in (fresh, Forked)]
    assert [code for code, _, _ in results] == [status] * 2
    assert results[1][1] == results[0][1]
    assert results[1][2].splitlines()[-1:] == results[0][2].splitlines()[-1:]


def test_a_fork_can_be_waited_for_stopped_and_killed(tmp_path, until):
    (tmp_path / "sleeper.py").write_text("import time; time.sleep(60)")
    with (tmp_path / "log").open("wb") as log:
        process = Forked("sleeper", stdout=log, stderr=log, cwd=tmp_path, env=os.environ)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.send_signal(signal.SIGSTOP)
    # Of two signals that are pending the kernel takes the lower number first, which is not that of the stop.
    until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    process.terminate()
    assert process.poll() is None
    process.kill()
    assert process.wait(120) == process.returncode == -signal.SIGKILL
    process.kill()  # once it has ended, its number may be another's


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, None])
def test_no_fork_outlives_the_tests(end, tmp_path, until):
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
        if end is not None:
            tests.send_signal(end)
    until(lambda: not _is_there(pid))


def _is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_is_imported_before_the_fork_exists():
    """A name that is imported no more would fail each start."""
    assert processes.run("timeit", "-n", "1", "-r", "1", env=os.environ).returncode == 0
