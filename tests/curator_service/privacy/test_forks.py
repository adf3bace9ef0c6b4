"""Private randomness in forked processes: workers of one server must never draw the same secret."""

import os
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pytest

from curator_service.privacy.entropy import gaussian_matrix, permutation
from curator_service.privacy.noise import PlanarLaplaceLaw, add_gaussian

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


def test_forked_processes_draw_different_noise():
    """8 x 2,000 draws after the parent drew: two pairs equal by chance once in 10^8; a copied state repeats all."""

    def draw() -> np.ndarray:
        return add_gaussian(np.zeros(2_000), 1.0)

    draw()
    drawn = np.concatenate([*(np.frombuffer(each) for each in in_children(draw, 8)), draw()])
    assert drawn.size == 18_000
    assert drawn.size - np.unique(drawn).size <= 1


def test_eight_forked_workers_repeat_no_planar_noise_and_no_uniform_of_its_sampler():
    """8 x 1,000 rows of two coordinates after the parent drew: no value and no radius comes twice."""
    law = PlanarLaplaceLaw.of(1.0, Decimal(1), 2)

    def draw() -> np.ndarray:
        return np.concatenate([law.add(np.zeros((1_000, 2))).ravel(), np.frombuffer(os.urandom(800), dtype=np.uint64)])

    draw()
    drawn = [np.frombuffer(each) for each in in_children(draw, 8)]
    noise = np.concatenate([each[:2_000] for each in drawn])
    assert noise.size == 16_000
    assert noise.size - np.unique(noise).size <= 1
    assert np.unique(np.concatenate([each[2_000:] for each in drawn])).size == 800


def test_forked_processes_draw_different_projections_and_orders():
    gaussian_matrix(1, 1)
    permutation(10)
    entries = np.concatenate([np.frombuffer(each) for each in in_children(lambda: gaussian_matrix(50, 40), 4)])
    assert len(np.unique(entries)) == 8_000
    assert len(set(in_children(lambda: permutation(100), 4))) == 4


def test_a_generator_with_a_state_would_be_caught():
    """The control: numpy's is copied by a fork, and every worker draws the same."""
    generator = np.random.default_rng(0)
    assert len(set(in_children(lambda: generator.normal(size=100), 4))) == 1
