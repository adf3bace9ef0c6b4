"""How the service asks itself: a request in process, whose principal is known without a token.

The mark lies in the ASGI scope, which the server builds: nothing that is sent over a network gets there, as the server
puts what it reads under ``headers``, ``path`` and the like, and as text. All else holds as for any request: roles,
limits of rate and size, idempotency, the log.
"""

from dataclasses import dataclass

from starlette.types import Scope

from service_kit.identity.tokens import Principal

_KEY = "blindopt.inside"


@dataclass(frozen=True, slots=True)
class _Inside:
    """A type of its own: text under the same key would not do."""

    principal: Principal


def mark(scope: Scope, principal: Principal) -> None:
    """Say in a scope that we made whom it speaks for."""
    scope[_KEY] = _Inside(principal)


def principal_of(scope: Scope) -> Principal | None:
    """Whom a request speaks for that we made ourselves; None for any other."""
    found = scope.get(_KEY)
    return found.principal if isinstance(found, _Inside) else None
