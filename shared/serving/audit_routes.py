"""/v1/audit: the log over REST. A modeler sees the shared log of its own grant and nothing else."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from shared import audit, wire
from shared.errors import Invalid, NotFound
from shared.serving.desk import Desk
from shared.serving.problems import documented
from shared.serving.routing import PageSize, PageToken, allowed, page_of
from shared.serving.store import logs
from shared.serving.tokens import Principal, Role

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
    routes = APIRouter(prefix="/v1/audit", tags=["audit"], dependencies=[allowed(*auditors)])

    @routes.get("/entries", response_model=wire.AuditPage, responses=documented(), operation_id="list_audit_entries")
    def entries(
        request: Request, which: Which, page_size: PageSize = 50, page_token: PageToken = None
    ) -> wire.AuditPage:
        """A log, from its first record."""
        after = -1 if page_token is None else int(page_token)
        with _desk(request).database.read() as db:
            found = [entry_view(e, which) for e in logs.walk(db, which, after=after, limit=page_size + 1)]
        listed, token = page_of(found, page_size, lambda entry: entry.seq)
        return wire.AuditPage(entries=listed, next_page_token=token)

    @routes.get(
        "/checkpoint", response_model=wire.Checkpoint, responses=documented(), operation_id="get_audit_checkpoint"
    )
    def checkpoint(request: Request, which: Which) -> wire.Checkpoint:
        """Size and root of a log, signed; 503 for a log that is not what it was, under which nothing is signed."""
        desk = _desk(request)
        desk.check_sound()
        head = desk.head(which)
        return wire.Checkpoint(size=head.size, root=head.root, note=desk.sign(head, which))

    @routes.get(
        "/consistency", response_model=wire.Consistency, responses=documented(), operation_id="get_audit_consistency"
    )
    def consistency(
        request: Request,
        which: Which,
        first: Annotated[int, Query(ge=1, lt=2**53, description="Records of the older checkpoint.")],
        second: Annotated[int, Query(ge=1, lt=2**53, description="Records of the newer one.")],
    ) -> wire.Consistency:
        """Proof that the log of the older checkpoint is where that of the newer one began."""
        with _desk(request).database.read() as db:
            leaves = logs.leaves(db, which)
        if not first <= second <= len(leaves):
            fault: dict[str, object] = {"field": "second", "message": "must be between first and the log's size"}
            raise Invalid("the log does not have that many records, or first is larger than second", [fault])
        proof = audit.consistency(leaves[:second], first)
        return wire.Consistency(first=first, second=second, proof=[node.hex() for node in proof])

    return routes


def entry_view(entry: audit.Entry, grant_id: str | None = None) -> wire.AuditEntry:
    """An entry as it travels."""
    return wire.AuditEntry(
        seq=entry.seq,
        body=entry.body.decode(errors="replace"),
        leaf=entry.leaf.hex(),
        peaks=entry.peaks.hex(),
        grant_id=grant_id,
    )


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk
