"""BoTorch's loop over the same candidates, if the extra ``peers`` is installed; `make bench` does not need it."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from blindopt.arrays import Matrix, Vector

INSTALLED = all(find_spec(name) is not None for name in ("botorch", "gpytorch", "torch"))
ABSENT = "BoTorch is not installed (pip install blindopt-services[peers]: more than 1 GB): it is left out"
Chooser = Callable[[list[int], float], int]


def chooser(candidates: Matrix, outcomes: Vector, lengthscale: float, noise_variance: float) -> Chooser:
    """Make a function that chooses the row of largest bound, given the queried rows and the exploration weight.

    A SingleTaskGP with these hyper-parameters, rebuilt at each step, and optimize_acqf_discrete with its
    default batches; one thread, float64.
    """
    import torch
    from botorch.acquisition import UpperConfidenceBound
    from botorch.models import SingleTaskGP
    from botorch.optim import optimize_acqf_discrete
    from gpytorch.kernels import RBFKernel
    from gpytorch.means import ZeroMean

    torch.set_num_threads(1)
    z = torch.from_numpy(np.ascontiguousarray(candidates))

    def choose(rows: list[int], weight: float) -> int:
        x, y = z[rows], torch.from_numpy(outcomes[rows]).unsqueeze(-1)
        kernel = RBFKernel()
        kernel.lengthscale = lengthscale
        model: Any = SingleTaskGP(
            x,
            y,
            torch.full_like(y, noise_variance),
            covar_module=kernel,
            mean_module=ZeroMean(),
            outcome_transform=None,
        )
        with torch.no_grad():
            best, _ = optimize_acqf_discrete(UpperConfidenceBound(model.eval(), beta=weight), 1, z)
        return int((z == best).all(dim=1).nonzero()[0, 0])

    return choose
