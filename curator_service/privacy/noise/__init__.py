"""All noise that the curator draws, by exact samplers on lattices: OpenDP's with guards of our own, and our own."""

from curator_service.privacy.noise.gaussian import GaussianLaw, add_gaussian
from curator_service.privacy.noise.laplace import (
    add_integer_laplace,
    add_laplace,
    add_laplace_to_number,
    laplace_scale,
    least_epsilon,
    sensitivity_scale,
)
from curator_service.privacy.noise.lattice import LATTICE_BITS, lattice
from curator_service.privacy.noise.parallel import Law, OnProgress, apply, ignore_progress
from curator_service.privacy.noise.planar import PLANAR_FEATURES_MAX, PlanarLaplaceLaw
from curator_service.privacy.noise.selection import select, selection_scale

__all__ = [
    "LATTICE_BITS",
    "PLANAR_FEATURES_MAX",
    "GaussianLaw",
    "Law",
    "OnProgress",
    "PlanarLaplaceLaw",
    "add_gaussian",
    "add_integer_laplace",
    "add_laplace",
    "add_laplace_to_number",
    "apply",
    "ignore_progress",
    "laplace_scale",
    "lattice",
    "least_epsilon",
    "select",
    "selection_scale",
    "sensitivity_scale",
]
