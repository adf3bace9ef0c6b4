"""Requests of the service to its own API, in process, whose principal needs no token.

The mark lies in the ASGI scope, which the server builds. Nothing sent over a network gets there: the server puts what
it reads under ``headers``, ``path`` and the like, as text. Roles, limits of rate and size, idempotency and the log
apply as to any other request.
"""

from dataclasses import dataclass

from starlette.types import Scope

from service_kit.identity.tokens import Principal

_KEY = "blindopt.inside"


@dataclass(frozen=True, slots=True)
class _Mark:
    """A type of its own, so that text under the same key is no mark."""

    principal: Principal


def mark(scope: Scope, principal: Principal) -> None:
    """Mark the scope of a request that the service sends to itself with its principal."""
    scope[_KEY] = _Mark(principal)


def principal_of(scope: Scope) -> Principal | None:
    """The principal of a marked scope; None for any other."""
    value = scope.get(_KEY)
    return value.principal if isinstance(value, _Mark) else None
