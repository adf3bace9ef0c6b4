"""blindopt: what a data owner's curator and a vendor's modeler share.

- ``blindopt.wire``: the types of all requests and replies.
- ``blindopt.client``: HTTP clients of both services, for vendors, owners, measurers and data scientists.
- ``blindopt.gp``: Gaussian processes over finite candidates, with the notation table of the mathematics.
- ``blindopt.optimizer``: plans, initial designs and algorithms: which candidate to query next.
- ``blindopt.audit``: verification of the append-only audit logs of both services.
- ``blindopt.formats``: tables as CSV and NumPy files.
- ``blindopt.errors``: the errors of all of these.

Everything except ``blindopt.client`` is pure: no HTTP, no database, no clock, no environment.

The names below can be imported from here. Each is loaded when it is first used: ``import blindopt`` loads nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blindopt.client import MeasurerClient, OwnerClient, StudyClient, VendorClient
    from blindopt.errors import BlindoptError
    from blindopt.gp.kernels import Matern12, Matern32, Matern52, SquaredExponential
    from blindopt.gp.posterior import Posterior

__version__ = "0.2.0"
__all__ = [
    "BlindoptError",
    "Matern12",
    "Matern32",
    "Matern52",
    "MeasurerClient",
    "OwnerClient",
    "Posterior",
    "SquaredExponential",
    "StudyClient",
    "VendorClient",
]
_MODULES = ("blindopt.errors", "blindopt.gp.kernels", "blindopt.gp.posterior", "blindopt.client")


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it."""
    if name in __all__:
        for module in _MODULES:
            if (value := getattr(import_module(module), name, None)) is not None:
                globals()[name] = value
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
