"""blindopt: what a data owner's curator and a vendor's modeler share.

- ``blindopt.wire``: the types of all requests and replies.
- ``blindopt.client``: both services from Python, for owners, vendors, people who measure and auditors.
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

from blindopt.version import VERSION

if TYPE_CHECKING:
    from blindopt.client.auditing import reconcile, verify_log
    from blindopt.client.measurer import Measurer
    from blindopt.client.owner import Owner
    from blindopt.client.study import Study
    from blindopt.client.vendor import Run, Vendor
    from blindopt.errors import (
        BlindoptError,
        Declined,
        ExtraMissing,
        Invalid,
        LogBroken,
        LoopEnded,
        NumericalFailure,
        ProtocolViolated,
        Remote,
        StateConflict,
        StillMeasured,
        StillRunning,
        Unreachable,
    )
    from blindopt.gp.kernels import Matern12, Matern32, Matern52, SquaredExponential
    from blindopt.gp.posterior import Posterior
    from blindopt.optimizer.optimizer import Optimizer

__version__ = VERSION
__all__ = [
    "BlindoptError",
    "Declined",
    "ExtraMissing",
    "Invalid",
    "LogBroken",
    "LoopEnded",
    "Matern12",
    "Matern32",
    "Matern52",
    "Measurer",
    "NumericalFailure",
    "Optimizer",
    "Owner",
    "Posterior",
    "ProtocolViolated",
    "Remote",
    "Run",
    "SquaredExponential",
    "StateConflict",
    "StillMeasured",
    "StillRunning",
    "Study",
    "Unreachable",
    "Vendor",
    "reconcile",
    "verify_log",
]
_NAMES = {
    "blindopt.client.auditing": ["reconcile", "verify_log"],
    "blindopt.client.measurer": ["Measurer"],
    "blindopt.client.owner": ["Owner"],
    "blindopt.client.study": ["Study"],
    "blindopt.client.vendor": ["Run", "Vendor"],
    "blindopt.gp.kernels": ["Matern12", "Matern32", "Matern52", "SquaredExponential"],
    "blindopt.gp.posterior": ["Posterior"],
    "blindopt.optimizer.optimizer": ["Optimizer"],
}
_HOMES = dict.fromkeys(__all__, "blindopt.errors") | {name: home for home, names in _NAMES.items() for name in names}


def __dir__() -> list[str]:
    """The public names, for completion."""
    return __all__


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOMES[name]), name)
    return value
