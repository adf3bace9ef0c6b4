"""Rate of exact lattice noise on one processor, with numpy's inexact noise as baseline."""

import time
from collections.abc import Callable
from decimal import Decimal

import numpy as np

from benchmarks.table import Cell, Table
from blindopt.arrays import Matrix
from curator_service.privacy import noise

SECONDS = 2.0
EPSILON = Decimal(1)


def per_second(draw: Callable[[], object], values: int) -> float:
    """Values per CPU second, over about SECONDS, after one draw to warm up."""
    draw()
    started, drawn = time.process_time(), 0
    while (taken := time.process_time() - started) < SECONDS:
        draw()
        drawn += values
    return drawn / taken


def law_row(name: str, law: noise.Law, rows: int, d: int) -> list[Cell]:
    """Rate of a noise law on blocks of ``rows``."""
    block: Matrix = np.zeros((rows, d))
    values = per_second(lambda: law.add(block), block.size)
    return [name, rows * d, values, values / d, law.draws_per_row]


def tables() -> list[Table]:
    """Coordinates and rows per CPU second."""
    rows: list[list[Cell]] = [
        law_row(f"gaussian, d = 20, block of {size}", noise.GaussianLaw(20, 3.73), size, 20)
        for size in (50, 1_000, 5_000, 16_384)
    ]
    rows += [
        law_row(f"planar_laplace, d = {d}", noise.PlanarLaplaceLaw.of(1.0, EPSILON, d), 5_000, d)
        for d in (1, 2, 7, 12, 20)
    ]
    answers = np.zeros(2_000)
    values = per_second(lambda: noise.add_laplace(answers, 1.0, EPSILON), answers.size)
    rows.append(["laplace answers, one at a time", answers.size, values, values, 1.0])
    generator = np.random.default_rng(0)
    for name, draw in (("normal", generator.normal), ("laplace", generator.laplace)):
        values = per_second(lambda draw=draw: draw(size=100_000), 100_000)  # type: ignore[misc]
        rows.append([f"numpy {name}, not private", 100_000, values, values, 1.0])
    columns = ["noise", "values in a call", "values a CPU-second", "rows a CPU-second", "lattice draws a row"]
    return [Table("Draws of noise, one processor", columns, rows)]
