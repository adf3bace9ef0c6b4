"""/v1/audit: the log over REST. A modeler sees only the shared log of its own grant."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import StringConstraints

from blindopt import wire
from blindopt.audit import merkle_log
from blindopt.errors import Invalid, NotFound
from service_kit.context.context import ServiceContext
from service_kit.identity.tokens import Principal, Role
from service_kit.store import audit_log, tokens, users
from service_kit.store.base import stamp
from service_kit.store.database import Connection
from service_kit.verification import LogVerification
from service_kit.web.dependencies import allowed, api_router
from service_kit.web.listings import Order, PagingDep, Time

GrantId = Annotated[
    str | None, Query(pattern=r"^grt_[0-9a-f]{16}$", description="The shared log of this grant; default: the own log.")
]


def _log_id(request: Request, grant_id: GrantId = None) -> str | None:
    """The grant of the shared log that is requested, or None for the own log; a modeler's own grant for a modeler."""
    principal: Principal = request.state.principal
    if principal.study_id is None:
        return grant_id
    if grant_id not in (None, principal.id):
        raise NotFound("there is no such log")
    return principal.id


_ID = re.compile(rb'"(?:[a-z]+:)?((?:(?:usr|grt)_)?[0-9a-f]{16})"')
"""Of a user, a grant, or a token."""
LogId = Annotated[str | None, Depends(_log_id)]


@dataclass(frozen=True, slots=True)
class _Filter:
    """Which records are listed; see ``audit_log.page``."""

    kinds: Sequence[str] = ()
    actor: str | None = None
    about: str | None = None
    since: str | None = None
    until: str | None = None


Kind = Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,40}([.][a-z_]{0,40})?$")]


async def _filter(
    kind: Annotated[
        list[Kind] | None,
        Query(max_length=40, description="Only records of these kinds; `user.`: of all that begin so."),
    ] = None,
    actor: Annotated[
        str | None, Query(pattern=r"^[a-z0-9_:]{1,60}$", description="Only records of actors with this in their name.")
    ] = None,
    about: Annotated[
        str | None, Query(pattern=r"^[a-z]{2,4}_[0-9a-f]{16}$", description="Only records with this id in them.")
    ] = None,
    since: Annotated[Time | None, Query(description="Only records from this time on.")] = None,
    until: Annotated[Time | None, Query(description="Only records before this time.")] = None,
) -> _Filter:
    return _Filter(kind or (), actor, about, stamp(since) if since else None, stamp(until) if until else None)


@cache  # routes have no state: applications of one process share them
def router(auditors: tuple[Role, ...]) -> APIRouter:
    """Entries, checkpoint and consistency proofs for these roles."""
    routes = api_router("audit", *auditors, prefix="/v1/audit")
    readers_of_all = allowed(*(role for role in auditors if role != "modeler"))  # a modeler sees one log only

    @routes.get("/entries")
    def list_audit_entries(
        request: Request,
        log_id: LogId,
        paging: PagingDep,
        entry_filter: Annotated[_Filter, Depends(_filter)],
        order: Order = "oldest",
    ) -> wire.AuditPage:
        """List records of a log, from its first or from its last. Filters other than `about` are for the own log."""
        where = entry_filter if log_id is None else _Filter(about=entry_filter.about)
        newest = order == "newest"
        with _context(request).database.read() as db:
            entries = audit_log.page(
                db, log_id, position=paging.token, newest=newest, limit=paging.limit, **asdict(where)
            )
            entries, token = paging.cut(entries, lambda entry: entry.seq)
            names = _names(db, entries) if log_id is None else []
        views = [entry_view(entry, log_id) for entry in entries]
        return wire.AuditPage(entries=views, names=names, next_page_token=token)

    @routes.get("/checkpoint")
    def get_audit_checkpoint(request: Request, log_id: LogId) -> wire.Checkpoint:
        """Get size and root of a log, signed. 503 for a log that does not verify: nothing is signed for it."""
        context = _context(request)
        context.audit_trail.check_sound()
        head = context.audit_trail.head(log_id)
        return wire.Checkpoint(size=head.size, root=head.root, note=context.audit_trail.sign(head, log_id))

    @routes.get("/consistency")
    def get_audit_consistency(
        request: Request,
        log_id: LogId,
        first: Annotated[int, Query(ge=1, lt=2**53, description="Records of the older checkpoint.")],
        second: Annotated[int, Query(ge=1, lt=2**53, description="Records of the newer one.")],
    ) -> wire.Consistency:
        """Prove that the log of the newer checkpoint begins with that of the older one."""
        with _context(request).database.read() as db:
            if not first <= second <= audit_log.head(db, log_id).size:
                raise Invalid.at("second", "must be between first and the log's size")
            proof = audit_log.consistency(db, log_id, first, second)
        return wire.Consistency(first=first, second=second, proof=[node.hex() for node in proof])

    @routes.post(":verify", dependencies=[readers_of_all])
    def verify_audit_log(request: Request) -> wire.Verification:
        """Verify every record of the log and of the logs of all grants. Changes nothing; may take seconds."""
        return _log_verification(request).verify()

    @routes.get("/verification", dependencies=[readers_of_all])
    def get_audit_verification(request: Request) -> wire.VerificationState:
        """Get the time and the result of the last verification."""
        return _log_verification(request).state()

    return routes


def _names(db: Connection, entries: Sequence[merkle_log.Entry]) -> list[wire.AuditName]:
    """Names of all whose ids are in these records."""
    ids = {match.decode() for entry in entries for match in _ID.findall(entry.body)}
    named = tokens.names(db, ids) | users.names(db, ids)
    return [wire.AuditName(id=name_id, name=name) for name_id, name in named.items()]


def _log_verification(request: Request) -> LogVerification:
    verification: LogVerification = request.app.state.log_verification
    return verification


def entry_view(entry: merkle_log.Entry, grant_id: str | None = None) -> wire.AuditEntry:
    return wire.AuditEntry(
        seq=entry.seq,
        body=entry.body.decode(errors="replace"),
        leaf=entry.leaf.hex(),
        peaks=entry.peaks.hex(),
        grant_id=grant_id,
    )


def _context(request: Request) -> ServiceContext:
    context: ServiceContext = request.app.state.context
    return context
