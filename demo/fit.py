"""`python -m demo.fit` estimates the demo's public kernel hyper-parameters (needs the `bench` extra)."""

import csv
import io

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from demo.property_data import FEATURES, OUTCOME, csv_bytes


def main() -> None:
    """Fit a squared-exponential GP by maximum likelihood to 1,500 random sales and print its hyper-parameters."""
    table = list(csv.DictReader(io.StringIO(csv_bytes().decode())))
    x = np.array([[(float(row[f.column]) - (f.lower + f.upper) / 2) / f.unit for f in FEATURES] for row in table])
    y = np.array([float(row[OUTCOME]) for row in table])
    chosen = np.random.default_rng(0).permutation(len(y))[:1_500]
    mean = y[chosen].mean()
    kernel = ConstantKernel(0.1) * RBF(10.0) + WhiteKernel(0.01)
    model = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=0).fit(x[chosen], y[chosen] - mean)
    fitted = model.kernel_
    print(f"lengthscale {fitted.k1.k2.length_scale:.3g} km")
    print(f"signal_variance {fitted.k1.k1.constant_value:.3g}")
    print(f"noise_variance {fitted.k2.noise_level:.3g}")
    print(f"mean {mean:.4g}")


if __name__ == "__main__":
    main()
