"""Overviews for the owner: checks of drafts, and the accounts of studies."""

from collections import Counter
from typing import Any

from blindopt import wire
from blindopt.answer_worth import meaning
from curator_service import store
from curator_service.budget import ledger_lines
from curator_service.budget.file_use import FileUses, cost_of_sharing, most_by_row
from curator_service.budget.ledger import Balance
from curator_service.budget.views import outlook
from curator_service.datasets.datasets import dataset_view
from curator_service.datasets.facts import cautions_from_records
from curator_service.datasets.labels import Labels
from curator_service.privacy import search_noise
from curator_service.privacy.calibration import epsilon_of
from curator_service.privacy.guarantees import of_measured, surest, whole
from curator_service.privacy.prices import Prices, answers_add_up, is_groups, text
from curator_service.privacy.protection import protection
from curator_service.queries import table as inbox
from curator_service.releases.mechanisms.registry import mechanism_of
from curator_service.releases.releases import ForecastOf
from curator_service.releases.report import promised, promises, release_status, rho_of
from curator_service.reports.accounts import prices_by_study, prices_of
from curator_service.studies.release_cache import ReleasedStudies
from curator_service.studies.studies import check_release_of, fitted
from curator_service.studies.study_caps import changes_by_study
from service_kit.context.context import ServiceContext
from service_kit.store.base import moment
from service_kit.store.database import Connection


class Overviews:
    """Reads alone: nothing is stored, charged or drawn."""

    def __init__(
        self, context: ServiceContext, studies: ReleasedStudies, uses: FileUses, forecast_of: ForecastOf
    ) -> None:
        self._context = context
        self._forecast_of = forecast_of
        self._studies = studies
        self._uses = uses

    def check(self, spec: wire.StudyCreate) -> wire.StudyCheck:
        """The guarantee and cost of a draft. Raises Invalid if it cannot be made."""
        with self._context.database.read() as db:
            dataset = dataset_view(store.find(db, store.datasets, spec.dataset_id))
            spec = fitted(spec, dataset)
            check_release_of(db, spec)
            current = release_status(db, spec, None)
            account = outlook(db, self._uses, spec, current.release)
            labels = Labels(self._context.seal)
            of_records = cautions_from_records(self._studies.vault, labels, db, spec, dataset)
        mechanism = mechanism_of(spec, current.release)
        epsilon = epsilon_of(current.release) if current.status == "sound" else None
        if epsilon is not None and (record := whole(spec, current.release)) is not None:
            epsilon = wire.amount(record)
        if epsilon is not None and (measured := of_measured(spec)) is not None:
            epsilon = measured
        protected = protection(spec, current.claimed)
        hidden, whole_record = protected.figures if protected else (None, None)
        points, rho, offers = self._forecast_of(spec), rho_of(spec, mechanism), promises(spec)
        fields = promised(spec, current, mechanism, dataset.rows, points)
        unit = None if isinstance(spec.measurement, wire.ColumnMeasurement) else spec.measurement.unit
        return wire.StudyCheck(
            **fields,
            search=search_noise.in_words(rho, spec, points),
            answers_mean=None if is_groups(spec) else meaning(spec.answers, fields["price"].answers, unit or ""),
            tool=search_noise.tool(
                spec,
                rho,
                fields["cautions"],
                dataset.rows,
                is_public=dataset.public,
                whole=protected.whole if protected and answers_add_up(spec) else None,
                points=points,
                rho_of_one_feature=next((o.rho for o in offers if o.promise == "one_feature"), None),
            ),
            promises=offers,
            strength=protected.word if protected else None,
            epsilon_hidden=hidden,
            epsilon_whole=whole_record,
            protection=protected.sentence if protected else None,
            surest=surest(epsilon) if epsilon is not None else None,
            answers=wire.concrete_answers(spec.answers).mechanism,
            record_cautions=of_records,
            account=account,
        )

    def account(self, study_id: str) -> wire.StudyAccount:
        """The account of a study. Raises NotFound."""
        with self._context.database.read() as db:
            return self._accounts(db, [store.find(db, store.studies, study_id)])[0]

    def accounts(self, after: int, limit: int) -> list[tuple[int, wire.StudyAccount]]:
        with self._context.database.read() as db:
            rows = store.page(db, store.studies, after=after, limit=limit)
            return [(row.seq, account) for row, account in zip(rows, self._accounts(db, rows), strict=True)]

    def curve(self, study_id: str, points: int) -> wire.LedgerCurve:
        """The spending of a study over time, from at most ``points`` lines of its ledger, evenly chosen."""
        with self._context.database.read() as db:
            prices = prices_of(db, study_id)
            count, lines_shown = ledger_lines.thinned(db, study_id, points)
        bounded = prices.release_bounded and prices.answers_bounded
        return wire.LedgerCurve(
            lines=count,
            points=[
                wire.LedgerPoint(
                    line=row.line,
                    at=moment(row.created_at),
                    total_epsilon=text(row.total) if bounded else None,
                    total_plays=row.total_plays,
                )
                for row in lines_shown
            ],
        )

    def histogram(self, study_id: str) -> wire.ExposureHistogram:
        """How often the rows of a study were measured. Raises NotFound."""
        with self._context.database.read() as db:
            row = store.find(db, store.studies, study_id)
            n = int(store.find(db, store.datasets, row.dataset_id).rows)
            counts: Counter[int] = Counter()
            for _, plays, rows in ledger_lines.queried_rows(db, study_id):
                counts[plays] += rows
        if never_queried := n - sum(counts.values()):
            counts[0] += never_queried
        return wire.ExposureHistogram(
            counts=[wire.RowsAsked(plays=plays, rows=rows) for plays, rows in sorted(counts.items())]
        )

    def _accounts(self, db: Connection, rows: list[Any]) -> list[wire.StudyAccount]:
        """The accounts of these studies, from a few statements for all of them."""
        of_studies, records = [row.id for row in rows], store.datasets_of(db, {row.dataset_id for row in rows})
        amounts, prices = ledger_lines.balances(db, of_studies), prices_by_study(db, rows)
        changes, corrected = changes_by_study(db, of_studies), inbox.corrected_studies(db, of_studies)
        return [
            self._account(
                db,
                row,
                *amounts.get(row.id, (Balance(), 0)),
                changes[row.id],
                prices[row.id],
                int(records[row.dataset_id].rows),
                is_corrected=row.id in corrected,
            )
            for row in rows
        ]

    def _account(
        self,
        db: Connection,
        row: Any,
        now: Balance,
        most: int,
        changes: list[wire.BudgetChange],
        prices: Prices,
        records: int,
        *,
        is_corrected: bool,
    ) -> wire.StudyAccount:
        spec = wire.StudyCreate.model_validate_json(row.spec)
        if spec.person_column and most:  # a draft has no rows of persons yet
            persons = ledger_lines.persons_queried(db, row.id, self._studies.persons(db, row.id))
            most = max(total for total, _ in persons.values())
        bounded = prices.release_bounded and prices.answers_bounded
        again = max(most_by_row(db, row.id).values(), default=1) if is_corrected else 1
        of_row = (
            cost_of_sharing(db, [(row.id, spec, now)])
            if prices.of_pairs
            else prices.used(now.release, most, again=again)
        )
        return wire.StudyAccount(
            study_id=row.id,
            dataset_id=row.dataset_id,
            name=spec.name,
            records=records,
            state=row.state,
            created_at=moment(row.created_at),
            archived_at=moment(row.archived_at) if row.archived_at else None,
            opened_at=moment(row.opened_at) if row.opened_at else None,
            mechanism=spec.release.mechanism,
            measurement=spec.measurement.source,
            privacy_unit=spec.privacy_unit,
            budget=spec.budget,
            budget_changes=changes,
            release_epsilon=text(now.release) if prices.release_bounded else None,
            row_epsilon=text(of_row) if bounded else None,
            person_epsilon=text(of_row * (1 if spec.person_column else spec.rows_per_person)) if bounded else None,
            total_epsilon=text(now.total) if bounded else None,
            total_plays=now.plays,
        )
