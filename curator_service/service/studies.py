"""The owner's studies: drafts, previews, releases, grants."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from curator_service import store
from curator_service.privacy import entropy
from curator_service.privacy.guarantees import guarantee
from curator_service.release.mechanism import Assessment, Mechanism
from curator_service.release.registry import mechanism_of
from curator_service.scaling import ScaledRows
from curator_service.service.datasets import dataset_view
from curator_service.vault import Vault, new_id
from shared import wire
from shared.errors import Invalid, StateConflict, StillRunning
from shared.serving.desk import Asked, Desk, Effect
from shared.serving.store.database import Connection
from shared.serving.store.tables import Log, StoredReply, Tokens, moment, stamp


class Studies:
    """Studies from draft to closed.

    A release that a crash interrupted is taken back at the next start: nothing of it was stored or left
    the house.
    """

    def __init__(self, desk: Desk, vault: Vault) -> None:
        self._desk = desk
        self._vault = vault
        desk.database.write(self._recover)

    def _recover(self, db: Connection) -> None:
        for row in store.releasing(db):
            self._abandon(db, row.id, "curator")

    def _log(self, db: Connection, kind: str, actor: str, **details: Any) -> None:
        Log.append(db, kind, actor=actor, now=self._desk.clock(), details=details)

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
                spec=spec.model_dump_json(),
                created_at=stamp(self._desk.clock()),
            )
            details = {"study_id": identity, "dataset_id": spec.dataset_id, "mechanism": spec.release.mechanism}
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
            self._desk.database.write(lambda db: self._abandon(db, identity, asked.principal.actor))
            self._vault.drop(release_id)
            raise

    def _begin_release(self, asked: Asked, identity: str) -> wire.StudyCreate:
        key = f"{asked.principal.kid} {self._desk.key_of(asked)[0]}"

        def work(db: Connection) -> wire.StudyCreate:
            row = store.find(db, store.studies, identity)
            if row.state == "releasing" and row.releasing_key == key:
                raise StillRunning("this release is being drawn")
            if row.state != "draft":
                raise StateConflict(f"the study is {row.state}: a study is released once, from its draft")
            store.change(db, store.studies, identity, state="releasing", releasing_key=key)
            self._log(db, "release.begun", asked.principal.actor, study_id=identity)
            return wire.StudyCreate.model_validate_json(row.spec)

        return self._desk.database.write(work)

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
            token, principal = self._desk.issue_in(
                db, "modeler", grant.name, days=grant.expires_in_days, actor=asked.principal.actor, study_id=study_id
            )
            view = _grant_view(Tokens.find(db, principal.kid))
            reply = wire.GrantReply(token=token.text, **view.model_dump(exclude={"state"}))
            return Effect(reply, "grant.created", {"study_id": study_id, "kid": principal.kid})

        return self._desk.once(asked, effect, secret=True)

    def grants(self, study_id: str, after: int, limit: int) -> list[tuple[int, wire.GrantView]]:
        """The grants of a study with their sequence numbers."""
        self.one(study_id)
        return [(r.seq, _grant_view(r)) for r in self._desk.tokens(study_id=study_id, after=after, limit=limit)]

    def revoke(self, asked: Asked, study_id: str, kid: str) -> StoredReply:
        """Refuse a grant's token from now on."""

        def effect(db: Connection) -> Effect:
            row = self._desk.withdraw_in(db, kid, study_id=study_id, actor=asked.principal.actor)
            return Effect(_grant_view(row), "grant.revoked", {"study_id": study_id, "kid": kid}, 200)

        return self._desk.once(asked, effect)


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
        guarantee=guarantee(spec.release, len(spec.features)),
        release_id=release.id if release else None,
        release_sha256=release.sha256 if release else None,
        report=wire.ReleaseReport.model_validate_json(release.report) if release else None,
    )


def _grant_view(row: Any) -> wire.GrantView:
    state: Any = "revoked" if row.revoked_at else "live"
    expires = moment(row.expires_at)
    return wire.GrantView(id=row.kid, name=row.name, study_id=row.study_id, state=state, expires_at=expires)


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
    if faults:
        raise Invalid("the study does not fit its dataset: errors says where", faults)
    if dataset.state == "archived":
        raise StateConflict("the dataset is archived: it takes no new study")


def _report(spec: wire.StudyCreate, rows: ScaledRows, mechanism: Mechanism, found: Assessment) -> wire.ReleaseReport:
    sensitivity = None if isinstance(spec.release, wire.IdentityRelease) else spec.release.sensitivity
    sd = mechanism.noise(rows.d).sd
    return wire.ReleaseReport(
        guarantee=guarantee(spec.release, rows.d),
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
