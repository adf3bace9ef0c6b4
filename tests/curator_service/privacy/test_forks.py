"""Private randomness in forked processes: workers of one server must never draw the same secret."""

import os
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pytest

from curator_service.privacy.entropy import gaussian_matrix, permutation
from curator_service.privacy.noise import PlanarLaplaceLaw, add_gaussian, add_laplace
from curator_service.privacy.noise.bounded import piecewise
from tests.scale import scaled

# Newer Pythons warn that a process with threads is forked; here the child only draws, writes and ends.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def in_children(draw: Callable[[], np.ndarray], workers: int) -> list[bytes]:
    """What each of several forks of this very process draws."""
    pipes = []
    for _ in range(workers):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(reader)
                with os.fdopen(writer, "wb") as file:
                    file.write(draw().tobytes())
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        pipes.append((child, reader))
    drawn = []
    for child, reader in pipes:
        with os.fdopen(reader, "rb") as file:
            drawn.append(file.read())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return drawn


def repeats(draw: Callable[[], np.ndarray], workers: int = 8) -> tuple[int, int]:
    """How many values were drawn by that many forks and by the parent, before and after; how many came before."""
    before = draw()
    drawn = np.concatenate([before, *(np.frombuffer(each) for each in in_children(draw, workers)), draw()])
    assert drawn.size == (workers + 2) * before.size
    return drawn.size, drawn.size - np.unique(drawn).size


EACH = scaled(500)
"""Draws of each process; at full size 10,000."""
PIECEWISE = piecewise(1.0, Decimal(1))
DRAWS = {
    "gaussian": lambda: add_gaussian(np.zeros(max(EACH, 2_000)), 1.0),
    "planar_laplace": lambda: PlanarLaplaceLaw.of(1.0, Decimal(1), 2).add(np.zeros((EACH, 2))).ravel(),
    "laplace": lambda: add_laplace(np.zeros(EACH), 1.0, Decimal(1)),
    "piecewise": lambda: PIECEWISE.draw(np.zeros(EACH)),
    "projection": lambda: gaussian_matrix(EACH // 10, 10),
    "uniforms": lambda: np.frombuffer(os.urandom(8 * EACH), dtype=np.uint64).astype(np.float64),
}


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("kind", DRAWS)
def test_eight_forked_processes_repeat_no_draw(kind):
    """A copied state repeats all. On a lattice of 2^-40 two of 100,000 are equal by chance once in 500 times."""
    size, again = repeats(lambda: DRAWS[kind]().ravel())
    assert size >= 10 * EACH
    assert again <= 2


def test_a_generator_with_a_seed_that_is_forked_is_caught():
    """The control: numpy's state is copied by a fork. Eight workers and the parent draw the same; so would a seed."""
    generator = np.random.default_rng(0)
    size, again = repeats(lambda: generator.normal(size=EACH))
    assert (size, again) == (10 * EACH, 8 * EACH)
    assert repeats(lambda: np.random.default_rng(0).normal(size=EACH)) == (10 * EACH, 9 * EACH)


def test_a_single_value_that_two_workers_share_is_seen():
    """The control of the count itself."""
    shared = np.float64(0.125)
    _, again = repeats(lambda: np.append(gaussian_matrix(10, 1).ravel(), shared), workers=2)
    assert again >= 3


def test_forked_processes_draw_different_projections_and_orders():
    gaussian_matrix(1, 1)
    permutation(10)
    entries = np.concatenate([np.frombuffer(each) for each in in_children(lambda: gaussian_matrix(50, 40), 4)])
    assert len(np.unique(entries)) == 8_000
    assert len(set(in_children(lambda: permutation(100), 4))) == 4
