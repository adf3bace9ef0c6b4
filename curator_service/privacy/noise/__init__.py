"""Every noise draw of the curator, through OpenDP's exact lattice samplers, with our guards."""

from curator_service.privacy.noise.gaussian import GaussianLaw, add_gaussian
from curator_service.privacy.noise.laplace import add_laplace, add_laplace_to_one, laplace_scale, sensitivity_scale
from curator_service.privacy.noise.lattice import LATTICE_BITS, lattice
from curator_service.privacy.noise.parallel import Law, apply
from curator_service.privacy.noise.planar import PLANAR_FEATURES_MAX, PlanarLaplaceLaw
from curator_service.privacy.noise.selection import select, selection_scale

__all__ = [
    "LATTICE_BITS",
    "PLANAR_FEATURES_MAX",
    "GaussianLaw",
    "Law",
    "PlanarLaplaceLaw",
    "add_gaussian",
    "add_laplace",
    "add_laplace_to_one",
    "apply",
    "laplace_scale",
    "lattice",
    "select",
    "selection_scale",
    "sensitivity_scale",
]
