"""Array types of the numerics."""

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
"""Two-dimensional, float64."""
Vector = NDArray[np.float64]
"""One-dimensional, float64."""
Rows = NDArray[np.intp]
"""Indices of candidates."""
Mask = NDArray[np.bool_]
"""One truth value for each candidate."""
