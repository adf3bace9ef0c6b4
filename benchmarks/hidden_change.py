"""How much noise a search bears: regret on two real tables by the change that a release hides.

`python -m benchmarks.hidden_change [RUNS]` prints the table of results/hidden_change.md. Needs `make data`.

Each feature is divided by its range, and a change of so large a share of every range is hidden by planar Laplace noise.
`ei` asks 50 records by Z, knows the noise's law and a kernel that was fitted to 600 records, and begins with 3 random
ones. Regret is in standard deviations of y, against that of 50 random records, paired.
"""

import sys
from collections.abc import Iterator
from decimal import Decimal
from math import sqrt

import numpy as np

from benchmarks.papers.records import learned as learned_kernel
from benchmarks.papers.records import loans, properties
from benchmarks.papers.search import Search
from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.optimizer.algorithms.gp.rules import Ei
from blindopt.optimizer.algorithms.settings import NO_NOISE, AlgorithmSettings
from curator_service.privacy.search_noise import rho_of
from curator_service.privacy.search_simulation import rho
from curator_service.releases.attacks.scene import draw
from curator_service.releases.mechanisms.row_noise import PlanarLaplaceMechanism

STEPS = 50
NORM = 25.0
FITTED = 600
OPTIMISM = 2.0
SHARES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)
EPSILONS = (Decimal(1), Decimal(3))


def regret(search: Search, z: Matrix, law: wire.NoiseLaw, kernel: wire.Kernel) -> float:
    """The regret of ``ei`` after all steps."""
    modeler = Ei(
        z, AlgorithmSettings(kernel, 1, search.seed, STEPS + len(search.first), noise=law, exact=True), OPTIMISM
    )
    rows: list[int] = []
    for row in search.first:
        modeler.observe(int(row), float(search.f[row]))
    for step in range(1, STEPS + 1):
        rows.append(modeler.choose(step).row)
        modeler.observe(rows[-1], float(search.f[rows[-1]]))
    return search.simple_regrets(rows)[-1]


def lines(name: str, runs: int) -> Iterator[str]:
    """Lines of the table for ``loans`` or ``property``."""
    x, y = {"loans": loans, "property": properties}[name](0)
    y = (y - y.mean()) / y.std()
    x = (x - (x.min(axis=0) + x.max(axis=0)) / 2) / np.ptp(x, axis=0)
    d = x.shape[1]
    kernel = learned_kernel(NORM * x, y, "squared_exponential", FITTED)
    kernel = kernel.model_copy(update={"lengthscale": kernel.lengthscale / NORM})
    box = [wire.Feature(column=f"x{j}", lower=-0.5, upper=0.5) for j in range(d)]
    searches = [Search.draw(y, STEPS, 0.0, run, np.random.default_rng([7, run])) for run in range(runs)]
    random = np.array([search.random_regrets()[-1] for search in searches])
    yield f"| {name} | random records | | | {random.mean():.3f} | |"
    for epsilon, share in [(None, 0.0)] + [(e, s) for e in EPSILONS for s in SHARES]:
        mechanism = None if epsilon is None else PlanarLaplaceMechanism(epsilon, share)
        law = NO_NOISE if mechanism is None else mechanism.noise(d)
        regrets = np.array([regret(s, x if mechanism is None else draw(mechanism, x), law, kernel) for s in searches])
        less = regrets - random
        error = less.std(ddof=1) / sqrt(runs)
        of_box = rho_of(box, law, d)
        ratios = "" if of_box is None else f"{of_box:.2f} | {rho(x, law, d):.2f}"
        cell = f"epsilon {epsilon}, {share:.0%} of the range" if epsilon else "Z = X"
        yield f"| {name} | {cell} | {ratios or ' | '} | {regrets.mean():.3f} | {less.mean():+.3f} ({error:.3f}) |"


if __name__ == "__main__":
    for table in ("property", "loans"):
        for line in lines(table, int(sys.argv[1]) if len(sys.argv) > 1 else 30):
            print(line, flush=True)
