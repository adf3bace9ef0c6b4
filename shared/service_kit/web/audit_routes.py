"""/v1/audit: the log over REST. A modeler sees only the shared log of its own grant."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from blindopt import wire
from blindopt.audit import merkle_log
from blindopt.errors import Invalid, NotFound
from service_kit.context.context import ServiceContext
from service_kit.context.log_verification import LogVerification
from service_kit.identity.tokens import Principal, Role
from service_kit.store import audit_log
from service_kit.web.dependencies import allowed, api_router
from service_kit.web.listings import Order, PagingDep

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


LogId = Annotated[str | None, Depends(_log_id)]


def router(auditors: tuple[Role, ...]) -> APIRouter:
    """Entries, checkpoint and consistency proofs for these roles."""
    routes = api_router("audit", *auditors, prefix="/v1/audit")

    @routes.get("/entries")
    def list_audit_entries(
        request: Request,
        log_id: LogId,
        paging: PagingDep,
        kind: Annotated[
            str | None,
            Query(
                pattern=r"^[a-z_]{1,40}([.][a-z_]{1,40})?$", description="Records of this kind alone, of the own log."
            ),
        ] = None,
        order: Order = "oldest",
    ) -> wire.AuditPage:
        """Records of a log, from its first or from its last."""
        own_kind = None if log_id is not None else kind  # an exchange of a shared log has no kind
        with _context(request).database.read() as db:
            entries = audit_log.page(
                db, log_id, position=paging.token, kind=own_kind, newest=order == "newest", limit=paging.limit
            )
        entries, token = paging.cut(entries, lambda entry: entry.seq)
        return wire.AuditPage(entries=[entry_view(entry, log_id) for entry in entries], next_page_token=token)

    @routes.get("/checkpoint")
    def get_audit_checkpoint(request: Request, log_id: LogId) -> wire.Checkpoint:
        """Size and root of a log, signed. 503 for a log that does not verify: nothing is signed for it."""
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
        """Proof that the log of the newer checkpoint begins with that of the older one."""
        with _context(request).database.read() as db:
            if not first <= second <= audit_log.head(db, log_id).size:
                fault: dict[str, object] = {"field": "second", "message": "must be between first and the log's size"}
                raise Invalid("the log does not have that many records, or first is larger than second", [fault])
            proof = audit_log.consistency(db, log_id, first, second)
        return wire.Consistency(first=first, second=second, proof=[node.hex() for node in proof])

    @routes.post(":verify", dependencies=[_readers_of_all(auditors)])
    def verify_audit_log(request: Request) -> wire.Verification:
        """Verify every record of the log and of the logs of all grants. Changes nothing; may take seconds."""
        return _log_verification(request).verify()

    @routes.get("/verification", dependencies=[_readers_of_all(auditors)])
    def get_audit_verification(request: Request) -> wire.VerificationState:
        """Return the time and the result of the last verification."""
        return _log_verification(request).state()

    return routes


def _readers_of_all(auditors: tuple[Role, ...]) -> Any:
    return allowed(*(role for role in auditors if role != "modeler"))  # a modeler sees one log only


def _log_verification(request: Request) -> LogVerification:
    verification: LogVerification = request.app.state.log_verification
    return verification


def entry_view(entry: merkle_log.Entry, grant_id: str | None = None) -> wire.AuditEntry:
    """An entry of a log as its wire type."""
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
