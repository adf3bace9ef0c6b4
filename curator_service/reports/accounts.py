"""Checks of drafts, and accounts of studies: ledger, exposure of rows, accounting, for the owner and for auditors."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import sqrt
from threading import Lock
from typing import Any

from blindopt import wire
from blindopt.answer_worth import meaning
from blindopt.errors import Erased, NumericalFailure, StateConflict
from blindopt.formats import npy_files
from curator_service import store
from curator_service.budget import ledger_lines
from curator_service.budget.file_use import FileUses, cost_of_sharing, most_by_row
from curator_service.budget.ledger import Balance
from curator_service.budget.views import outlook
from curator_service.datasets.datasets import dataset_view
from curator_service.datasets.facts import cautions_from_records
from curator_service.datasets.labels import Labels
from curator_service.datasets.records import sample_rows
from curator_service.privacy import accounting, search_noise
from curator_service.privacy.calibration import epsilon_of
from curator_service.privacy.guarantees import of_measured, surest, whole
from curator_service.privacy.prices import Prices, alone, answers_add_up, is_groups, text
from curator_service.privacy.protection import protection
from curator_service.queries import table as inbox
from curator_service.queries.queries import answers_of_all
from curator_service.releases.groups import group_entries
from curator_service.releases.mechanisms.registry import mechanism_of, with_columns
from curator_service.releases.releases import ForecastOf
from curator_service.releases.report import promised, promises, release_status, rho_of
from curator_service.reports.feature_results import noise_variance
from curator_service.store import reasons
from curator_service.studies.release_cache import Released, ReleasedStudies
from curator_service.studies.studies import check_release_of, fitted
from curator_service.studies.study_caps import changes_by_study
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.store.base import moment
from service_kit.store.database import Connection

EXPECTED_MAX, EXPECTED_KEPT = 1_000, 16
"""The most groups that are modelled, in a second or two; and of how many studies that is kept."""


class Accounts:
    """Reads alone: nothing is stored, charged or drawn."""

    def __init__(
        self, context: ServiceContext, studies: ReleasedStudies, uses: FileUses, forecast_of: ForecastOf
    ) -> None:
        self._context = context
        self._forecast_of = forecast_of
        self._studies = studies
        self._uses = uses
        self._expecting = Lock()
        self._expected: dict[str, list[float]] = {}
        """By study, what the model expects of each group after the answers about all, which never change."""

    def ledger(
        self,
        study_id: str,
        position: int | None,
        limit: int,
        *,
        newest: bool = False,
        shown: ledger_lines.LineFilter = ledger_lines.EVERY,
    ) -> tuple[list[wire.LedgerEntry], wire.LedgerPage]:
        """Lines of the ledger, and a page without lines that has the balances."""
        with self._context.database.read() as db:
            prices = prices_of(db, study_id)
            rows = ledger_lines.page(db, study_id, position=position, limit=limit, newest=newest, shown=shown)
            entries = [_entry(row, prices) for row in rows]
            balance = ledger_lines.balance(db, study_id)
        total = text(balance.total) if prices.release_bounded and prices.answers_bounded else None
        release = text(balance.release) if prices.release_bounded else None
        return entries, wire.LedgerPage(
            entries=[], release_epsilon=release, total_epsilon=total, total_plays=balance.plays, next_page_token=None
        )

    def exposure(
        self, study_id: str, position: int | None, limit: int, *, largest: bool, with_records: bool
    ) -> tuple[list[wire.RowExposure], str | None]:
        """The rows that were queried after a row, or before it with the ``largest`` first.

        And the epsilon of the release, which every row has spent.

        ``with_records`` adds the record of each row, if it is not erased. That reveals the secret order: for the owner.
        """
        with self._context.database.read() as db:
            prices = prices_of(db, study_id)
            spec = store.spec_of(db, study_id)
            page = ledger_lines.exposure(db, study_id, position=position, limit=limit, largest=largest)
            balance, again = ledger_lines.balance(db, study_id), most_by_row(db, study_id)
            shown = with_records and bool(page) and not is_groups(spec) and not store.is_erased(db, study_id)
            released = self._studies.of(db, study_id) if shown else None
            of_person = self._studies.persons(db, study_id) if page else alone
            others = {other for row in page for other in of_person(row.row)}
            totals = {row: of_row.total for row, of_row in ledger_lines.row_balances(db, study_id, others).items()}
            costs = ledger_lines.row_totals(db, study_id) if prices.of_pairs else {}
            refined = ledger_lines.refined_rows(db, study_id) if prices.refine else set()
        bounded = prices.release_bounded and prices.answers_bounded

        def spent(row: Any) -> str | None:
            if not bounded:
                return None
            row_cost = sum(totals.get(of_same, 0) for of_same in of_person(row.row))
            other = max((cost for group, cost in costs.items() if group != row.row), default=0)
            return text(prices.used(balance.release, row_cost, other, again.get(row.row, 1)))

        rows = [
            wire.RowExposure(
                row=row.row,
                record=None if released is None else released.record(row.row),
                file_row=None if released is None else released.file_row(int(released.order[row.row])),
                queries=row.row_queries,
                plays=row.row_plays,
                epsilon=text(row.row_total) if prices.answers_bounded else None,
                refined=row.row in refined,
                spent=spent(row),
            )
            for row in page
        ]
        return rows, text(balance.release) if prices.release_bounded else None

    def groups(self, study_id: str, position: int | None, limit: int) -> list[wire.GroupEntry]:
        """The groups of a study after a candidate. Raises StateConflict for a study of records, and Erased."""
        with self._context.database.read() as db:
            released = self._studies.of(db, study_id)
            if released.groups is None:
                raise StateConflict("the candidates of this study are records, not groups")
            if store.is_erased(db, study_id):
                raise Erased("the study was erased by its owner")
            first = 0 if position is None else position + 1
            rows = list(range(first, min(first + limit, released.n)))
            entries = group_entries(db, self._studies.vault, rows, released)
            body = answers_of_all(db, self._context, study_id)
        return entries if body is None else self._with_answers(entries, body, released)

    def _with_answers(self, entries: list[wire.GroupEntry], body: bytes, released: Released) -> list[wire.GroupEntry]:
        """Groups with the answers about all, and the one that these recommend: post-processing, with no randomness."""
        answers = wire.QueryReply.model_validate_json(body).answers
        with self._expecting:
            if (means := self._expected.get(released.study_id)) is None:
                means = _expected(self._studies.vault, released, answers)
                self._expected = dict([*self._expected.items()][1 - EXPECTED_KEPT :]) | {released.study_id: means}
        best = (max if released.spec.measurement.direction == "maximize" else min)(means, default=None)
        return [
            entry.model_copy(
                update={
                    "y": answers[entry.row].y,
                    "sd": sqrt(noise_variance(answers[entry.row])),
                    "expected": means[entry.row] if means else None,
                    "recommended": bool(means) and means[entry.row] == best,
                }
            )
            for entry in entries
        ]

    def accounting(self, study_id: str, delta: float | None) -> wire.Accounting:
        """The privacy cost of a study so far, by two accountants; ``delta``: the study's own if None.

        Depends on the queries, never on a value. Takes seconds for thousands of answers.
        """
        with self._context.database.read() as db:
            row = store.find(db, store.studies, study_id)
            spec = wire.StudyCreate.model_validate_json(row.spec)
            by_person = spec.person_column and Prices.of(spec).by_record
            dataset = store.find(db, store.datasets, row.dataset_id)
            n, of_release = int(dataset.persons if by_person else dataset.rows), store.report_of(db, study_id)
            if is_groups(spec):  # answers are about candidates, of which a record is behind one
                n = 0 if of_release is None else of_release.n
            current = release_status(db, spec, of_release)
            charged = ledger_lines.charged_at(db, study_id) is not None
            queried = [(spent, plays, 0, n) for spent, plays, n in ledger_lines.queried_rows(db, study_id)]
            if by_person or spec.refine is not None:
                of_person = self._studies.persons(db, study_id) if by_person else alone
                second_draws = Counter(of_person(row)[0] for row in ledger_lines.refined_rows(db, study_id))
                persons = ledger_lines.persons_queried(db, study_id, of_person)
                persons_alike = Counter((*amounts, second_draws[first]) for first, amounts in persons.items())
                queried = [(*amounts, many) for amounts, many in persons_alike.items()]
            again = max(most_by_row(db, study_id).values(), default=1)
        prices = Prices.of(spec)
        rows: Counter[int] = Counter()
        refined: Counter[tuple[int, int]] = Counter()
        for spent, plays, draws, many in queried:
            of_answers = spent - draws * prices.refine
            answers = of_answers // prices.answer if prices.answer else plays  # a mean is one release of several plays
            if draws:
                refined[answers, draws] += many
            else:
                rows[answers] += many
        total = sum(answers * many for answers, many in rows.items())
        total += sum(answers * many for (answers, _), many in refined.items())
        if never_queried := n - sum(rows.values()) - sum(refined.values()):
            rows[0] += never_queried
        at = delta if delta is not None else getattr(spec.release, "delta", None) or accounting.DELTA
        return accounting.report(
            spec, rows, total, at, released=charged, release=current.claimed, again=again, refined=refined
        )

    # --- overviews ----------------------------------------------------------------------------------

    def check(self, spec: wire.StudyCreate) -> wire.StudyCheck:
        """The guarantee and cost of a draft. Raises Invalid if it cannot be made."""
        with self._context.database.read() as db:
            dataset = dataset_view(store.find(db, store.datasets, spec.dataset_id))
            spec = fitted(spec, dataset)
            sample = sample_rows(db, self._studies.vault, spec)
            spec = with_columns(spec, sample)
            check_release_of(db, spec)
            current = release_status(db, spec, None)
            account = outlook(db, self._uses, spec, current.release)
            labels = Labels(self._context.seal)
            of_records = cautions_from_records(self._studies.vault, labels, db, spec, dataset)
        mechanism = mechanism_of(spec, current.release, sample)
        epsilon = epsilon_of(current.release) if current.status == "sound" else None
        if epsilon is not None and (record := whole(spec, current.release)) is not None:
            epsilon = wire.amount(record)
        if epsilon is not None and (measured := of_measured(spec)) is not None:
            epsilon = measured
        protected = protection(spec, current.claimed)
        hidden, whole_record = protected.figures if protected else (None, None)
        points, rho, offers = self._forecast_of(spec), rho_of(spec, mechanism, sample), promises(spec)
        fields = promised(spec, current, mechanism, dataset.rows, points, rho)
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


def _expected(vault: Vault, released: Released, answers: Sequence[wire.Answer]) -> list[float]:
    """The posterior mean of each group's outcome after one answer about each; empty without a model of so many."""
    from blindopt.optimizer.optimizer import Optimizer  # late: few studies need it

    if released.n > EXPECTED_MAX:
        return []
    spec = released.spec
    observations = [{"row": answer.row, "y": answer.y, "passport": answer.passport} for answer in answers]
    direction = spec.measurement.direction == "maximize"
    z = npy_files.load(vault.candidates(released.id))
    with suppress(NumericalFailure):
        optimizer = Optimizer(
            z, kernel=spec.kernel, maximize=direction, algorithm="ei", seed=0, observations=observations
        )
        means: list[float] = optimizer.posterior().mean.tolist()
        return means
    return []


def prices_of(db: Connection, study_id: str) -> Prices:
    return prices_by_study(db, [store.find(db, store.studies, study_id)])[study_id]


def prices_by_study(db: Connection, studies: Sequence[Any]) -> dict[str, Prices]:
    """The prices of studies, of which that of the release bounds nothing if its mechanism was withdrawn.

    What such a release was charged still counts towards the caps.
    """
    specs = {row.id: wire.StudyCreate.model_validate_json(row.spec) for row in studies}
    prices = {study_id: Prices.of(spec) for study_id, spec in specs.items()}
    if withdrawn := reasons(db):
        releases, datasets = store.releases_of(db, list(specs)), store.datasets_of(db, {s.dataset_id for s in studies})
        for row in studies:
            report = wire.ReleaseReport.model_validate_json(releases[row.id].report) if row.id in releases else None
            status = release_status(db, specs[row.id], report, withdrawn, datasets[row.dataset_id]).status
            if status == "withdrawn":
                prices[row.id] = replace(prices[row.id], release_bounded=False)
    return prices


def _entry(row: Any, prices: Prices) -> wire.LedgerEntry:
    bounded = prices.release_bounded if row.kind == "release" else prices.answers_bounded or row.kind == "refine"
    return wire.LedgerEntry(
        seq=row.seq,
        kind=row.kind,
        query_id=row.query_id,
        row=row.row,
        plays=row.plays,
        epsilon=row.cost if bounded else None,
        row_epsilon=text(row.row_total) if prices.answers_bounded else None,
        total_epsilon=text(row.total) if prices.answers_bounded and prices.release_bounded else None,
        total_plays=row.total_plays,
        cap=row.cap,
        created_at=moment(row.created_at),
    )
