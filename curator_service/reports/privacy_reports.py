"""Privacy reports: what was promised, accepted and used, and attacks on the real release; signed by the curator."""

from math import ceil
from typing import Any

from blindopt import wire
from blindopt.audit import signed_documents
from blindopt.errors import Busy, ReleaseImpossible
from curator_service import store
from curator_service.budget.views import DatasetAccounts, in_short
from curator_service.datasets.records import reading_of, withheld_records
from curator_service.privacy import accounting, cautions
from curator_service.privacy.guarantees import lowest_cap, neighbours, surest, unit_of_privacy
from curator_service.privacy.prices import is_groups
from curator_service.releases.attack_preview import Preview, Previews, job_of
from curator_service.releases.mechanisms.mechanism import Assessment
from curator_service.releases.mechanisms.registry import mechanism_of
from curator_service.releases.report import release_status
from curator_service.reports.accounts import Accounts
from curator_service.studies.studies import owner_view
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.store.database import Connection

_USES_MAX = 1_000
WAIT_SECONDS = 20.0
"""How long a report waits for a preview that is under way."""


class PrivacyReports:
    """Makes reports for the owner, who may pass them on: no value of a record is in them but what attacks found."""

    def __init__(
        self,
        context: ServiceContext,
        vault: Vault,
        accounts: Accounts,
        dataset_accounts: DatasetAccounts,
        previews: Previews,
    ) -> None:
        self._context = context
        self._vault = vault
        self._dataset_accounts = dataset_accounts
        self._accounts = accounts
        self._previews = previews

    def of_study(self, study_id: str) -> wire.SignedPrivacyReport:
        """The report of one study. Takes some seconds, for the attacks. Raises NotFound."""
        with self._context.database.read() as db:
            dataset = store.dataset_of(db, study_id)
            report = self._report(db, "study", dataset)
        return self._signed(report, [study_id])

    def of_dataset(self, dataset_id: str) -> wire.SignedPrivacyReport:
        """The report of every study of a dataset's file, without attacks. Raises NotFound."""
        with self._context.database.read() as db:
            dataset = store.find(db, store.datasets, dataset_id)
            report = self._report(db, "dataset", dataset)
            studies = store.studies_of_file(db, dataset.sha256)
        return self._signed(report, studies)

    def _report(self, db: Connection, subject: Any, dataset: Any) -> wire.PrivacyReport:
        trail = self._context.audit_trail
        return wire.PrivacyReport(
            subject=subject,
            made_at=self._context.clock(),
            log_key=self._context.signer.verifier.vkey,
            checkpoint=trail.sign(trail.head()),
            dataset=wire.ReportedDataset(
                id=dataset.id,
                public=bool(dataset.public),
                rows=dataset.rows,
                withheld=len(withheld_records(db, self._vault, dataset.id)),
                encoded=_encoded(dataset),
            ),
            account=self._dataset_accounts.account(dataset.id, 0, _USES_MAX, with_records=False),
            studies=[],
        )

    def _signed(self, report: wire.PrivacyReport, study_ids: list[str]) -> wire.SignedPrivacyReport:
        studies = [self._study(study_id, attacked=report.subject == "study") for study_id in study_ids]
        whole = report.model_copy(update={"studies": studies, "verdict": _verdict(report, studies)})
        document = whole.model_dump(mode="json")
        signature = signed_documents.sign(self._context.signer, wire.REPORT_TITLE, document)
        return wire.SignedPrivacyReport(report=whole, signature=signature)

    def _study(self, study_id: str, *, attacked: bool) -> wire.ReportedStudy:
        with self._context.database.read() as db:
            view = owner_view(db, study_id)
            current = release_status(db, view.spec, view.report)
            dataset = store.find(db, store.datasets, view.spec.dataset_id)
        spec, mechanism = view.spec, mechanism_of(view.spec, current.release)
        gaps = _gaps(dataset)
        price = accounting.price(spec, current.claimed)
        preview = self._attacked(view) if attacked else _not_tried(_NOT_IN_DATASETS)
        worst, spent = self._accounts.account(study_id).row_epsilon, self._accounts.accounting(study_id, None)
        return wire.ReportedStudy(
            id=study_id,
            name=spec.name,
            verdict=_of_study(view, current.status, worst, preview.verdict, is_public=bool(dataset.public)),
            summary=[] if view.opened_at is None else _summary(spec, current.status, worst, spent, preview.verdict),
            processing=spec.processing,
            state=view.state,
            created_at=view.created_at,
            opened_at=view.opened_at,
            spec_sha256=view.spec_sha256,
            release_sha256=view.release_sha256,
            unit=unit_of_privacy(spec),
            relation=neighbours(spec, current.release, gaps),
            mechanism=mechanism.name,
            mechanism_version=mechanism.version if view.report is None else view.report.version,
            status=current.status,
            answers=wire.concrete_answers(spec.answers),
            guarantee=view.guarantee,
            not_protected=view.not_protected,
            budget=spec.budget,
            price=price,
            worst_epsilon=worst,
            spent=spent,
            cautions=cautions.of_study(spec, current.release, price, n=dataset.rows, is_public=bool(dataset.public))
            if view.report is None
            else view.report.cautions,
            attacks=preview.findings,
            not_tried=preview.not_tried,
        )

    def _attacked(self, view: wire.StudyOwnerView) -> Preview:
        if view.release_id is None:
            return _not_tried("Not tried: nothing was released yet.")
        with self._context.database.read() as db:
            current = release_status(db, view.spec, view.report)
            job = job_of(db, self._vault, view.spec, current.release, view.release_id)
        try:
            return self._previews.make(view.id, job, wait_s=WAIT_SECONDS)
        except Busy:
            return _not_tried("Not tried: another preview was under way.")
        except ReleaseImpossible:  # trials would need the axes again
            return _not_tried("Not tried: the public sample of its axes cannot be read any more.")


def _not_tried(why: str) -> Preview:
    return Preview(Assessment(), [], why)


def _verdict(report: wire.PrivacyReport, studies: list[wire.ReportedStudy]) -> str:
    """The state of privacy of what the report is about, in one line."""
    if report.subject == "study":
        return studies[0].verdict
    account = report.account
    first = account.statements[0]
    if first.epsilon is None:
        uses = len(first.uses) + len(first.not_counted)
        return f"Not bounded: epsilon does not bound {len(account.unbounded)} of {uses} uses of this dataset."
    return in_short(account.statements)


def _of_study(
    view: wire.StudyOwnerView, status: wire.Status, worst: str | None, attacked: wire.Verdict | None, *, is_public: bool
) -> str:
    """The state of the privacy of a study, in one line. ``worst``: epsilon of the record that has used most."""
    if view.opened_at is None:
        return "Not released: no vendor has received anything."
    spec, risk = view.spec, "" if attacked is None else f" Attacks on the release find a {attacked.level} risk."
    if status != "sound" and is_public:
        return "Public: the owner declared these records public, and the vendor received them without a guarantee."
    if status != "sound":
        return f"Not protected: the vendor received the features without a guarantee.{risk}"
    if isinstance(spec.answers, wire.NoAnswerNoise):
        return f"Partly protected: the features have a guarantee, and the vendor receives exact outcomes.{risk}"
    limit = ", without a cap" if (cap := lowest_cap(spec)) is None else f", and may use at most {cap}"
    unit = "person" if spec.person_column else "record"
    return f"Protected: the {unit} that has used most has used epsilon {worst}{limit}.{risk}"


def _summary(
    spec: wire.StudyCreate,
    status: wire.Status,
    worst: str | None,
    spent: wire.Accounting,
    attacked: wire.Verdict | None,
) -> list[str]:
    """What attacks found, how many records were asked about, and what one of them has used and reveals at most."""
    counts = [(row.answers, row.rows) for row in spent.rows if row.answers]
    asked_about, most = sum(rows for _, rows in counts), max((answers for answers, _ in counts), default=0)
    often = {0: "", 1: ", each once"}.get(most, f", one of them {most:,} times")
    unit = "person" if spec.person_column else "record"
    sentences = [] if attacked is None else [attacked.sentence]
    of_all = f"{asked_about:,} of {sum(row.rows for row in spent.rows):,} {'groups' if is_groups(spec) else 'records'}"
    sentences.append(f"{of_all} were asked about{often}.")
    if worst is None:
        return [*sentences, f"Epsilon does not bound what the vendor learned of a {unit}."]
    sentences.append(f"One {unit} has used epsilon {worst} at most.")
    if status == "sound":
        sure = ceil(1_000 * surest(wire.amount(worst))) / 10
        hidden = "" if is_groups(spec) else ", for changes that are hidden; larger changes are protected less"
        if wire.hides_one_feature(spec.release):
            hidden += ", and so are changes of several features at once"
        sentences.append(f"Someone undecided (50/50) about a {unit} becomes at most {sure:g} % sure{hidden}.")
    return sentences


_NOT_IN_DATASETS = "Not tried: a report of one study has attacks on its release."


def _encoded(dataset: Any) -> list[wire.ColumnChoice]:
    """The columns of a dataset that were not read as numbers without gaps, with all cells that count as missing."""
    read = reading_of(dataset)
    encoded = [column for column in read.columns if column.kind != "label"] if read else []
    of_file = read.missing_values if read else []
    return [
        column.model_copy(update={"missing_values": list(dict.fromkeys([*of_file, *column.missing_values]))})
        for column in encoded
        if column.kind != "number" or column.missing != "refuse"
    ]


def _gaps(dataset: Any) -> list[str]:
    """The columns whose gaps left rows out, or were shown to the owner before the choice."""
    left_out = [column.column for column in _encoded(dataset) if column.missing == "leave_out"]
    read = reading_of(dataset)
    return list(dict.fromkeys([*left_out, *(read.gaps if read else [])]))
