"""The property sales again: without repeats, with other rules, and with a Matern kernel."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from benchmarks.papers.part import Curves, Size, Task
from benchmarks.papers.records import SETTINGS, fitted
from benchmarks.papers.search import GP_UCB, Search
from benchmarks.papers.synthetic import RANDOM
from benchmarks.papers.synthetic import RULES as OTHERS
from blindopt import wire
from blindopt.gp.kernels import Kind
from blindopt.optimizer.algorithms.settings import NO_NOISE
from curator_service.releases.mechanisms.row_noise import PlanarLaplaceMechanism

KERNELS: dict[str, Kind] = {"squared exponential": "squared_exponential", "Matern 5/2": "matern_52"}
RELEASES = {"non-private": None, "planar Laplace, epsilon = 1": Decimal(1)}
REPEATS = "gp_ucb, repeats"
RECOMMENDED = "recommended"


@dataclass(frozen=True, slots=True)
class PropertyRules:
    """Each rule with a kernel of each kind, learned as the paper does; on the same sales and first rows."""

    name: str = "property_rules"

    def tasks(self, size: Size) -> list[Task]:
        return [(kernel, run) for run in range(size.variants) for kernel in KERNELS]

    def marks(self, size: Size) -> Sequence[int]:
        return range(1, SETTINGS["property"].steps + 1)

    def play(self, task: Task, size: Size) -> Curves:
        group, run = task
        data = fitted("property", size.side, KERNELS[group])
        search = Search.draw(data.y, SETTINGS["property"].steps, 0.0, run, np.random.default_rng([7, run]))
        curves = {RANDOM: search.random_regrets()}
        rules = {REPEATS: GP_UCB, "gp_ucb": GP_UCB} | OTHERS
        for release, epsilon in RELEASES.items():
            z, law = data.domain.x, NO_NOISE
            if epsilon is not None:
                mechanism = PlanarLaplaceMechanism(epsilon, 1.0)
                z, law = data.domain.release(mechanism), mechanism.noise(data.domain.rows.d)
            for rule, spec in rules.items():
                if epsilon is None and isinstance(spec, wire.EiDeblurred):
                    continue
                result = search.play(data.domain, z, law, spec, once=rule != REPEATS)
                curves[f"{release}, {rule}"] = result.best
                curves[f"{release}, {rule}, {RECOMMENDED}"] = result.recommended
        return curves

    def facts(self, size: Size) -> dict[str, Any]:
        kernels = {name: fitted("property", size.side, kind).domain.kernel for name, kind in KERNELS.items()}
        return {
            "steps": SETTINGS["property"].steps,
            "lengthscale": {name: kernel.lengthscale for name, kernel in kernels.items()},
            "noise_variance": {name: kernel.noise_variance for name, kernel in kernels.items()},
        }
