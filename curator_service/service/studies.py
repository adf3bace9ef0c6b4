"""The owner's studies: drafts, previews, releases, grants."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from curator_service import store
from curator_service.privacy import entropy, ledger
from curator_service.privacy.guarantees import guarantee
from curator_service.release.mechanism import Assessment, Mechanism
from curator_service.release.registry import mechanism_of
from curator_service.scaling import ScaledRows
from curator_service.service.datasets import dataset_view
from curator_service.store import ledger as lines
from curator_service.vault import Vault, new_id
from shared import wire
from shared.audit import sha256
from shared.errors import Invalid, NotFound, StateConflict, StillRunning
from shared.serving.desk import Asked, Desk, Effect
from shared.serving.store import logs, notes, tokens
from shared.serving.store.base import moment, stamp
from shared.serving.store.database import Connection
from shared.serving.store.replies import StoredReply
from shared.serving.tokens import Principal, Token


class Studies:
    """Studies from draft to closed.

    A release that a crash interrupted is taken back at the next start: nothing of it was stored or left
    the house.
    """

    def __init__(self, desk: Desk, vault: Vault) -> None:
        self._desk = desk
        self._vault = vault
        self._drawing: set[str] = set()
        desk.database.write(self._recover)

    def _recover(self, db: Connection) -> None:
        for row in store.releasing(db):
            self._abandon(db, row.id, "curator")

    def _log(self, db: Connection, kind: str, actor: str, **details: Any) -> None:
        logs.append(db, kind, actor=actor, now=self._desk.clock(), details=details)

    # --- drafts -----------------------------------------------------------------------------------

    def create(self, asked: Asked, spec: wire.StudyCreate) -> StoredReply:
        """Make a draft. Raises Invalid where the study does not fit its dataset."""

        def effect(db: Connection) -> Effect:
            _check_fit(spec, dataset_view(store.find(db, store.datasets, spec.dataset_id)))
            mechanism_of(spec)
            identity = new_id("std")
            store.insert(
                db,
                store.studies,
                id=identity,
                dataset_id=spec.dataset_id,
                state="draft",
                spec=(text := spec.model_dump_json()),
                created_at=stamp(self._desk.clock()),
            )
            details = {
                "study_id": identity,
                "dataset_id": spec.dataset_id,
                "mechanism": spec.release.mechanism,
                "spec_sha256": sha256(text.encode()),
            }
            return Effect(_owner_view(db, identity), "study.created", details)

        return self._desk.once(asked, effect)

    def one(self, identity: str) -> wire.StudyOwnerView:
        """A study as its owner sees it."""
        with self._desk.database.read() as db:
            return _owner_view(db, identity)

    def page(self, after: int, limit: int) -> list[tuple[int, wire.StudyOwnerView]]:
        """Studies with their sequence numbers."""
        with self._desk.database.read() as db:
            found = store.page(db, store.studies, after=after, limit=limit)
            return [(row.seq, _owner_view(db, row.id)) for row in found]

    def close(self, asked: Asked, identity: str) -> StoredReply:
        """Refuse queries from now on; candidates that left cannot come back."""

        def effect(db: Connection) -> Effect:
            row = store.find(db, store.studies, identity)
            if row.state not in ("open", "closed"):
                raise StateConflict(f"the study is {row.state}: only an open one can be closed")
            store.change(db, store.studies, identity, state="closed")
            return Effect(_owner_view(db, identity), "study.closed", {"study_id": identity}, 200)

        return self._desk.once(asked, effect)

    # --- releases ---------------------------------------------------------------------------------

    def preview(self, identity: str) -> wire.ReleaseReport:
        """What a release would be; draws and changes nothing. For the owner alone."""
        spec = self.one(identity).spec
        rows = self._rows(spec, in_secret_order=False)
        mechanism = mechanism_of(spec)
        return _report(spec, rows, mechanism, mechanism.assess(rows))

    def release(self, asked: Asked, identity: str) -> StoredReply:
        """Draw Z and publish it, once in the life of a study; the study is then open."""
        if (found := self._desk.earlier(asked)) is not None:
            return found
        try:
            spec = self._begin_release(asked, identity)
        except StateConflict:
            if (found := self._desk.earlier(asked)) is not None:  # published since we looked
                return found
            raise
        release_id = new_id("rel")
        try:
            rows = self._rows(spec, in_secret_order=True)
            mechanism = mechanism_of(spec)
            drawn = self._vault.begin_release(release_id, rows.n, mechanism.columns(rows.d))
            report = _report(spec, rows, mechanism, mechanism.draw(rows, drawn))
            del drawn  # closes the memory map before it is read back
            digest = self._vault.keep_release(release_id, rows.order)
            return self._desk.once(asked, lambda db: self._publish(db, identity, release_id, digest, report))
        except BaseException:
            self._vault.drop(release_id)  # first: it may be what fills the disk
            self._desk.database.write(lambda db: self._abandon(db, identity, asked.principal.actor))
            raise
        finally:
            self._drawing.discard(identity)

    def _begin_release(self, asked: Asked, identity: str) -> wire.StudyCreate:
        key = f"{asked.principal.id} {self._desk.key_of(asked)[0]}"

        begun = False

        def work(db: Connection) -> wire.StudyCreate:
            nonlocal begun
            row = store.find(db, store.studies, identity)
            drawing = identity in self._drawing
            if drawing and row.releasing_key == key:
                raise StillRunning("this release is being drawn")
            if row.state != "draft" and (drawing or row.state != "releasing"):
                raise StateConflict(f"the study is {row.state}: a study is released once, from its draft")
            self._abandon(db, identity, "curator")  # one that was given up when not even that could be stored
            spec = wire.StudyCreate.model_validate_json(row.spec)
            self._charge(db, asked, identity, spec)
            store.change(db, store.studies, identity, state="releasing", releasing_key=key)
            self._log(db, "release.begun", asked.principal.actor, study_id=identity)
            self._drawing.add(identity)
            begun = True
            return spec

        try:
            return self._desk.database.write(work)
        except BaseException:
            if begun:  # and undone: its commit failed
                self._drawing.discard(identity)
            raise

    def _charge(self, db: Connection, asked: Asked, identity: str, spec: wire.StudyCreate) -> None:
        """Charge the release to every row, once: what a crash left half drawn was never seen."""
        if lines.is_released(db, identity):
            return
        charge = ledger.charge_release(spec, lines.balance(db, identity))
        lines.add(db, identity, "release", [charge], query_id=None, at=stamp(self._desk.clock()))
        cost = ledger.text(charge.cost)
        self._log(db, "charge", asked.principal.actor, study_id=identity, epsilon=cost, rows="all")

    def _publish(
        self, db: Connection, identity: str, release_id: str, digest: str, report: wire.ReleaseReport
    ) -> Effect:
        now = stamp(self._desk.clock())
        store.insert(
            db,
            store.releases,
            id=release_id,
            study_id=identity,
            sha256=digest,
            n=report.n,
            r=report.r,
            report=report.model_dump_json(),
            created_at=now,
        )
        store.change(db, store.studies, identity, state="open", opened_at=now, releasing_key=None)
        view = _owner_view(db, identity)
        details = {
            "study_id": identity,
            "release_id": release_id,
            "sha256": digest,
            "mechanism": view.spec.release.mechanism,
            "guarantee": view.guarantee,
        }
        return Effect(view, "study.released", details, 200)

    def _abandon(self, db: Connection, identity: str, actor: str) -> None:
        if store.find(db, store.studies, identity).state == "releasing":
            store.change(db, store.studies, identity, state="draft", releasing_key=None)
            self._log(db, "release.abandoned", actor, study_id=identity)

    def _rows(self, spec: wire.StudyCreate, *, in_secret_order: bool) -> ScaledRows:
        with self._desk.database.read() as db:
            columns = json.loads(store.find(db, store.datasets, spec.dataset_id).columns)
        names = [column["name"] for column in columns]
        values = self._vault.dataset(spec.dataset_id)
        return ScaledRows(
            values=values,
            places=[names.index(feature.column) for feature in spec.features],
            features=spec.features,
            order=entropy.permutation(len(values)) if in_secret_order else np.arange(len(values)),
        )

    # --- grants -----------------------------------------------------------------------------------

    def grant(self, asked: Asked, study_id: str, grant: wire.GrantCreate) -> StoredReply:
        """A token for one modeler. Its stored reply is sealed, so that a retry can be answered."""

        def effect(db: Connection) -> Effect:
            store.find(db, store.studies, study_id)
            actor = asked.principal.actor
            token, who = self._desk.grant(db, grant.name, study_id, days=grant.expires_in_days, actor=actor)
            return Effect(_grant_reply(db, token, who), "grant.created", {"study_id": study_id, "grant_id": who.id})

        return self._desk.once(asked, effect, secret=True)

    def rotate(self, asked: Asked, study_id: str, grant_id: str, rotation: wire.Rotation) -> StoredReply:
        """A further token for a grant; the older one stays until it is revoked or expires."""

        def effect(db: Connection) -> Effect:
            actor = asked.principal.actor
            days = rotation.expires_in_days
            token, who = self._desk.rotate(db, grant_id, days=days, actor=actor, study_id=study_id)
            return Effect(_grant_reply(db, token, who), "grant.rotated", {"study_id": study_id, "grant_id": who.id})

        return self._desk.once(asked, effect, secret=True)

    def grants(self, study_id: str, after: int, limit: int) -> list[tuple[int, wire.GrantView]]:
        """The grants of a study with their sequence numbers."""
        with self._desk.database.read() as db:
            store.find(db, store.studies, study_id)
            by_grant: dict[str, list[Any]] = {}
            for row in tokens.of_study(db, study_id):
                by_grant.setdefault(row.principal, []).append(row)
            found = [rows for rows in by_grant.values() if rows[0].seq > after][:limit]
            return [(rows[0].seq, self._grant_view(db, rows)) for rows in found]

    def revoke(self, asked: Asked, study_id: str, grant_id: str, kid: str | None = None) -> StoredReply:
        """Refuse the tokens of a grant from now on, or one of them."""

        def effect(db: Connection) -> Effect:
            rows = tokens.of_principal(db, grant_id, study_id=study_id)
            chosen = [row.kid for row in rows if kid in (None, row.kid)]
            if not chosen:
                raise NotFound("the grant has no such token")
            for one in chosen:
                self._desk.withdraw(db, one, actor=asked.principal.actor)
            view = self._grant_view(db, tokens.of_principal(db, grant_id))
            return Effect(view, "grant.revoked", {"study_id": study_id, "grant_id": grant_id, "kids": chosen}, 200)

        return self._desk.once(asked, effect)

    def _grant_view(self, db: Connection, rows: list[Any]) -> wire.GrantView:
        shown = [self._token_view(row) for row in rows]
        states = {token.state for token in shown}
        return wire.GrantView(
            id=rows[0].principal,
            name=rows[0].name,
            study_id=rows[0].study_id,
            state="live" if "live" in states else "expired" if "expired" in states else "revoked",
            tokens=shown,
            key=notes.key_of(db, rows[0].principal),
        )

    def _token_view(self, row: Any) -> wire.TokenView:
        live = tokens.is_live(row, self._desk.clock())
        return wire.TokenView(
            kid=row.kid,
            state="revoked" if row.revoked_at else "live" if live else "expired",
            created_at=moment(row.created_at),
            expires_at=moment(row.expires_at),
            last_used_at=moment(row.last_used_at) if row.last_used_at else None,
        )


def restored(db: Connection, desk: Desk) -> None:
    """After a restore: charges and answers that came after the backup are lost, and could be spent again.

    So every open study is closed; its owner may open a new one.
    """
    closed = store.open_studies(db)
    for identity in closed:
        store.change(db, store.studies, identity, state="closed")
    desk.note_restored(db, {"closed_studies": closed})


def _grant_reply(db: Connection, token: Token, who: Principal) -> wire.GrantReply:
    return wire.GrantReply(
        id=who.id,
        kid=token.kid,
        name=who.name,
        study_id=who.study_id or "",
        token=token.text,
        expires_at=moment(tokens.find(db, token.kid).expires_at),
    )


def _owner_view(db: Connection, identity: str) -> wire.StudyOwnerView:
    row = store.find(db, store.studies, identity)
    spec = wire.StudyCreate.model_validate_json(row.spec)
    release = store.release_of(db, identity)
    return wire.StudyOwnerView(
        id=row.id,
        state=row.state,
        created_at=moment(row.created_at),
        opened_at=moment(row.opened_at) if row.opened_at else None,
        spec=spec,
        guarantee=guarantee(spec),
        release_id=release.id if release else None,
        release_sha256=release.sha256 if release else None,
        report=wire.ReleaseReport.model_validate_json(release.report) if release else None,
    )


def _check_fit(spec: wire.StudyCreate, dataset: wire.DatasetView) -> None:
    """Whether the study can be made from its dataset; Invalid names each field that cannot."""
    faults: list[dict[str, object]] = []
    known = {column.name for column in dataset.columns}
    seen: set[str] = set()
    for place, feature in enumerate(spec.features):
        field = f"features.{place}.column"
        if feature.column not in known:
            faults.append({"field": field, "message": "the dataset has no such column"})
        if feature.column in seen:
            faults.append({"field": field, "message": "this column is a feature already"})
        seen.add(feature.column)
    if spec.measurement.column not in known:
        faults.append({"field": "measurement.column", "message": "the dataset has no such column"})
    if spec.measurement.column in seen:
        faults.append({"field": "measurement.column", "message": "a feature cannot be the measurement too"})
    if isinstance(spec.release, wire.IdentityRelease) and not dataset.public:
        faults.append({"field": "release.mechanism", "message": "identity needs a dataset that was declared public"})
    faults += ledger.faults(spec)
    if faults:
        raise Invalid("the study cannot be made as it is: errors says where", faults)
    if dataset.state == "archived":
        raise StateConflict("the dataset is archived: it takes no new study")


def _report(spec: wire.StudyCreate, rows: ScaledRows, mechanism: Mechanism, found: Assessment) -> wire.ReleaseReport:
    sensitivity = None if isinstance(spec.release, wire.IdentityRelease) else spec.release.sensitivity
    sd = mechanism.noise(rows.d).sd
    return wire.ReleaseReport(
        guarantee=guarantee(spec),
        status=mechanism.status,
        n=rows.n,
        r=mechanism.columns(rows.d),
        noise_sd=sd,
        features=[
            wire.FeatureMeaning(
                column=feature.column,
                # Only a mechanism whose claim holds protects a change of any size.
                sensitivity=sensitivity * feature.unit if sensitivity and mechanism.status == "sound" else None,
                noise_sd=sd * feature.unit if sd is not None else None,
            )
            for feature in spec.features
        ],
        **asdict(found),
    )
