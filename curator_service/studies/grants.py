"""Modelers' credentials, and the candidates that a grant gets.

Zeros stand for those whose record was withheld before the grant was made. A candidate keeps its number, so that it is
the same record to each grant, and in each study that reads the release.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from blindopt import wire
from blindopt.audit.checkpoints import Countersignature, Verifier
from blindopt.errors import Invalid, LogBroken, NotFound, RecordChanged, StateConflict
from blindopt.formats import npy_files, release_files
from curator_service import store
from curator_service.budget.file_use import check_order
from curator_service.datasets.records import withheld_records
from curator_service.privacy.prices import is_groups
from curator_service.settings import Settings
from curator_service.studies.release_cache import Released
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.identity.tokens import Principal, Token
from service_kit.store import audit_log, checkpoints, day_counts, segments, tokens
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply
from service_kit.web.metrics import Figures, gauge

LEFT_OUT = "candidates.left_out"
"""Kind of a record in the log. Nothing else stores what a grant does not get."""


@dataclass(frozen=True, slots=True)
class Download:
    """The digest and the parts of what a grant gets, and the numbers of the candidates left out, in order."""

    sha256: str
    parts: list[wire.ReleasePart]
    left_out: list[int] = field(default_factory=list)


def download_of(db: Connection, released: Released, grant_id: str) -> Download:
    for record in audit_log.of_kind(db, LEFT_OUT, about=grant_id):
        if (details := record["details"])["grant_id"] == grant_id:
            parts = [wire.ReleasePart.model_validate(part) for part in details["parts"]]
            return Download(details["sha256"], parts, details["left_out"])
    return Download(released.sha256, released.report.parts)


def next_download(db: Connection, vault: Vault, study_id: str, before: Download | None = None) -> Download | None:
    """What a grant gets from now on, if records were withheld; ``before``, if it leaves out the same.

    Reads the whole file. Raises StateConflict if every record was withheld, RecordChanged for another file, or another
    order, than was published.
    """
    release, spec = store.release_of(db, study_id), store.spec_of(db, study_id)
    if release is None or is_groups(spec) or store.is_erased(db, study_id):
        return None
    if not (withheld := withheld_records(db, vault, spec.dataset_id)):
        return None
    left_out = np.flatnonzero(np.isin(vault.order(release.id), withheld)).tolist()
    if not left_out or (before is not None and before.left_out == left_out):
        return before if left_out else None
    if len(left_out) == release.n:
        raise StateConflict("every record of the release was withheld: there is no candidate for a grant")
    check_order(db, vault, study_id)
    path, release_parts = vault.candidates(release.id), wire.ReleaseReport.model_validate_json(release.report).parts
    if release_files.digest(path, release_parts) != release.sha256:
        raise RecordChanged("the stored candidates are not the ones that were published")
    zeros = npy_files.bytes_of(path, left_out)
    return Download(
        release_files.digest(path, release_parts, zeros),
        release_files.stored_parts(path, release_parts, zeros),
        left_out,
    )


def record_download(
    db: Connection, study_id: str, grant_ids: Iterable[str], download: Download | None, *, actor: str, now: datetime
) -> None:
    """Record what these grants get, for good; None: the whole release."""
    if download is not None:
        release_parts = [part.model_dump() for part in download.parts]
        gets = {"study_id": study_id, "sha256": download.sha256, "parts": release_parts, "left_out": download.left_out}
        for grant_id in grant_ids:
            audit_log.append(db, LEFT_OUT, actor=actor, now=now, details={"grant_id": grant_id} | gets)


class Grants:
    """A grant gives one modeler access to one study.

    Its modeler is a witness: once it countersigned, neither party can change the history of the grant unnoticed.
    """

    def __init__(self, context: ServiceContext, vault: Vault, settings: Settings) -> None:
        self._context = context
        self._vault = vault
        self._settings = settings

    def grant(self, request: RequestContext, study_id: str, grant: wire.GrantCreate) -> StoredReply:
        """A token for one modeler. Its stored reply is sealed, so that a retry can be answered."""
        with self._context.database.read() as db:  # it reads the file of candidates, if records were withheld
            store.find(db, store.studies, study_id)
            download = next_download(db, self._vault, study_id)

        def effect(db: Connection) -> Effect:
            store.find(db, store.studies, study_id)
            days, actor = grant.expires_in_days, request.principal.actor
            token, who = self._context.authentication.grant(db, grant.name, study_id, days=days, actor=actor)
            gets = next_download(db, self._vault, study_id, download)
            record_download(db, study_id, [who.id], gets, actor=actor, now=self._context.clock())
            return self._granted(db, "grant.created", token, who)

        return self._context.idempotency.once(request, effect, secret=True)

    def rotate(self, request: RequestContext, study_id: str, grant_id: str, rotation: wire.Rotation) -> StoredReply:
        """A further token for a grant; the older one stays until it is revoked or expires."""

        def effect(db: Connection) -> Effect:
            days, actor = rotation.expires_in_days, request.principal.actor
            token, who = self._context.authentication.rotate(db, grant_id, days=days, actor=actor, study_id=study_id)
            return self._granted(db, "grant.rotated", token, who)

        return self._context.idempotency.once(request, effect, secret=True)

    def grants(self, study_id: str, after: int, limit: int) -> list[tuple[int, wire.GrantView]]:
        with self._context.database.read() as db:
            store.find(db, store.studies, study_id)
            by_grant: dict[str, list[Any]] = {}
            for row in tokens.of_study(db, study_id):
                by_grant.setdefault(row.principal, []).append(row)
            page = [rows for rows in by_grant.values() if rows[0].seq > after][:limit]
            return [(rows[0].seq, self._grant_view(db, rows)) for rows in page]

    def revoke(self, request: RequestContext, study_id: str, grant_id: str, kid: str | None = None) -> StoredReply:
        """Refuse the tokens of a grant from now on, or one of them."""

        def effect(db: Connection) -> Effect:
            rows = tokens.of_principal(db, grant_id, study_id=study_id)
            kids = [row.kid for row in rows if kid in (None, row.kid)]
            if not kids:
                raise NotFound("the grant has no such token")
            for chosen_kid in kids:
                self._context.authentication.revoke(db, chosen_kid, actor=request.principal.actor)
            view = self._grant_view(db, tokens.of_principal(db, grant_id))
            return Effect(view, "grant.revoked", {"study_id": study_id, "grant_id": grant_id, "kids": kids}, 200)

        return self._context.idempotency.once(request, effect)

    def limit(self, request: RequestContext, study_id: str, grant_id: str, quota: wire.LogQuota) -> StoredReply:
        def effect(db: Connection) -> Effect:
            if not (rows := tokens.of_principal(db, grant_id, study_id=study_id)):
                raise NotFound("there is no such grant")
            self._context.audit_trail.quotas.limit(db, grant_id, quota.bytes_per_day)
            details = {"study_id": study_id, "grant_id": grant_id, **quota.model_dump()}
            return Effect(self._grant_view(db, rows), "grant.limited", details, 200)

        return self._context.idempotency.once(request, effect)

    def countersign(self, request: RequestContext, countersigning: wire.Countersigning) -> StoredReply:
        """Store a countersigned checkpoint. Raises Invalid if a signature or the history is another."""
        grant = request.principal.id

        def effect(db: Connection) -> Effect:
            try:
                self._context.signer.first.verify(countersigning.note, grant)
                verifier = Verifier.parse(countersigning.key)
                theirs, time = verifier.verify_countersignature(countersigning.note)
            except LogBroken as error:
                raise Invalid.at("note", str(error)) from None
            size = theirs.head.size
            if size == 0:
                raise Invalid.at("note", "its size is 0: no exchange is in it")
            segments.check_present(db, grant, size - 1)
            if audit_log.root_at(db, grant, size) != theirs.head.root:
                raise StateConflict("the checkpoint is not of this history: compare exports of both sides")
            if (pinned := checkpoints.key_of(db, grant)) is None:
                checkpoints.pin(db, grant, verifier.vkey, self._context.clock())
            elif not _follows(pinned, verifier, countersigning.note):
                raise StateConflict("this grant is countersigned with another key: ask the owner for a new grant")
            if checkpoints.COUNTERSIGNATURES.at(db, grant, size) is None:
                row = Countersignature(size, countersigning.note)
                checkpoints.COUNTERSIGNATURES.add(db, grant, row, created_at=stamp(self._context.clock()))
            details = {"grant_id": grant, "size": size, "root": theirs.head.root, "note": countersigning.note}
            reply = wire.Countersigned(grant_id=grant, size=size, time=time)
            return Effect(reply, "checkpoint.countersigned", details)

        return self._context.idempotency.once(request, effect)

    def gauges(self) -> Figures:
        """How many bytes grants added to the logs, and how near they are to their quotas."""
        quotas, read = self._context.audit_trail.quotas, self._context.database.read
        about = "Bytes that grants added to the logs and stored replies, in steps of 1 MiB."

        def added() -> int:
            with read() as db:
                return day_counts.total(db) >> 20 << 20

        def share() -> float:
            with read() as db:
                return quotas.share_max(db)

        yield gauge("blindopt_log_bytes", about, added, rises=True)
        about = "Largest share of a grant's log quota that is used today, rounded down to a tenth."
        yield gauge("blindopt_log_quota_share_max", about, share)
        about = "Requests that were refused because their grant's log quota was reached."
        yield gauge("blindopt_log_quota_refused", about, lambda: quotas.refused, rises=True)

    def _granted(self, db: Connection, kind: str, token: Token, who: Principal) -> Effect:
        reply = wire.GrantReply(
            id=who.id,
            kid=token.kid,
            name=who.name,
            study_id=who.study_id or "",
            token=token.text,
            sandbox=bool(store.dataset_of(db, who.study_id or "").sandbox),
            expires_at=moment(tokens.find(db, token.kid).expires_at),
            url=self._settings.address,
            log_key=self._context.signer.verifier.vkey,
        )
        return Effect(reply, kind, {"study_id": reply.study_id, "grant_id": who.id})

    def _grant_view(self, db: Connection, rows: list[Any]) -> wire.GrantView:
        counted, quotas = (
            day_counts.find(db, rows[0].principal, self._context.clock()),
            self._context.audit_trail.quotas,
        )
        shown = [self._token_view(row) for row in rows]
        states = {token.state for token in shown}
        return wire.GrantView(
            id=rows[0].principal,
            name=rows[0].name,
            study_id=rows[0].study_id,
            state="live" if "live" in states else "expired" if "expired" in states else "revoked",
            tokens=shown,
            sandbox=bool(store.dataset_of(db, rows[0].study_id).sandbox),
            key=checkpoints.key_of(db, rows[0].principal),
            log_bytes_today=counted.amount,
            log_bytes=counted.total,
            log_bytes_per_day=quotas.per_day if counted.most is None else counted.most,
        )

    def _token_view(self, row: Any) -> wire.TokenView:
        live = tokens.is_live(row, self._context.clock())
        return wire.TokenView(
            kid=row.kid,
            state="revoked" if row.revoked_at else "live" if live else "expired",
            created_at=moment(row.created_at),
            expires_at=moment(row.expires_at),
            last_used_at=moment(row.last_used_at) if row.last_used_at else None,
        )


def _follows(pinned: str, key: Verifier, note: str) -> bool:
    """Whether a key that countersigned a note is the pinned one, or followed it."""
    try:
        return Verifier.parse(pinned).countersigner(note)[2] == key
    except LogBroken:
        return False
