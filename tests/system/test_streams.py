"""Commands do their work whatever the program that starts them makes of their standard streams."""

import itertools
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from blindopt.client import is_ready

OUT = ("pipe", "closed", "nothing", "full", "broken", "non-blocking", "terminal", "hung up", "only read")
IN = ("nothing", "closed", "terminal")
LOST = ("full", "broken", "hung up", "only read")
"""Streams that take nothing: text that was asked for is lost."""
SHOWN = ("pipe", "non-blocking")


class Streams:
    """The three streams of a process, opened as a program might."""

    def __init__(self, **kinds):
        self.kinds, self.read, self._ends = kinds, {}, []
        self.descriptors = {name: self._opened(name, kind) for name, kind in kinds.items()}

    def _opened(self, name, kind):
        if kind in ("pipe", "broken", "non-blocking"):
            reader, writer = os.pipe()
            os.set_blocking(writer, kind != "non-blocking")
            self._ends += [writer] if kind == "broken" else [reader, writer]
            if kind == "broken":
                os.close(reader)
            else:
                self.read[name] = reader
            return writer
        if kind in ("terminal", "hung up"):
            parent, terminal = pty.openpty()
            self._ends += [terminal] if kind == "hung up" else [parent, terminal]
            if kind == "hung up":
                os.close(parent)
            return terminal
        is_read = name == "stdin" or kind == "only read"
        opened = os.open("/dev/full" if kind == "full" else os.devnull, os.O_RDONLY if is_read else os.O_WRONLY)
        self._ends.append(opened)
        return opened

    def start(self, *arguments, env):
        closed = [number for number, kind in enumerate(self.kinds.values()) if kind == "closed"]
        return subprocess.Popen(
            [sys.executable, "-m", "curator_service", *arguments],
            env=env,
            preexec_fn=lambda: [os.close(number) for number in closed],
            **self.descriptors,
        )

    def text(self, name):
        """What was printed to a pipe; without blocking, because its writer is at an end."""
        os.set_blocking(self.read[name], False)
        try:
            return os.read(self.read[name], 1 << 20).decode()
        except BlockingIOError:
            return ""

    def close(self):
        for descriptor in self._ends:
            os.close(descriptor)


def check(service, *arguments, **kinds):
    """A command ends with 0, or with 1 if the text that was asked for is lost, which it then says."""
    streams = Streams(**kinds)
    try:
        status = streams.start(*arguments, env=service.environment).wait(timeout=120)
        assert status == (1 if kinds["stdout"] in LOST else 0), (kinds, streams.read and streams.text("stderr"))
        if kinds["stdout"] in SHOWN:
            assert streams.text("stdout").strip()
        if kinds["stderr"] in SHOWN:
            said = streams.text("stderr")
            assert "Traceback" not in said
            assert ("standard output cannot be written" in said) == (kinds["stdout"] in LOST[:1] + LOST[2:]), said
    finally:
        streams.close()


@pytest.fixture(scope="module")
def service(make_service, tmp_path_factory):
    curator = make_service("curator", tmp_path_factory.mktemp("streams"), fresh=True)
    assert curator.run("token", "create", "--role", "owner", "--name", "first").returncode == 0
    return curator


EVERY = [(IN[i % len(IN)], *pair) for i, pair in enumerate(itertools.product(OUT, OUT))]
FEW = [
    ("closed", "closed", "closed"),
    ("nothing", "full", "pipe"),
    ("terminal", "hung up", "full"),
    ("closed", "broken", "non-blocking"),
    ("nothing", "only read", "broken"),
    ("nothing", "non-blocking", "hung up"),
]


def _tokens(service):
    return service.run("token", "list").stdout.count("\n")


def check_token(service, combinations):
    before, arguments = _tokens(service), ("token", "create", "--role", "monitor", "--name", "m")
    for stdin, stdout, stderr in combinations:
        check(service, *arguments, stdin=stdin, stdout=stdout, stderr=stderr)
    assert _tokens(service) == before + len(combinations)


def test_a_command_does_its_work_whatever_its_streams_are(service):
    """A token is made in each case, also where nothing can be printed."""
    check_token(service, FEW)


@pytest.mark.slow(sibling="test_a_command_does_its_work_whatever_its_streams_are")
def test_a_command_does_its_work_in_every_combination(service):
    check_token(service, EVERY)


@pytest.mark.slow(sibling="test_a_command_does_its_work_whatever_its_streams_are")
@pytest.mark.parametrize("arguments", [("audit", "export"), ("audit", "verify"), ("config", "show"), ("--version",)])
def test_other_commands(service, arguments):
    for stdin, stdout, stderr in FEW:
        check(service, *arguments, stdin=stdin, stdout=stdout, stderr=stderr)


@pytest.mark.parametrize(("stdout", "stderr"), [("closed", "closed"), ("hung up", "broken")])
def test_a_service_serves_and_ends_in_order_whatever_its_streams_are(service, stdout, stderr):
    check_service(service, stdout, stderr)


@pytest.mark.slow(sibling="test_a_service_serves_and_ends_in_order_whatever_its_streams_are")
@pytest.mark.parametrize(("stdout", "stderr"), list(itertools.product(OUT, OUT[::2])))
def test_a_service_serves_in_every_combination(service, stdout, stderr):
    check_service(service, stdout, stderr)


def check_service(service, stdout, stderr):
    """No file and no connection of the service takes the number of a closed stream."""
    streams = Streams(stdin="closed", stdout=stdout, stderr=stderr)
    process = streams.start("serve", env=service.environment)
    try:
        while not is_ready(service.url):
            assert process.poll() is None, process.returncode
        for number in range(3):
            held = str(Path(f"/proc/{process.pid}/fd/{number}").readlink())
            assert str(service.folder) not in held
            assert not held.startswith("socket:")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        process.wait()
        streams.close()


def test_without_its_guard_a_command_does_not_work_on_closed_streams(service, tmp_path):
    """The control: what ``serve`` asks of its streams first, where nothing opened them."""
    bare = "import sys; from curator_service import cli; sys.argv[1:] = ['serve']; cli.app()"
    process = subprocess.Popen(
        [sys.executable, "-c", bare],
        env=service.environment,
        preexec_fn=lambda: [os.close(number) for number in range(3)],
    )
    assert process.wait(timeout=120) == 1
