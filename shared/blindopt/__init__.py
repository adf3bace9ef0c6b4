"""blindopt: what a data owner's curator and a vendor's modeler share.

- ``blindopt.wire``: the types of all requests and replies.
- ``blindopt.client``: HTTP clients of both services, for vendors, owners, measurers and data scientists.
- ``blindopt.library``: objects for notebooks, which hold such a client.
- ``blindopt.gp``: Gaussian processes over finite candidates, with the notation table of the mathematics.
- ``blindopt.optimizer``: plans, initial designs and algorithms: which candidate to query next.
- ``blindopt.audit``: verification of the append-only audit logs of both services.
- ``blindopt.formats``: tables as CSV and NumPy files.
- ``blindopt.errors``: the errors of all of these.

Everything except ``blindopt.client`` and ``blindopt.library`` is pure: no HTTP, no database, no clock, no environment.

The names below can be imported from here. Each is loaded when it is first used: ``import blindopt`` loads nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from blindopt.version import VERSION

if TYPE_CHECKING:
    from blindopt.client import MeasurerClient, OwnerClient, StudyClient, VendorClient
    from blindopt.errors import BlindoptError, ProtocolViolated, Remote, Unreachable
    from blindopt.gp.kernels import Matern12, Matern32, Matern52, SquaredExponential
    from blindopt.gp.posterior import Posterior
    from blindopt.library.auditing import reconcile, verify_log
    from blindopt.library.measurer import Measurer
    from blindopt.library.optimizer import Optimizer
    from blindopt.library.owner import Owner
    from blindopt.library.study import Study
    from blindopt.library.vendor import Run, Vendor

__version__ = VERSION
__all__ = [
    "BlindoptError",
    "Matern12",
    "Matern32",
    "Matern52",
    "Measurer",
    "MeasurerClient",
    "Optimizer",
    "Owner",
    "OwnerClient",
    "Posterior",
    "ProtocolViolated",
    "Remote",
    "Run",
    "SquaredExponential",
    "Study",
    "StudyClient",
    "Unreachable",
    "Vendor",
    "VendorClient",
    "reconcile",
    "verify_log",
]
_NAMES = {
    "blindopt.client": ["MeasurerClient", "OwnerClient", "StudyClient", "VendorClient"],
    "blindopt.errors": ["BlindoptError", "ProtocolViolated", "Remote", "Unreachable"],
    "blindopt.gp.kernels": ["Matern12", "Matern32", "Matern52", "SquaredExponential"],
    "blindopt.gp.posterior": ["Posterior"],
    "blindopt.library.auditing": ["reconcile", "verify_log"],
    "blindopt.library.optimizer": ["Optimizer"],
    "blindopt.library.measurer": ["Measurer"],
    "blindopt.library.owner": ["Owner"],
    "blindopt.library.study": ["Study"],
    "blindopt.library.vendor": ["Run", "Vendor"],
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOMES[name]), name)
    return value
