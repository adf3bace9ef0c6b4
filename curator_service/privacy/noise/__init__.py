"""All noise that the curator draws, by exact samplers on lattices: OpenDP's with guards of our own, and our own."""

from curator_service.privacy.noise.gaussian import GaussianLaw as GaussianLaw
from curator_service.privacy.noise.gaussian import add_gaussian as add_gaussian
from curator_service.privacy.noise.laplace import add_integer_laplace as add_integer_laplace
from curator_service.privacy.noise.laplace import add_laplace as add_laplace
from curator_service.privacy.noise.laplace import add_laplace_to_number as add_laplace_to_number
from curator_service.privacy.noise.laplace import laplace_scale as laplace_scale
from curator_service.privacy.noise.laplace import least_epsilon as least_epsilon
from curator_service.privacy.noise.laplace import sensitivity_scale as sensitivity_scale
from curator_service.privacy.noise.lattice import LATTICE_BITS as LATTICE_BITS
from curator_service.privacy.noise.lattice import lattice as lattice
from curator_service.privacy.noise.parallel import Law as Law
from curator_service.privacy.noise.parallel import OnProgress as OnProgress
from curator_service.privacy.noise.parallel import apply as apply
from curator_service.privacy.noise.parallel import ignore_progress as ignore_progress
from curator_service.privacy.noise.planar import PLANAR_FEATURES_MAX as PLANAR_FEATURES_MAX
from curator_service.privacy.noise.planar import PlanarLaplaceLaw as PlanarLaplaceLaw
from curator_service.privacy.noise.selection import select as select
from curator_service.privacy.noise.selection import selection_scale as selection_scale
