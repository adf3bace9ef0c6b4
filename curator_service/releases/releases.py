"""Previews of a study's release, and the release itself."""

import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.audit.merkle_log import sha256
from blindopt.errors import (
    BlindoptError,
    BudgetExhausted,
    NotFound,
    RecordChanged,
    StateConflict,
    StillRunning,
    StorageUnavailable,
)
from blindopt.formats import npy_files, release_files
from curator_service import notices, store
from curator_service.budget.budgets import Budgets
from curator_service.budget.file_use import check_order
from curator_service.budget.views import outlook
from curator_service.datasets import records
from curator_service.datasets.datasets import dataset_view
from curator_service.datasets.facts import cautions_from_records
from curator_service.datasets.labels import Labels
from curator_service.datasets.records import withheld_records
from curator_service.datasets.scaling import ScaledRows
from curator_service.privacy import accounting, cautions, entropy, search_noise
from curator_service.privacy.calibration import as_run
from curator_service.privacy.guarantees import CHOOSING
from curator_service.releases.attack_preview import Previews, job_of
from curator_service.releases.mechanisms.mechanism import Assessment, Drawn, Mechanism
from curator_service.releases.mechanisms.registry import mechanism_of
from curator_service.releases.report import ReleaseStatus, release_status, report_of, rho_of
from curator_service.studies.grants import next_download, record_download
from curator_service.studies.studies import check_release_of, owner_view
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.identity.tokens import new_id
from service_kit.runner import Reply
from service_kit.runner.runner import Kind, Runner, Task
from service_kit.store import audit_log, tokens
from service_kit.store.base import stamp
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply

log = logging.getLogger("blindopt.releases")
_BLOCK = 1 << 18
_RECORDS = 350
"""Records that say how hard they are to tell apart, in a preview."""
UNEXPECTED = "a fault of the service, which its own log names: nothing was published"
ENDED = "the service ended while it was drawn, and nothing was published: release it again"
ForecastOf = Callable[[wire.StudyCreate], list[wire.ForecastPoint]]
"""Returns the points of the public forecast of a draft, if one has been made."""


class Releases:
    """Releases studies: from draft to open.

    A release that a crash interrupted is undone at the next start: nothing of it was published.
    """

    def __init__(
        self,
        context: ServiceContext,
        vault: Vault,
        budgets: Budgets,
        runner: Runner,
        previews: Previews,
        forecast_of: ForecastOf = lambda spec: [],
    ) -> None:
        self._context = context
        self._forecast_of = forecast_of
        self._vault = vault
        self._budgets = budgets
        self._previews = previews
        self._draws = runner.add(Kind[Reply]("release", at_once=inf))
        self._high: dict[str, str] = {}
        """By study, the digest of the draft whose latest preview found a high risk; neither stored nor logged."""
        with context.database.read() as db:
            self._interrupted = [row.id for row in store.releasing(db)]

    def recover(self) -> bool:
        """Make drafts of the studies whose release had not ended when the service started.

        False while a finding names one of them. Raises Verifying.
        """
        if self._interrupted:
            self._interrupted = self._context.database.write(self._recover)
        return not self._interrupted

    def _recover(self, db: Connection) -> list[str]:
        refused = []
        for study_id in self._interrupted:
            if self._draws.find(study_id) is None:  # it was not begun again
                try:
                    self._context.audit_trail.check_unchanged(study_id)
                    with suppress(NotFound):  # a draft, which its owner has deleted since
                        self._abandon(db, study_id, "curator", ENDED)
                except RecordChanged:  # somebody else may have made it one that is being released
                    refused.append(study_id)
        return refused

    def _log(self, db: Connection, kind: str, actor: str, **details: Any) -> None:
        audit_log.append(db, kind, actor=actor, now=self._context.clock(), details=details)

    def preview(self, study_id: str) -> wire.ReleaseReport:
        """The report of a release as it would be, with attacks on one that is thrown away. For the owner alone.

        Changes nothing. Raises ReleaseImpossible, and Busy while another preview is under way.
        """
        with self._context.database.read() as db:
            view = owner_view(db, study_id)
            spec = view.spec
            rows, current = records.scaled_rows(db, self._vault, spec), release_status(db, spec, None)
            sample = records.sample_rows(db, self._vault, spec)
            job = job_of(db, self._vault, spec, current.release)
            account = outlook(db, self._budgets.uses, spec, current.release, study_id)
            dataset = dataset_view(store.find(db, store.datasets, spec.dataset_id))
            labels = Labels(self._context.seal)
            of_records = cautions_from_records(self._vault, labels, db, spec, dataset)
        preview = self._previews.make(study_id, job)
        verdict = None if dataset.public else preview.verdict
        self._high.pop(study_id, None)
        if verdict is not None and verdict.level == "high":
            self._high[study_id] = view.spec_sha256
        mechanism = mechanism_of(spec, current.release, sample)
        points = self._forecast_of(spec)
        report = report_of(spec, rows, mechanism, current, preview.assessment, points=points, sample=sample)
        return report.model_copy(
            update={
                "search": search_noise.in_words(rho_of(spec, mechanism, sample), spec, points),
                "attacks": preview.findings,
                "verdict": verdict,
                "not_tried": preview.not_tried,
                "record_cautions": [
                    *of_records,
                    *([] if dataset.public else _cautions_about_noise(spec, mechanism, rows, sample)),
                ],
                "choosing": None if dataset.public else CHOOSING,
                "account": account,
            }
        )

    def release(self, request: RequestContext, study_id: str, seen: wire.ReleaseAsked | None = None) -> StoredReply:
        """Draw Z and publish it, once in the life of a study; the study is then open.

        Raises StateConflict if the draft is not the one that ``seen`` names, or where the latest preview of it found a
        high risk that ``seen`` does not confirm.
        """
        charged = self._begin(request, study_id, seen)
        return charged if isinstance(charged, StoredReply) else self._finish(request, study_id, *charged)

    def start(
        self, request: RequestContext, study_id: str, seen: wire.ReleaseAsked | None = None
    ) -> StoredReply | None:
        """Release as ``release`` does, in a thread; None while it is drawn, and the reply to a repetition once it is.

        A draw that fails leaves a draft, as a crash would.
        """
        try:
            charged = self._begin(request, study_id, seen)
        except StillRunning:
            return None
        if isinstance(charged, StoredReply):
            return charged

        def finish(_: Task[Reply]) -> None:
            try:
                self._finish(request, study_id, *charged)
            except Exception as error:
                level = logging.WARNING if isinstance(error, BlindoptError) else logging.ERROR
                log.log(level, "the release of %s failed, and it is a draft again: %s", study_id, type(error).__name__)

        self._draws.in_thread(charged[-1], finish)
        return None

    def _finish(
        self, request: RequestContext, study_id: str, spec: wire.StudyCreate, current: ReleaseStatus, task: Task[Reply]
    ) -> StoredReply:
        release_id, retry = new_id("rel"), self._context.database.foreign_writes.retry
        try:

            def on_progress(share: float) -> None:
                if task.is_cancelled:
                    raise StorageUnavailable("the service is stopping: nothing was released")
                task.progress = share

            source = None
            if spec.release_of is not None:
                source = retry(partial(self._source, spec), lambda: task.is_cancelled)
            rows = retry(lambda: self._in_secret_order(study_id, spec), lambda: task.is_cancelled)
            sample = None if source else retry(lambda: self._sample(study_id, spec), lambda: task.is_cancelled)
            mechanism = mechanism_of(spec, current.release, sample)
            new_file = partial(self._vault.begin_release, release_id)
            if source is None:
                draw = mechanism.release(rows, new_file, on_progress)
            else:
                draw = source.copied(self._vault, new_file)
            if draw.mechanism is not None:
                mechanism = draw.mechanism
                r = mechanism.columns(rows.d)
                current = replace(current, release=as_run(spec, mechanism.name, getattr(mechanism, "delta", None), r))
            points = self._forecast_of(spec)
            report = report_of(spec, rows, mechanism, current, draw.assessment, draw.counts, points, sample)
            if source is not None:
                report = report.model_copy(update={"version": source.report.version, "n": source.report.n})
            digest, release_parts = self._vault.keep_release(release_id, draw.records)
            report, salt = report.model_copy(update={"parts": release_parts}), secrets.token_hex(16)
            order = salt, self._vault.order_digest(release_id, salt)
            publish = partial(self._publish, study_id, release_id, mechanism, digest, report, order, source)
            return retry(lambda: self._context.idempotency.once(request, publish), lambda: task.is_cancelled)
        except BaseException as error:
            problem = str(error) if isinstance(error, BlindoptError) else UNEXPECTED
            self._vault.drop(release_id)  # first: it may be what fills the disk
            abandon = partial(self._abandon, study_id=study_id, actor=request.principal.actor, problem=problem)
            retry(lambda: self._context.database.write(abandon), lambda: task.is_cancelled)
            raise
        finally:
            self._draws.leave(task)

    def progress(self, study_id: str) -> float | None:
        """Share of the rows that are drawn while a release is under way, else None."""
        task = self._draws.find(study_id)
        return None if task is None else task.progress

    def is_high_risk(self, study_id: str, spec_sha256: str) -> bool:
        """Whether the latest preview of this draft since the service was started found a high risk."""
        return self._high.get(study_id) == spec_sha256

    def _begin(
        self, request: RequestContext, study_id: str, seen: wire.ReleaseAsked | None
    ) -> StoredReply | tuple[wire.StudyCreate, ReleaseStatus, Task[Reply]]:
        if (earlier := self._context.idempotency.earlier(request)) is not None:
            return earlier
        key = f"{request.principal.id} {self._context.idempotency.key_of(request)[0]}"
        task = Task(self._draws, study_id, study_id)
        with self._context.database.read() as db:
            forecast = store.spec_of(db, study_id)
        points = self._forecast_of(forecast)  # before the transaction, because it reads too

        def work(db: Connection) -> tuple[wire.StudyCreate, ReleaseStatus, Task[Reply]]:
            self._context.authentication.check_live(db, request.principal)
            row = store.find(db, store.studies, study_id)
            self._context.audit_trail.check_unchanged(study_id)
            drawing = self._draws.find(study_id) is not None
            if drawing and row.releasing_key == key:
                raise StillRunning("this release is being drawn")
            if row.state != "draft" and (drawing or row.state != "releasing"):
                raise StateConflict(f"the study is {row.state}: a study is released once, from its draft")
            if seen is not None and seen.spec_sha256 != sha256(row.spec.encode()):
                raise StateConflict("the draft was changed since you read it: read it again before you release it")
            if not (seen and seen.confirm_high_risk) and self.is_high_risk(study_id, sha256(row.spec.encode())):
                raise StateConflict(
                    "the latest preview of this draft found a high risk: change the draft, or release it all the same "
                    "with confirm_high_risk true"
                )
            self._abandon(db, study_id, "curator", ENDED)  # an earlier release whose end could not be stored
            spec = wire.StudyCreate.model_validate_json(row.spec)
            check_release_of(db, spec)
            current = release_status(db, spec, None)
            records.sample_rows(db, self._vault, spec)  # raises Invalid before the charge
            if current.status == "withdrawn":
                name = current.release.mechanism
                raise StateConflict(
                    f"{name} is withdrawn: make a draft with another mechanism, or upgrade this program"
                )
            self._check_chance(spec, current, points if spec == forecast else [], seen)
            _check_consent(spec, current, seen)
            self._budgets.charge_release(db, request.principal.actor, study_id, spec, current.release)
            store.change(db, store.studies, study_id, state="releasing", releasing_key=key, release_problem=None)
            self._log(db, "release.begun", request.principal.actor, study_id=study_id)
            self._draws.enter(task)
            return spec, current, task

        try:
            return self._context.database.write(work)
        except BaseException as error:
            self._draws.leave(task)  # its commit may have failed
            if isinstance(error, BudgetExhausted):
                refuse = partial(self._refuse, request.principal.actor, study_id, error)
                self._context.database.write(refuse)
            stored = self._context.idempotency.earlier(request) if isinstance(error, StateConflict) else None
            if stored is None:
                raise
            return stored  # published since we looked

    def _check_chance(
        self,
        spec: wire.StudyCreate,
        current: ReleaseStatus,
        points: list[wire.ForecastPoint],
        seen: wire.ReleaseAsked | None,
    ) -> None:
        """Raise StateConflict for answers that find nothing better than chance, unless ``seen`` confirms them."""
        if current.public or (seen and seen.confirm_chance):
            return
        price = accounting.price(spec, current.claimed)
        for caution in search_noise.of_answers(spec, price, points):
            raise StateConflict(f"{caution.message} Or release the draft all the same with confirm_chance true.")

    def _refuse(self, actor: str, study_id: str, refusal: BudgetExhausted, db: Connection) -> None:
        """Record that a cap of the dataset's account refused a release: in the ledger, and in the log."""
        self._budgets.refuse(db, actor, study_id, store.spec_of(db, study_id), refusal)

    def _publish(
        self,
        study_id: str,
        release_id: str,
        mechanism: Mechanism,
        digest: str,
        report: wire.ReleaseReport,
        salted_order: tuple[str, str],
        source: "StoredRelease | None",
        db: Connection,
    ) -> Effect:
        dataset_id = owner_view(db, study_id).spec.dataset_id
        self._context.audit_trail.check_unchanged(study_id, dataset_id)
        withheld = withheld_records(db, self._vault, dataset_id)  # one of them maybe since the draw began
        if source is None and mechanism.holds(self._vault.order(release_id), withheld):
            raise StateConflict(
                "a record was withheld while the release was drawn, so nothing was released: release it again, which "
                "charges nothing more"
            )
        now, stored = stamp(self._context.clock()), report.model_dump_json()
        store.insert(
            db,
            store.releases,
            id=release_id,
            study_id=study_id,
            sha256=digest,
            n=report.n,
            r=report.r,
            report=stored,
            order_salt=salted_order[0],
            created_at=now,
        )
        store.change(db, store.studies, study_id, state="open", opened_at=now, releasing_key=None)
        notices.release_ended(db, self._context.outbox, study_id, "open")
        view = owner_view(db, study_id)
        ran = release_status(db, view.spec, report).release
        view = view.model_copy(update={"account": outlook(db, self._budgets.uses, view.spec, ran, study_id)})
        details: dict[str, Any] = {
            "study_id": study_id,
            "release_id": release_id,
            "sha256": digest,
            "report_sha256": sha256(stored.encode()),
            "order_sha256": salted_order[1],
            "mechanism": view.spec.release.mechanism,
            "guarantee": view.guarantee,
        }
        if source is not None:
            details |= {"release_of": source.study_id, "source_id": source.id}
            grants = {row.principal for row in tokens.of_study(db, study_id)}  # made for the draft
            gets = next_download(db, self._vault, study_id) if grants else None
            record_download(db, study_id, grants, gets, actor="curator", now=self._context.clock())
        return Effect(view, "study.released", details, 200)

    def _abandon(self, db: Connection, study_id: str, actor: str, problem: str) -> None:
        """Make a draft of a study that was being released; its owner alone sees the problem, which no log has."""
        if store.find(db, store.studies, study_id).state == "releasing":
            store.change(db, store.studies, study_id, state="draft", releasing_key=None, release_problem=problem)
            self._log(db, "release.abandoned", actor, study_id=study_id)
            notices.release_ended(db, self._context.outbox, study_id, "draft")

    def _source(self, spec: wire.StudyCreate) -> "StoredRelease":
        assert spec.release_of is not None
        self._context.audit_trail.check_unchanged(spec.release_of)
        with self._context.database.read() as db:
            return StoredRelease.of(db, self._vault, spec.release_of)

    def _sample(self, study_id: str, spec: wire.StudyCreate) -> ScaledRows | None:
        def read() -> ScaledRows | None:
            with self._context.database.read() as db:
                return records.sample_rows(db, self._vault, spec)

        named = [name] if (name := getattr(spec.release, "sample_dataset_id", None)) else []
        check = partial(self._context.audit_trail.check_unchanged, study_id, *named)
        return self._context.database.verified(read, check)

    def _in_secret_order(self, study_id: str, spec: wire.StudyCreate) -> ScaledRows:
        def read() -> ScaledRows:
            with self._context.database.read() as db:
                return records.scaled_rows(db, self._vault, spec)

        check = partial(self._context.audit_trail.check_unchanged, study_id, spec.dataset_id)
        rows = self._context.database.verified(read, check)
        return replace(rows, order=entropy.shuffled(rows.order, self._vault.scratch))


@dataclass(frozen=True, slots=True, repr=False)
class StoredRelease:
    """A release that a further study reads: its candidates and row order, of withheld records too.

    A candidate keeps its number. Grants do not get those of withheld records, and queries of them are declined.
    """

    study_id: str
    id: str
    sha256: str
    report: wire.ReleaseReport
    order: NDArray[np.int64]

    @staticmethod
    def of(db: Connection, vault: Vault, study_id: str) -> "StoredRelease":
        """The release of a study. Raises RecordChanged unless its row order is the one in the log."""
        release = store.release_of(db, study_id)
        assert release is not None
        check_order(db, vault, study_id)
        report, order = wire.ReleaseReport.model_validate_json(release.report), vault.order(release.id)
        return StoredRelease(study_id, release.id, release.sha256, report, np.asarray(order))

    def copied(self, vault: Vault, new_file: Callable[[int, int], Matrix]) -> Drawn:
        """Copy the candidates, byte for byte. Raises RecordChanged for other than published."""
        if release_files.digest(vault.candidates(self.id), self.report.parts) != self.sha256:
            raise RecordChanged("the stored candidates are not the ones that were published")
        z = npy_files.load(vault.candidates(self.id))
        out = new_file(*z.shape)
        for start in range(0, len(z), _BLOCK):
            out[start : start + _BLOCK] = z[start : start + _BLOCK]
        return Drawn(Assessment(), self.order, self.report.counts)


def _cautions_about_noise(
    spec: wire.StudyCreate, mechanism: Mechanism, rows: ScaledRows, sample: ScaledRows | None
) -> list[wire.Caution]:
    law, columns, axes = mechanism.noise(rows.d), mechanism.columns(rows.d), getattr(mechanism, "axes", None)
    if mechanism.name == "axes" and axes is None:
        return []  # private axes are not drawn for a caution
    rho = rho_of(spec, mechanism, sample)
    of_records = search_noise.of_records(spec, rho, rows.sample(_RECORDS), law, columns, axes)
    return [*map(cautions.with_fix, of_records)]


def _check_consent(spec: wire.StudyCreate, current: ReleaseStatus, seen: wire.ReleaseAsked | None) -> None:
    """Raise StateConflict for a study whose records leave again with nobody there to agree, unless confirmed."""
    is_asked = isinstance(spec.measurement, wire.InboxMeasurement)  # then each person is, before the measurement
    if spec.refine is None or current.public or is_asked or (seen and seen.confirm_consent):
        return
    raise StateConflict(
        "a measured record leaves again, and nobody asks its person first: if all persons agreed to that "
        "beforehand, release the draft with confirm_consent true"
    )
