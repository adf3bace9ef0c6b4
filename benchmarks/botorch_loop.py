"""BoTorch's loops over the same candidates, if the extra ``peers`` is installed; nothing else needs it."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from blindopt.arrays import Matrix, Vector

INSTALLED = all(find_spec(name) is not None for name in ("botorch", "gpytorch", "torch"))
ABSENT = "BoTorch is not installed (the extra `peers`: more than 1 GB): it is left out"
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


def next_by_log_ei(candidates: Matrix, rows: list[int], outcomes: Vector) -> int:
    """Return the candidate, not yet queried, of largest log expected improvement, given the queried rows' outcomes.

    A SingleTaskGP with its defaults (one length-scale a column, its priors, standardized outcomes) on candidates
    scaled to the unit cube, fitted anew at each step; one thread, float64.
    """
    import torch
    from botorch import fit_gpytorch_mll
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP
    from botorch.models.transforms import Normalize
    from gpytorch.mlls import ExactMarginalLogLikelihood

    torch.set_num_threads(1)
    z = torch.from_numpy(np.ascontiguousarray(candidates))
    bounds = torch.stack([z.min(dim=0).values, z.max(dim=0).values])
    y = torch.from_numpy(np.ascontiguousarray(outcomes)).unsqueeze(-1)
    model: Any = SingleTaskGP(z[rows], y, input_transform=Normalize(z.shape[1], bounds=bounds))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    rule = LogExpectedImprovement(model, best_f=y.max())
    with torch.no_grad():
        values = torch.cat([rule(part.unsqueeze(1)) for part in z.split(1_024)]).numpy().copy()
    values[rows] = -np.inf
    return int(values.argmax())
