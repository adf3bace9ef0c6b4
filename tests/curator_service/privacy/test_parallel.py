"""Noise in several processes: every row once, the same law, no piece made up, no process left behind."""

import os
import signal
import subprocess
import sys
from decimal import Decimal
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from blindopt.errors import NumericalFailure
from curator_service.privacy.noise import GaussianLaw, PlanarLaplaceLaw, apply
from tests.curator_service.privacy.laws import Plus
from tests.processes import ROOT

MISTAKEN = 1e-9  # a correct mechanism fails a decision less often: there are hundreds in a run of all tests


@pytest.fixture(autouse=True)
def no_worker_is_left():
    yield
    assert active_children() == []


def blocks_of(x: np.ndarray, rows: int):
    for start in range(0, len(x), rows):
        yield slice(start, min(start + rows, len(x))), x[start : start + rows]


def applied(law, x: np.ndarray, rows: int = 7, workers: int | None = 2, **more) -> tuple[np.ndarray, list[float]]:
    out, shares = np.full(x.shape, np.nan), []
    apply(law, blocks_of(x, rows), out, shares.append, len(x), workers=workers, **more)
    return out, shares


def test_every_row_is_done_once_in_its_place_by_other_processes():
    x = np.arange(60.0).reshape(20, 3)
    out, progress = applied(Plus(), x)
    np.testing.assert_array_equal(np.floor(out - x), np.ones((20, 3)))
    workers = set(np.unique((out - x - 1) * 2**32).round().astype(int))
    assert 1 <= len(workers) <= 2
    assert os.getpid() not in workers
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    assert len(progress) == 20


def test_what_is_quick_is_drawn_here():
    x = np.zeros((20, 3))
    out, progress = applied(Plus(draws_per_row=10.0), x, workers=None)
    assert np.unique((out - 1) * 2**32).round().tolist() == [os.getpid()]
    assert progress[-1] == 1.0


def test_one_processor_draws_here_and_more_of_them_in_other_processes():
    allowed = os.sched_getaffinity(0)
    for cores in {min(allowed)}, allowed:
        os.sched_setaffinity(0, cores)
        try:
            out, _ = applied(Plus(), np.zeros((4, 3)), workers=None)
        finally:
            os.sched_setaffinity(0, allowed)
        pids = np.unique((out - 1) * 2**32).round().tolist()
        assert (pids == [os.getpid()]) is (len(cores) == 1)
        assert len(pids) <= len(cores)


def test_the_result_is_finished_here():
    out, _ = applied(Plus(), np.zeros((9, 2)), finish=lambda block: -block)
    assert (out < -1).all()


def test_workers_draw_the_law_and_share_no_noise():
    """6,000 rows by two processes: the law, a fifth off is caught, and no number comes twice."""
    law = PlanarLaplaceLaw.of(1.0, Decimal(1), 3)
    out, _ = applied(law, np.zeros((6_000, 3)), rows=2_500, piece_draws=3_000)
    radius = np.linalg.norm(out, axis=1)
    assert stats.kstest(radius, stats.gamma(3).cdf).pvalue > MISTAKEN
    assert stats.kstest(1.2 * radius, stats.gamma(3).cdf).pvalue < MISTAKEN
    assert len(np.unique(out)) >= out.size - 1


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ("die", "ended before its time"),
        ("fail", "not finite"),
        ("raise", "OSError"),
        ("shorten", "ended before its time"),
    ],
)
def test_a_draw_that_goes_wrong_anywhere_ends_the_whole(then, message):
    """And quotes no value."""
    with pytest.raises(NumericalFailure, match=message) as caught:
        applied(Plus(then), np.arange(40.0).reshape(20, 2))
    assert "[" not in str(caught.value)


def test_a_value_that_is_not_finite_is_refused_by_a_worker():
    x = np.zeros((100, 2))
    x[99, 1] = np.nan
    with pytest.raises(NumericalFailure, match="not finite"):
        applied(GaussianLaw(2, 1.0), x)


def test_a_listener_that_fails_ends_the_workers():
    def on_progress(share: float) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop") as kept:
        apply(Plus(), blocks_of(np.zeros((20, 2)), 5), np.empty((20, 2)), on_progress, 20, workers=2)
    assert active_children() == [], kept  # at once, though the error and its frames are still here


def test_few_pieces_are_in_flight_at_a_time():
    """A reader that runs ahead of the workers would hold all of X: it may be two pieces ahead, and one in hand."""
    read, done = 0, 0

    def blocks():
        nonlocal read
        for index, block in blocks_of(np.zeros((100, 2)), 5):
            read += 1
            assert read <= done + 4
            yield index, block

    def on_progress(share: float) -> None:
        nonlocal done
        done += 1

    apply(Plus(), blocks(), np.empty((100, 2)), on_progress, 100, workers=2, piece_draws=5 * 1e6)
    assert (read, done) == (20, 20)


ENDLESS = """
import signal
import numpy as np
from curator_service.privacy.noise import apply
from tests.curator_service.privacy.laws import Plus

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background inherits that it is ignored
    x = np.zeros((100_000, 2))
    apply(Plus(), [(slice(0, len(x)), x)], x.copy(), id, len(x), workers=2)
"""


def descendants(pid: int) -> list[int]:
    processes = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            processes += [int(child), *descendants(int(child))]
    return processes


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_parent(tmp_path, until, how):
    """However it ends: a worker between pieces sees its pipe close. (In a piece, it first ends that: a second.)"""
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    parent = subprocess.Popen([sys.executable, str(script)], env=environment, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(descendants(parent.pid)) >= 3)  # two workers and multiprocessing's own helper
        started = descendants(parent.pid)
        parent.send_signal(how)
        parent.wait(20)
        until(lambda: not any(lives(pid) for pid in started), 10)
    finally:
        parent.kill()
        parent.wait()
