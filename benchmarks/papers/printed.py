"""Reference numbers: those printed in the papers, or else those of an earlier, separate implementation.

That implementation is not in this repository.
"""

PAPER_RUNS = 50
"""Runs of each column in Kharkovskii et al. (2020)."""
NON_PRIVATE = 0.003
TABLES: dict[float, dict[int, float]] = {
    1.1: {3: 0.073, 6: 0.038, 8: 0.018, 10: 0.014, 15: 0.118, 20: 0.137},
    1.3: {3: 0.091, 9: 0.009, 12: 0.019, 15: 0.008, 20: 0.127, 30: 0.134},
    1.5: {5: 0.050, 10: 0.021, 15: 0.003, 20: 0.002, 30: 0.094, 50: 0.142},
}
"""S_50 of Tables 1 to 3, by the logarithm of epsilon and r; sigma_y = 1."""
QUOTED = {0.9: 0.069, 0.0: 0.099}
"""Difference to non-private at r = 10, by the logarithm of epsilon."""
RECORDS: dict[str, list[list[float]]] = {
    "loans": [
        [0.083, 0.088, 0.078, 0.069, 0.081, 0.076],
        [0.091, 0.076, 0.078, 0.077, 0.100, 0.096],
        [0.097, 0.091, 0.069, 0.084, 0.104, 0.127],
    ],
    "property": [
        [0.682, 0.516, 0.495, 0.485, 0.485, 0.493],
        [0.567, 0.553, 0.479, 0.453, 0.493, 0.520],
        [0.591, 0.523, 0.486, 0.482, 0.489, 0.488],
    ],
}
"""S_50 of Tables 4 to 6 and S_100 of Tables 7 to 9, on other data than ours."""
SMALL: dict[str, list[float]] = {"loans": [0.019, 0.050], "property": [0.017, 0.082]}
"""Differences to non-private of the small epsilons that the paper quotes."""

REFERENCE_FRONTIER: dict[str, tuple[float, float]] = {
    "published, r = 10": (0.104, 0.0136),
    "Gaussian, naive kernel": (0.305, 0.135),
    "Gaussian, noise-aware kernel": (0.177, 0.049),
    "planar Laplace, noise-aware kernel": (0.089, 0.0128),
}
"""Simple regret at epsilon 1 and e^1.1, of 400 runs of that implementation."""
REFERENCE_OPEN, REFERENCE_RANDOM = 0.005, 0.354
GOALS = {"1": 0.10, "e^1.1": 0.020}
"""Upper bounds for planar Laplace with the noise-aware kernel."""

_LEVELS = ("0.5, SE", "0.5, Matern", "1, SE", "1, Matern", "2, SE", "2, Matern")
_LDP: dict[str, tuple[tuple[float, float], ...]] = {
    "LDP-TGP": ((0.288, 0.055), (0.172, 0.016), (0.094, 0.015), (0.115, 0.020), (0.049, 0.010), (0.083, 0.027)),
    "LDP-ATA": ((0.102, 0.013), (0.212, 0.029), (0.152, 0.033), (0.087, 0.012), (0.060, 0.020), (0.053, 0.008)),
    "LDP-MoMA": ((0.291, 0.080), (0.273, 0.043), (0.114, 0.023), (0.157, 0.037), (0.048, 0.010), (0.061, 0.010)),
    "IGP-UCB": ((0.232, 0.065), (0.155, 0.024), (0.107, 0.019), (0.112, 0.019), (0.039, 0.009), (0.049, 0.008)),
    "Thompson": ((0.199, 0.025), (0.198, 0.031), (0.097, 0.016), (0.148, 0.022), (0.069, 0.018), (0.051, 0.008)),
    "Laplace-ADF": ((0.106, 0.012), (0.161, 0.021), (0.051, 0.010), (0.087, 0.020), (0.033, 0.007), (0.038, 0.010)),
    "bounded IGP, guaranteed": ((0.282, 0.018), (0.301, 0.020), (0.181, 0.016), (0.215, 0.019)),
    "bounded IGP, practical": (
        (0.118, 0.021), (0.148, 0.031), (0.052, 0.014), (0.106, 0.028), (0.029, 0.006), (0.051, 0.016),
    ),
    "bounded Thompson": (
        (0.127, 0.013), (0.130, 0.016), (0.061, 0.009), (0.079, 0.011), (0.031, 0.008), (0.045, 0.008),
    ),
    "TGP tight, theory": (
        (0.854, 0.046), (0.841, 0.034), (0.768, 0.044), (0.790, 0.035), (0.660, 0.050), (0.699, 0.038),
    ),
    "LDP-TGP, theory": (
        (1.022, 0.029), (0.994, 0.011), (0.985, 0.028), (0.974, 0.011), (0.921, 0.030), (0.933, 0.014),
    ),
    "LDP-ATA, theory": (
        (0.982, 0.029), (0.988, 0.011), (0.912, 0.031), (0.961, 0.012), (0.817, 0.036), (0.919, 0.016),
    ),
    "LDP-MoMA, theory": (
        (1.046, 0.039), (1.030, 0.027), (1.047, 0.038), (1.028, 0.025), (1.014, 0.037), (1.012, 0.026),
    ),
    "IGP-UCB, no privacy": ((0.002, 0.0005), (0.003, 0.001)),
}  # fmt: skip


def ldp(column: str, kernel: str, level: str) -> tuple[float, float] | None:
    """That implementation's regret at T = 20,000 over that of uniform play, with its standard error.

    30 trials, or 10 with theorems' constants. Guaranteed bounded play has only one_bit answers, up to epsilon 1.
    """
    values = _LDP[column]
    if len(values) == 2:
        return dict(zip(("1, SE", "1, Matern"), values, strict=True)).get(f"{level}, {kernel}")
    return dict(zip(_LEVELS, values, strict=False)).get(f"{level}, {kernel}")
