"""/v1/audit: the log over REST. A modeler sees the shared log of its own grant and nothing else."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request

from blindopt import wire
from blindopt.audit import merkle_log
from blindopt.errors import Invalid, NotFound
from service_kit.context.context import ServiceContext
from service_kit.context.log_verification import Verifier
from service_kit.identity.tokens import Principal, Role
from service_kit.store import audit_log
from service_kit.web.dependencies import allowed, api_router
from service_kit.web.listings import PagingDep

GrantId = Annotated[
    str | None, Query(pattern=r"^grt_[0-9a-f]{16}$", description="The shared log of this grant; default: the own log.")
]


def _which(request: Request, grant_id: GrantId = None) -> str | None:
    """The log that is asked: for a modeler that of its own grant."""
    principal: Principal = request.state.principal
    if principal.study_id is None:
        return grant_id
    if grant_id not in (None, principal.id):
        raise NotFound("there is no such log")
    return principal.id


Which = Annotated[str | None, Depends(_which)]


def router(auditors: tuple[Role, ...]) -> APIRouter:
    """Entries, checkpoint and consistency proofs for these roles."""
    routes = api_router("audit", *auditors, prefix="/v1/audit")

    @routes.get("/entries")
    def list_audit_entries(
        request: Request,
        which: Which,
        paging: PagingDep,
        kind: Annotated[
            str | None,
            Query(
                pattern=r"^[a-z_]{1,40}([.][a-z_]{1,40})?$", description="Records of this kind alone, of the own log."
            ),
        ] = None,
        order: Annotated[
            Literal["oldest", "newest"], Query(description="Which records come first; ask each page in the same order.")
        ] = "oldest",
    ) -> wire.AuditPage:
        """A log, from its first record or from its last."""
        chosen = None if which is not None else kind  # an exchange of a shared log has no kind
        with _context(request).database.read() as db:
            entries = audit_log.look(
                db, which, place=paging.token, kind=chosen, newest=order == "newest", limit=paging.limit
            )
        entries, token = paging.cut(entries, lambda entry: entry.seq)
        return wire.AuditPage(entries=[entry_view(entry, which) for entry in entries], next_page_token=token)

    @routes.get("/checkpoint")
    def get_audit_checkpoint(request: Request, which: Which) -> wire.Checkpoint:
        """Size and root of a log, signed; 503 for a log that is not what it was, under which nothing is signed."""
        context = _context(request)
        context.audit_trail.check_sound()
        head = context.audit_trail.head(which)
        return wire.Checkpoint(size=head.size, root=head.root, note=context.audit_trail.sign(head, which))

    @routes.get("/consistency")
    def get_audit_consistency(
        request: Request,
        which: Which,
        first: Annotated[int, Query(ge=1, lt=2**53, description="Records of the older checkpoint.")],
        second: Annotated[int, Query(ge=1, lt=2**53, description="Records of the newer one.")],
    ) -> wire.Consistency:
        """Proof that the log of the older checkpoint is where that of the newer one began."""
        with _context(request).database.read() as db:
            if not first <= second <= audit_log.head(db, which).size:
                fault: dict[str, object] = {"field": "second", "message": "must be between first and the log's size"}
                raise Invalid("the log does not have that many records, or first is larger than second", [fault])
            proof = audit_log.consistency(db, which, first, second)
        return wire.Consistency(first=first, second=second, proof=[node.hex() for node in proof])

    @routes.post(":verify", dependencies=[_readers_of_all(auditors)])
    def verify_audit_log(request: Request) -> wire.Verification:
        """Walk all of the log now, and the logs of all grants. Changes nothing; some seconds for a long log."""
        return _verifier(request).walk()

    @routes.get("/verification", dependencies=[_readers_of_all(auditors)])
    def get_audit_verification(request: Request) -> wire.VerificationState:
        """When the log was last verified, and what came of it."""
        return _verifier(request).state()

    return routes


def _readers_of_all(auditors: tuple[Role, ...]) -> Any:
    return allowed(*(role for role in auditors if role != "modeler"))  # who sees its own part alone cannot ask for all


def _verifier(request: Request) -> Verifier:
    verifier: Verifier = request.app.state.verifier
    return verifier


def entry_view(entry: merkle_log.Entry, grant_id: str | None = None) -> wire.AuditEntry:
    """An entry as it travels."""
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
