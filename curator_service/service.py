"""The curator's use cases, without HTTP."""

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from curator_service import datasets, store
from curator_service.datasets import Table, read_csv, read_parquet
from curator_service.measurement.column import measure
from curator_service.privacy import entropy
from curator_service.privacy.guarantees import guarantee
from curator_service.release.mechanism import Assessment, Mechanism
from curator_service.release.registry import mechanism_of
from curator_service.scaling import ScaledRows
from curator_service.settings import Settings
from curator_service.vault import Vault
from shared import wire
from shared.audit import sha256
from shared.errors import Invalid, NotFound, StateConflict, StillRunning, StudyNotOpen, UnknownRow
from shared.serving.desk import Asked, Desk, Effect
from shared.serving.store.database import Connection
from shared.serving.store.tables import Log, StoredReply, Tokens, moment, stamp


@dataclass(frozen=True, slots=True)
class Upload:
    """What an owner says of a file."""

    name: str
    public: bool
    columns: list[str] | None
    filename: str


class Curator:
    """Everything that may see a raw row. Safe to call from several threads."""

    def __init__(self, desk: Desk, vault: Vault, settings: Settings) -> None:
        self.desk = desk
        self._vault = vault
        self._limits = wire.Limits(rows_per_query=settings.query_rows_max, plays_per_row=settings.query_plays_max)
        self._dataset_limits = datasets.Limits(settings.dataset_rows_max, settings.dataset_columns_max)
        self._import_dir = settings.import_dir
        self._recover()

    @property
    def limits(self) -> wire.Limits:
        """What one query may ask."""
        return self._limits

    def _recover(self) -> None:
        """Take back releases that a crash interrupted: nothing of them was stored or left the house."""

        def work(db: Connection) -> None:
            for row in store.releasing(db):
                store.change(db, store.studies, row.id, state="draft", releasing_key=None)
                self._log(db, "release.abandoned", "curator", study_id=row.id)

        self.desk.database.write(work)

    def _log(self, db: Connection, kind: str, actor: str, **details: Any) -> None:
        Log.append(db, kind, actor=actor, now=self.desk.clock(), details=details)

    # --- datasets ---------------------------------------------------------------------------------

    def register(self, asked: Asked, upload: Upload, file: BinaryIO) -> StoredReply:
        """Check a whole file and store its numbers. Raises DatasetInvalid, and stores nothing."""
        digest = _digest(file)
        asked = _with_body(asked, upload, digest)
        if (found := self.desk.earlier(asked)) is not None:
            return found
        read = read_parquet if upload.filename.lower().endswith(".parquet") else read_csv
        table = read(file, self._dataset_limits, upload.columns)
        identity = _new_id("ds")
        self._vault.keep_dataset(identity, table.values)

        def effect(db: Connection) -> Effect:
            store.insert(
                db,
                store.datasets,
                id=identity,
                name=upload.name,
                public=int(upload.public),
                rows=len(table.values),
                columns=json.dumps([c.model_dump() for c in _columns(table)]),
                dropped=json.dumps(table.dropped),
                sha256=digest,
                created_at=stamp(self.desk.clock()),
            )
            view = _dataset_view(store.find(db, store.datasets, identity))
            return Effect(view, "dataset.registered", {"dataset_id": identity, "public": upload.public})

        try:
            reply = self.desk.once(asked, effect)
        except BaseException:
            self._vault.drop(identity)
            raise
        if reply.replayed:  # two requests with one key at once: the other one's file counts
            self._vault.drop(identity)
        return reply

    def import_path(self, name: str) -> Path:
        """A file of the import folder by its bare name. Raises NotFound."""
        path = self._import_dir / name if self._import_dir is not None else None
        if path is None or Path(name).name != name or path.is_symlink() or not path.is_file():
            raise NotFound("the import folder holds no such file, or none is configured")
        return path

    def dataset(self, identity: str) -> wire.DatasetView:
        """One dataset."""
        with self.desk.database.read() as db:
            return _dataset_view(store.find(db, store.datasets, identity))

    def datasets(self, after: int, limit: int) -> list[tuple[int, wire.DatasetView]]:
        """Datasets with their sequence numbers."""
        with self.desk.database.read() as db:
            return [(r.seq, _dataset_view(r)) for r in store.page(db, store.datasets, after=after, limit=limit)]

    def archive(self, asked: Asked, identity: str) -> StoredReply:
        """Allow no new study on a dataset; studies that exist go on."""

        def effect(db: Connection) -> Effect:
            if store.find(db, store.datasets, identity).archived_at is None:
                store.change(db, store.datasets, identity, archived_at=stamp(self.desk.clock()))
            view = _dataset_view(store.find(db, store.datasets, identity))
            return Effect(view, "dataset.archived", {"dataset_id": identity}, 200)

        return self.desk.once(asked, effect)

    # --- studies ----------------------------------------------------------------------------------

    def create_study(self, asked: Asked, spec: wire.StudyCreate) -> StoredReply:
        """Make a draft. Raises Invalid where the study does not fit its dataset."""

        def effect(db: Connection) -> Effect:
            dataset = _dataset_view(store.find(db, store.datasets, spec.dataset_id))
            _check_fit(spec, dataset)
            identity = _new_id("std")
            store.insert(
                db,
                store.studies,
                id=identity,
                dataset_id=spec.dataset_id,
                state="draft",
                spec=spec.model_dump_json(),
                created_at=stamp(self.desk.clock()),
            )
            view = self._owner_view(db, identity)
            details = {"study_id": identity, "dataset_id": spec.dataset_id, "mechanism": spec.release.mechanism}
            return Effect(view, "study.created", details)

        return self.desk.once(asked, effect)

    def study(self, identity: str) -> wire.StudyOwnerView:
        """A study as its owner sees it."""
        with self.desk.database.read() as db:
            return self._owner_view(db, identity)

    def studies(self, after: int, limit: int) -> list[tuple[int, wire.StudyOwnerView]]:
        """Studies with their sequence numbers."""
        with self.desk.database.read() as db:
            found = store.page(db, store.studies, after=after, limit=limit)
            return [(row.seq, self._owner_view(db, row.id)) for row in found]

    def close_study(self, asked: Asked, identity: str) -> StoredReply:
        """Refuse queries from now on; candidates that left cannot come back."""

        def effect(db: Connection) -> Effect:
            row = store.find(db, store.studies, identity)
            if row.state not in ("open", "closed"):
                raise StateConflict(f"the study is {row.state}: only an open one can be closed")
            store.change(db, store.studies, identity, state="closed")
            return Effect(self._owner_view(db, identity), "study.closed", {"study_id": identity}, 200)

        return self.desk.once(asked, effect)

    def _owner_view(self, db: Connection, identity: str) -> wire.StudyOwnerView:
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

    # --- releases ---------------------------------------------------------------------------------

    def preview(self, identity: str) -> wire.ReleaseReport:
        """What a release would be; draws and changes nothing. For the owner alone."""
        spec = self.study(identity).spec
        rows = self._rows(spec, in_secret_order=False)
        mechanism = mechanism_of(spec.release)
        return _report(spec, rows, mechanism, mechanism.assess(rows))

    def release(self, asked: Asked, identity: str) -> StoredReply:
        """Draw Z and publish it, once in the life of a study; the study is then open."""
        if (found := self.desk.earlier(asked)) is not None:
            return found
        spec = self._begin_release(asked, identity)
        release_id = _new_id("rel")
        try:
            rows = self._rows(spec, in_secret_order=True)
            mechanism = mechanism_of(spec.release)
            drawn = self._vault.begin_release(release_id, rows.n, mechanism.columns(rows.d))
            report = _report(spec, rows, mechanism, mechanism.draw(rows, drawn))
            del drawn  # closes the memory map before it is read back
            digest = self._vault.keep_release(release_id, rows.order)
            return self.desk.once(asked, lambda db: self._publish(db, identity, release_id, digest, report))
        except BaseException:
            self.desk.database.write(lambda db: self._abandon(db, identity, asked))
            self._vault.drop(release_id)
            raise

    def _begin_release(self, asked: Asked, identity: str) -> wire.StudyCreate:
        key = f"{asked.principal.kid} {self.desk.key_of(asked)[0]}"

        def work(db: Connection) -> wire.StudyCreate:
            row = store.find(db, store.studies, identity)
            if row.state == "releasing" and row.releasing_key == key:
                raise StillRunning("this release is being drawn")
            if row.state != "draft":
                raise StateConflict(f"the study is {row.state}: a study is released once, from its draft")
            store.change(db, store.studies, identity, state="releasing", releasing_key=key)
            self._log(db, "release.begun", asked.principal.actor, study_id=identity)
            return wire.StudyCreate.model_validate_json(row.spec)

        return self.desk.database.write(work)

    def _publish(
        self, db: Connection, identity: str, release_id: str, digest: str, report: wire.ReleaseReport
    ) -> Effect:
        now = stamp(self.desk.clock())
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
        view = self._owner_view(db, identity)
        details = {
            "study_id": identity,
            "release_id": release_id,
            "sha256": digest,
            "mechanism": view.spec.release.mechanism,
            "guarantee": view.guarantee,
        }
        return Effect(view, "study.released", details, 200)

    def _abandon(self, db: Connection, identity: str, asked: Asked) -> None:
        if store.find(db, store.studies, identity).state == "releasing":
            store.change(db, store.studies, identity, state="draft", releasing_key=None)
            self._log(db, "release.abandoned", asked.principal.actor, study_id=identity)

    def _rows(self, spec: wire.StudyCreate, *, in_secret_order: bool) -> ScaledRows:
        values = self._vault.dataset(spec.dataset_id)
        names = [column.name for column in self.dataset(spec.dataset_id).columns]
        n = len(values)
        return ScaledRows(
            values=values,
            places=[names.index(feature.column) for feature in spec.features],
            features=spec.features,
            order=entropy.permutation(n) if in_secret_order else np.arange(n),
        )

    # --- grants -----------------------------------------------------------------------------------

    def grant(self, asked: Asked, study_id: str, grant: wire.GrantCreate) -> StoredReply:
        """A token for one modeler. Its stored reply is sealed, so that a retry can be answered."""

        def effect(db: Connection) -> Effect:
            store.find(db, store.studies, study_id)
            token, principal = self.desk.issue_in(
                db, "modeler", grant.name, days=grant.expires_in_days, actor=asked.principal.actor, study_id=study_id
            )
            view = _grant_view(Tokens.find(db, principal.kid))
            reply = wire.GrantReply(token=token.text, **view.model_dump(exclude={"state"}))
            return Effect(reply, "grant.created", {"study_id": study_id, "kid": principal.kid})

        return self.desk.once(asked, effect, secret=True)

    def grants(self, study_id: str, after: int, limit: int) -> list[tuple[int, wire.GrantView]]:
        """The grants of a study with their sequence numbers."""
        self.study(study_id)
        return [(r.seq, _grant_view(r)) for r in self.desk.tokens(study_id=study_id, after=after, limit=limit)]

    def revoke(self, asked: Asked, study_id: str, kid: str) -> StoredReply:
        """Refuse a grant's token from now on."""

        def effect(db: Connection) -> Effect:
            row = self.desk.withdraw_in(db, kid, study_id=study_id, actor=asked.principal.actor)
            return Effect(_grant_view(row), "grant.revoked", {"study_id": study_id, "kid": kid}, 200)

        return self.desk.once(asked, effect)

    # --- what a modeler may do --------------------------------------------------------------------

    def study_for_modeler(self, identity: str) -> wire.StudyView:
        """All that a modeler may know of a study. StudyNotOpen before the release."""
        with self.desk.database.read() as db:
            view, release = self._released(db, identity)
        spec, mechanism = view.spec, mechanism_of(view.spec.release)
        private = None if isinstance(spec.release, wire.IdentityRelease) else spec.release
        return wire.StudyView(
            id=identity,
            state="closed" if view.state == "closed" else "open",
            n=release.n,
            r=release.r,
            release_id=release.id,
            release_sha256=release.sha256,
            mechanism=mechanism.name,
            status=mechanism.status,
            epsilon=private.epsilon if private else None,
            delta=private.delta if private else None,
            sensitivity=private.sensitivity if private else None,
            noise=mechanism.noise(len(spec.features)),
            answers=spec.answers,
            direction=spec.measurement.direction,
            measurement_noise_variance=spec.measurement.noise_variance,
            kernel=spec.kernel,
            limits=self._limits,
            guarantee=view.guarantee,
        )

    def candidates(self, identity: str) -> tuple[Path, str]:
        """The file of Z and its digest."""
        with self.desk.database.read() as db:
            _, release = self._released(db, identity)
        return self._vault.candidates(release.id), release.sha256

    def ask(self, asked: Asked, identity: str, request: wire.QueryRequest) -> StoredReply:
        """Measure rows: effect, reply and record are one transaction. Answers never change after."""

        def effect(db: Connection) -> Effect:
            view, release = self._released(db, identity)
            if view.state != "open":
                raise StudyNotOpen("the study is closed: it answers no more queries")
            self._check_query(request, release.n)
            query_id, now = _new_id("qry"), self.desk.clock()
            outcomes = self._outcomes(view.spec, release.id, [item.row for item in request.rows])
            reply = wire.QueryReply(
                id=query_id,
                study_id=identity,
                state="answered",
                created_at=now,
                answers=measure(outcomes, request.rows, view.spec.measurement),
                salt=secrets.token_hex(16),
            )
            store.insert(
                db,
                store.queries,
                id=query_id,
                study_id=identity,
                kid=asked.principal.kid,
                request=request.model_dump_json(),
                reply=reply.model_dump_json().encode(),
                created_at=stamp(now),
            )
            return Effect(reply, "exchange", {"query_id": query_id})

        return self.desk.once(asked, effect)

    def query(self, study_id: str, identity: str) -> StoredReply:
        """The stored reply of a query."""
        with self.desk.database.read() as db:
            row = store.find(db, store.queries, identity)
        if row.study_id != study_id:
            raise NotFound("there is no such query")
        return StoredReply(200, row.reply)

    def _released(self, db: Connection, identity: str) -> tuple[wire.StudyOwnerView, Any]:
        view = self._owner_view(db, identity)
        release = store.release_of(db, identity)
        if release is None:
            raise StudyNotOpen("the study has not released its candidates yet")
        return view, release

    def _check_query(self, request: wire.QueryRequest, n: int) -> None:
        if len(request.rows) > self._limits.rows_per_query:
            raise Invalid(
                f"a query may ask {self._limits.rows_per_query} rows at most",
                [{"field": "rows", "message": "too many"}],
            )
        for place, item in enumerate(request.rows):
            if item.plays > self._limits.plays_per_row:
                fault = {"field": f"rows.{place}.plays", "message": "too many"}
                raise Invalid(f"a row may be played {self._limits.plays_per_row} times at most", [dict(fault)])
            if item.row >= n:
                raise UnknownRow(f"rows.{place}.row: the release has rows 0 to {n - 1}")

    def _outcomes(self, spec: wire.StudyCreate, release_id: str, rows: Sequence[int]) -> Any:
        names = [column.name for column in self.dataset(spec.dataset_id).columns]
        originals = self._vault.order(release_id)[list(rows)]
        return self._vault.dataset(spec.dataset_id)[originals, names.index(spec.measurement.column)]


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(8)}"


def _digest(file: BinaryIO) -> str:
    sha = hashlib.sha256()
    while chunk := file.read(1 << 20):
        sha.update(chunk)
    file.seek(0)
    return sha.hexdigest()


def _with_body(asked: Asked, upload: Upload, digest: str) -> Asked:
    # A multipart body has a random boundary: what was asked is the file and what is said of it.
    said = json.dumps([*asdict(upload).values(), digest])
    return Asked(asked.principal, asked.request_id, asked.method, asked.path, asked.key, sha256(said.encode()))


def _columns(table: Table) -> list[wire.Column]:
    low, high = table.values.min(axis=0), table.values.max(axis=0)
    return [
        wire.Column(name=name, minimum=float(a), maximum=float(b))
        for name, a, b in zip(table.names, low, high, strict=True)
    ]


def _dataset_view(row: Any) -> wire.DatasetView:
    return wire.DatasetView(
        id=row.id,
        name=row.name,
        public=bool(row.public),
        state="archived" if row.archived_at else "active",
        rows=row.rows,
        columns=[wire.Column(**column) for column in json.loads(row.columns)],
        dropped=json.loads(row.dropped),
        sha256=row.sha256,
        created_at=moment(row.created_at),
    )


def _grant_view(row: Any) -> wire.GrantView:
    return wire.GrantView(
        id=row.kid,
        name=row.name,
        study_id=row.study_id,
        state="revoked" if row.revoked_at else "live",
        expires_at=moment(row.expires_at),
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
