"""Every noise draw of the curator, through OpenDP's exact lattice samplers, with our guards."""

from curator_service.privacy.noise.gaussian import add_gaussian
from curator_service.privacy.noise.laplace import add_laplace, laplace_scale
from curator_service.privacy.noise.lattice import LATTICE_BITS, lattice

__all__ = ["LATTICE_BITS", "add_gaussian", "add_laplace", "laplace_scale", "lattice"]
