"""The owner's studies: drafts, listings, closing."""

from typing import Any

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import Invalid, NotFound, StateConflict
from curator_service import store
from curator_service.budget import ledger, ledger_lines
from curator_service.budget.file_use import FileUses
from curator_service.budget.views import outlook
from curator_service.datasets import records
from curator_service.datasets.columns import no_column
from curator_service.datasets.datasets import dataset_view
from curator_service.privacy import accounting, answers, cautions, prices
from curator_service.privacy.guarantees import belief, not_protected, whole
from curator_service.releases.mechanisms import groups
from curator_service.releases.mechanisms.registry import planned_mechanism, with_columns
from curator_service.releases.report import release_status
from curator_service.settings import Settings
from curator_service.store import Reasons, reasons
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.context.housekeeping import Housekeeping
from service_kit.context.request import Effect, RequestContext
from service_kit.identity.tokens import new_id
from service_kit.store import tokens
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection
from service_kit.store.labels import EVERYTHING, ListFilter, tags_in_use, tags_of
from service_kit.store.stored_replies import StoredReply

NO_MEASURER = "this curator has no measurer: set MEASURER_URL and MEASURER_SECRET_FILE where it runs, or take inbox"
ONE_VALUE = (
    "answer needs measurements of people or a system, or a dataset that was declared public: where y is a column, one "
    "stored value is behind every answer about its record, so take row"
)


class Studies:
    """Creates, changes, lists and closes studies. ``Releases`` opens them."""

    def __init__(self, context: ServiceContext, uses: FileUses, settings: Settings, vault: Vault) -> None:
        self._context = context
        self._vault = vault
        self._uses = uses
        self._has_measurer = settings.measurer_url is not None
        self.housekeeping = Housekeeping(context, store.studies, "study", store.find, owner_view)

    def create(self, request: RequestContext, spec: wire.StudyCreate) -> StoredReply:
        """Create a draft. Raises Invalid if the study does not fit its dataset."""

        def effect(db: Connection) -> Effect:
            details = add_draft(db, self._fitted(db, spec), stamp(self._context.clock()))
            return Effect(self._with_account(db, details["study_id"]), "study.created", details)

        return self._context.idempotency.once(request, effect)

    def change(self, request: RequestContext, study_id: str, change: wire.StudyChange) -> StoredReply:
        """Replace a draft that was never charged by another. Raises Invalid, NotFound, StateConflict.

        Forecasts of the old draft are deleted unless they hold for the new one too.
        """

        def effect(db: Connection) -> Effect:
            row = store.find(db, store.studies, study_id)
            check_changeable(db, row)
            if sha256(row.spec.encode()) != change.replaces:
                raise StateConflict("the draft was changed since you read it: read it again, and change that")
            spec = self._fitted(db, change.study)
            dropped = 0
            if not _forecasts_alike(wire.StudyCreate.model_validate_json(row.spec), spec):
                if store.count_running_jobs(db, store.forecasts, study_id):
                    raise StateConflict("a forecast of the draft is under way: cancel it, or let it end first")
                dropped = store.drop_forecasts(db, study_id)
            store.change(db, store.studies, study_id, dataset_id=spec.dataset_id, spec=spec.model_dump_json())
            details = _logged(study_id, spec) | {"replaces": change.replaces, "forecasts_dropped": dropped}
            return Effect(self._with_account(db, study_id), "study.changed", details, 200)

        return self._context.idempotency.once(request, effect)

    def _with_account(self, db: Connection, study_id: str) -> wire.StudyOwnerView:
        """A draft, which is not charged yet, with the account of its dataset."""
        view = owner_view(db, study_id)
        account = outlook(db, self._uses, view.spec, release_status(db, view.spec, None).release)
        return view.model_copy(update={"account": account})

    def _fitted(self, db: Connection, study: wire.StudyCreate) -> wire.StudyCreate:
        """The study with what follows from its dataset.

        Raises Invalid or StateConflict if it cannot be made.
        """
        spec = fitted(study, dataset_view(store.find(db, store.datasets, study.dataset_id)))
        spec = with_columns(spec, records.sample_rows(db, self._vault, spec))
        check_release_of(db, spec)
        if isinstance(spec.measurement, wire.WebhookMeasurement) and not self._has_measurer:
            raise Invalid.at("measurement.source", NO_MEASURER)
        planned_mechanism(spec)  # raises Invalid
        return spec

    def view(self, study_id: str) -> wire.StudyOwnerView:
        """A study as its owner sees it. Raises NotFound."""
        with self._context.database.read() as db:
            return owner_view(db, study_id)

    def page(
        self, after: int, limit: int, list_filter: ListFilter = EVERYTHING
    ) -> list[tuple[int, wire.StudyOwnerView]]:
        with self._context.database.read() as db:
            rows = store.page(db, store.studies, after=after, limit=limit, list_filter=list_filter)
            released = store.releases_of(db, [row.id for row in rows])
            withdrawn = reasons(db)
            datasets = store.datasets_of(db, {row.dataset_id for row in rows})
            return [
                (row.seq, view_of(db, row, released.get(row.id), withdrawn, datasets[row.dataset_id])) for row in rows
            ]

    def close(self, request: RequestContext, study_id: str) -> StoredReply:
        """Refuse queries from now on. Candidates that were downloaded stay with the modeler."""

        def effect(db: Connection) -> Effect:
            row = store.find(db, store.studies, study_id)
            if row.state not in ("open", "closed"):
                raise StateConflict(f"the study is {row.state}: only an open one can be closed")
            store.change(db, store.studies, study_id, state="closed")
            return Effect(owner_view(db, study_id), "study.closed", {"study_id": study_id}, 200)

        return self._context.idempotency.once(request, effect)

    def tags(self) -> list[str]:
        with self._context.database.read() as db:
            return tags_in_use(db, store.studies)

    def archive(self, request: RequestContext, study_id: str, *, archived: bool) -> StoredReply:
        """Archive a draft or a closed study, or take it out of the archive. Raises StateConflict for another one."""

        def check(db: Connection, row: Any) -> None:
            if row.state not in ("draft", "closed"):
                raise StateConflict(f"the study is {row.state}: close it first")

        return self.housekeeping.archive(request, study_id, check, archived=archived)

    def delete(self, request: RequestContext, study_id: str) -> StoredReply:
        """Delete a draft of which the ledger knows nothing, with its forecasts; its grants are revoked.

        Raises StateConflict for another study.
        """

        def remove(db: Connection, row: Any) -> dict[str, object]:
            if row.state != "draft":
                raise StateConflict(
                    f"the study is {row.state}: only a draft can be deleted. Close and archive it instead"
                )
            if store.has_history(db, study_id):
                raise StateConflict("the ledger has a charge or refusal of this draft, which stays: archive it instead")
            if store.count_running_jobs(db, store.forecasts, study_id):
                raise StateConflict("a forecast of the draft is under way: cancel it, or let it end first")
            for token in tokens.of_study(db, study_id):
                if token.revoked_at is None:
                    self._context.authentication.revoke(db, token.kid, actor=request.principal.actor)
            dropped = store.drop_forecasts(db, study_id)
            store.forget_draft(db, study_id)
            return {"forecasts_dropped": dropped}

        return self.housekeeping.delete(request, study_id, remove)


def add_draft(db: Connection, spec: wire.StudyCreate, created_at: str) -> dict[str, Any]:
    """Store a draft; the details for the log, with its id."""
    study_id, spec_json = new_id("std"), spec.model_dump_json()
    values = {"dataset_id": spec.dataset_id, "state": "draft", "spec": spec_json, "created_at": created_at}
    store.insert(db, store.studies, id=study_id, **values)
    return _logged(study_id, spec)


def _logged(study_id: str, spec: wire.StudyCreate) -> dict[str, Any]:
    of_spec = {"mechanism": spec.release.mechanism, "spec_sha256": sha256(spec.model_dump_json().encode())}
    return {"study_id": study_id, "dataset_id": spec.dataset_id, **of_spec}


def owner_view(db: Connection, study_id: str) -> wire.StudyOwnerView:
    """A stored study as its owner sees it."""
    return view_of(db, store.find(db, store.studies, study_id), store.release_of(db, study_id), reasons(db))


def view_of(db: Connection, row: Any, release: Any, withdrawn: Reasons, dataset: Any = None) -> wire.StudyOwnerView:
    """The same from the study's row, its release's (None before it), the reasons of withdrawals, its dataset's row."""
    spec = wire.StudyCreate.model_validate_json(row.spec)
    report = wire.ReleaseReport.model_validate_json(release.report) if release else None
    current = release_status(db, spec, report, withdrawn, dataset)
    promise = current.promise(spec)
    gaps = not_protected(spec, current.claimed)
    if report is not None:  # the view says what holds now, not what held when the report was written
        features = report.features
        if current.status == "withdrawn":  # no change of any size is protected any more
            features = [feature.model_copy(update={"sensitivity": None, "confused": None}) for feature in features]
        said = belief(current.claimed, record=whole(spec, current.release))
        price = accounting.current_price(spec, current.claimed, report.price)
        warned = cautions.of_released(spec, report.cautions, price, is_public=current.public)
        holds = {"status": current.status, "guarantee": promise, "not_protected": gaps, "features": features}
        report = report.model_copy(update=holds | {"belief": said, "price": price, "cautions": warned})
    return wire.StudyOwnerView(
        id=row.id,
        state=row.state,
        created_at=moment(row.created_at),
        opened_at=moment(row.opened_at) if row.opened_at else None,
        archived_at=moment(row.archived_at) if row.archived_at else None,
        note=row.note,
        tags=tags_of(row),
        spec=spec,
        spec_sha256=sha256(row.spec.encode()),
        guarantee=promise,
        not_protected=gaps,
        sandbox=current.sandbox,
        release_problem=row.release_problem,
        release_id=release.id if release else None,
        release_sha256=release.sha256 if release else None,
        report=report,
    )


def check_changeable(db: Connection, row: Any) -> None:
    """Raise StateConflict for a study that was released, or charged for a release that was interrupted."""
    if row.state != "draft":
        raise StateConflict(f"the study is {row.state}: only a draft can be changed; make another one like it")
    if ledger_lines.charged_at(db, row.id) is not None:
        raise StateConflict("the draft was charged for a release that was interrupted: release it as it is")


def _forecasts_alike(old: wire.StudyCreate, new: wire.StudyCreate) -> bool:
    """Whether a forecast of the old draft holds for the new one."""
    apart = {"name", "budget", "reply_after_ms", "processing"}
    if prices.is_groups(new) and old.budget.epsilon_per_row != new.budget.epsilon_per_row:  # levels are shares of it
        return False
    return old.model_dump(exclude=apart) == new.model_dump(exclude=apart)


def fitted(spec: wire.StudyCreate, dataset: wire.DatasetView) -> wire.StudyCreate:
    """The study with the persons of its dataset: its rows_per_person, and whether it has a person column.

    ``auto`` answers of groups become Laplace noise, the only one there is for them. Without a cap on persons who may be
    refined, the cap on queries is that.

    Raises Invalid, which names each wrong field, if the study cannot be made from it, and StateConflict if it is
    archived.
    """
    faults = _person_faults(spec, dataset)
    if dataset.rows_per_person is not None:
        spec = spec.model_copy(update={"rows_per_person": dataset.rows_per_person, "person_column": True})
    if isinstance(spec.release, wire.GroupsRelease) and isinstance(spec.answers, wire.AutoAnswers):
        laplace = wire.LaplaceAnswers.model_validate(spec.answers.model_dump() | {"mechanism": "laplace"})
        spec = spec.model_copy(update={"answers": laplace})
    if spec.refine is not None and spec.refine.persons is None:  # a later raise of the cap raises no promise
        refine = spec.refine.model_copy(update={"persons": spec.budget.queries})
        spec = spec.model_copy(update={"refine": refine})
    _check_fit(spec, dataset, faults)
    return spec


def check_release_of(db: Connection, spec: wire.StudyCreate) -> None:
    """Raise Invalid, or StateConflict, if a study cannot read the release of the one that it names."""
    if spec.release_of is None:
        return
    try:
        source = store.find(db, store.studies, spec.release_of)
    except NotFound:
        raise Invalid.at("release_of", "there is no such study") from None
    source_spec = wire.StudyCreate.model_validate_json(source.spec)
    if source_spec.release_of is not None:
        raise Invalid.at("release_of", f"that study reads a release itself: name {source_spec.release_of}")
    mine = spec.release_inputs
    message = "must be as in the study whose release is read: that determined its candidates"
    changed = [field for field, inherited in source_spec.release_inputs.items() if mine[field] != inherited]
    if changed:
        raise Invalid.of([{"field": field, "message": message} for field in changed])
    if source.state not in ("open", "closed"):
        raise StateConflict(f"the study whose release is read is {source.state}: release it first")
    if (status := release_status(db, source_spec, store.report_of(db, source.id)).status) != "sound":
        raise StateConflict(f"the release to be read is {status}: a further study of it would promise nothing")


def _person_faults(spec: wire.StudyCreate, dataset: wire.DatasetView) -> list[dict[str, object]]:
    k = dataset.rows_per_person
    if k is None and spec.person_column:
        message = "the dataset was registered without a person column: declare rows_per_person alone"
        return [{"field": "person_column", "message": message}]
    if k is not None and spec.rows_per_person not in (1, k):  # 1 is the default: not declared
        return [{"field": "rows_per_person", "message": f"the dataset has a person column and keeps {k}: leave it out"}]
    return []


def _check_fit(spec: wire.StudyCreate, dataset: wire.DatasetView, faults: list[dict[str, object]]) -> None:
    columns = {column.name for column in dataset.columns}
    seen: set[str] = set()
    for index, feature in enumerate(spec.features):
        field = f"features.{index}.column"
        if feature.column not in columns:
            faults.append({"field": field, "message": no_column(feature.column, columns)})
        if feature.column in seen:
            faults.append({"field": field, "message": "this column is a feature already"})
        seen.add(feature.column)
    faults += _measurement_faults(spec, dataset, seen)
    if isinstance(spec.release, wire.IdentityRelease) and not dataset.public:
        faults.append({"field": "release.mechanism", "message": "identity needs a dataset that was declared public"})
    if not dataset.public and spec.privacy_unit == "answer" and isinstance(spec.measurement, wire.ColumnMeasurement):
        faults.append({"field": "privacy_unit", "message": ONE_VALUE})
    faults += answers.faults(spec.answers)
    faults += groups.faults(spec)
    faults += ledger.faults(spec)
    if faults:
        raise Invalid.of(faults)
    if dataset.state == "archived":
        raise StateConflict("the dataset is archived: it takes no new study")


def _measurement_faults(
    spec: wire.StudyCreate, dataset: wire.DatasetView, features: set[str]
) -> list[dict[str, object]]:
    """Faults of the measurement: where y comes from, and within which bounds."""
    faults: list[dict[str, object]] = []
    measurement, columns = spec.measurement, {column.name: column for column in dataset.columns}
    if isinstance(measurement, wire.ColumnMeasurement):
        if (column := columns.get(measurement.column)) is None:
            faults.append({"field": "measurement.column", "message": no_column(measurement.column, columns)})
        elif max(abs(column.minimum), abs(column.maximum)) > wire.OUTCOME_MAX:
            message = f"{column.name} has outcomes beyond {wire.OUTCOME_MAX:g}: register it in a larger unit"
            faults.append({"field": "measurement.column", "message": message})
        if measurement.column in features:
            faults.append({"field": "measurement.column", "message": "a feature cannot be the measurement too"})
        return faults
    labels = dataset.reading.labels if dataset.reading else []
    for index, name in enumerate(measurement.shown):
        field = f"measurement.shown.{index}"
        if name not in columns and name not in labels:
            faults.append({"field": field, "message": no_column(name, {*columns, *labels})})
        if name in measurement.shown[:index]:
            faults.append({"field": field, "message": "this column is shown already"})
    if (mechanism := answers.mechanism_of(spec.answers) if not answers.faults(spec.answers) else None) is not None:
        low, high = mechanism.clip
        message = "answers are clipped to values that none within the bounds is among: see answers.centre and bound"
        if measurement.lower is not None and measurement.lower >= high:
            faults.append({"field": "measurement.lower", "message": message})
        if measurement.upper is not None and measurement.upper <= low:
            faults.append({"field": "measurement.upper", "message": message})
    return faults
