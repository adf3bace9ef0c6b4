"""All of the curator's use cases, wired."""

import json

from blindopt import wire
from blindopt.errors import BlindoptError
from curator_service import store
from curator_service.budget.budgets import Budgets
from curator_service.budget.people import People
from curator_service.budget.views import DatasetAccounts
from curator_service.datasets.datasets import Datasets
from curator_service.datasets.private_bounds import BoundsSearch
from curator_service.datasets.readings import Readings
from curator_service.datasets.same_people import SamePeople
from curator_service.datasets.uploads import SWEEP_SECONDS, Uploads
from curator_service.erasure.erasure import Erasures
from curator_service.privacy import loading
from curator_service.queries.answer_versions import AnswerVersions
from curator_service.queries.inbox.inbox import Deadlines, Inbox
from curator_service.queries.inbox.webhook_measurer import WebhookMeasurer
from curator_service.queries.inbox.withholding import Withholding
from curator_service.queries.queries import Queries
from curator_service.releases.attack_preview import Previews
from curator_service.releases.forecast_jobs import Forecasts, PublicForecasts
from curator_service.releases.releases import Releases
from curator_service.releases.sandboxes import Sandboxes
from curator_service.reports.accounts import Accounts
from curator_service.reports.feature_results import FeatureResults
from curator_service.reports.letters import Letters
from curator_service.reports.privacy_reports import PrivacyReports
from curator_service.settings import Settings
from curator_service.studies.grants import Grants
from curator_service.studies.messages import Messages
from curator_service.studies.release_cache import ReleasedStudies
from curator_service.studies.studies import Studies
from curator_service.tuning.tunings import Tunings
from curator_service.vault import Vault
from service_kit.background import Background
from service_kit.context.context import ServiceContext
from service_kit.runner.runner import Runner
from service_kit.store.base import states
from service_kit.store.database import Connection, StoreFault
from service_kit.web.metrics import Figures, of_commits
from service_kit.web.wakeups import Wakeups

_AGAIN_SECONDS = 1.0


class Curator:
    """All use cases that may read records. Safe to call from several threads."""

    def __init__(self, context: ServiceContext, vault: Vault, settings: Settings) -> None:
        self.context = context
        self.vault = vault
        with context.database.read() as db:
            recorded = store.with_files(db)
        self.limits = wire.Limits(rows_per_query=settings.query_rows_max, plays_per_row=settings.query_plays_max)
        self.runner = Runner()
        self.uploads = Uploads(context, vault, settings)
        people = People(vault, context.seal)
        self.same_people = SamePeople(context, vault, people)
        self.budgets = Budgets(context, vault, people)
        self.datasets = Datasets(context, vault, settings, self.uploads, self.same_people, self.budgets.uses)
        self.bounds = BoundsSearch(context, vault, self.budgets)
        self.released = ReleasedStudies(vault)
        self.erasures = Erasures(context, vault, self.released, self.budgets, self.uploads, settings.data_dir)
        self.erasures.finish()
        if context.audit_trail.is_sound and context.audit_trail.head().size:  # else it may be the wrong database
            vault.keep_only(recorded)
        self.studies = Studies(context, self.budgets.uses, settings, vault)
        self.public_forecasts = PublicForecasts(context, self.runner)
        previews = Previews(self.runner)
        self.releases = Releases(context, vault, self.budgets, self.runner, previews, self.public_forecasts.points)
        self.sandboxes = Sandboxes(context, vault, self.releases)
        self.grants = Grants(context, vault, settings)
        self.wakeups = Wakeups()
        versions = AnswerVersions(context, self.released, self.budgets, self.wakeups)
        self.inbox = Inbox(context, vault, self.released, versions, self.wakeups)
        of_queries = self.released, self.budgets, self.inbox.decline_withheld
        self.queries = Queries(context, vault, self.limits, *of_queries, self.wakeups)
        self.withholding = Withholding(context, vault, self.released, self.inbox, self.same_people)
        self.deadlines = Deadlines(context, self.inbox, versions, self.wakeups)
        self.webhook_measurer = WebhookMeasurer(context, self.inbox, self.wakeups, settings)
        self.accounts = Accounts(context, self.released, self.budgets.uses, self.public_forecasts.points)
        self.dataset_accounts = DatasetAccounts(context, vault, self.budgets)
        self.messages = Messages(context, self.released)
        self.feature_results = FeatureResults(context, self.released)
        self.privacy_reports = PrivacyReports(context, vault, self.accounts, self.dataset_accounts, previews)
        self.letters = Letters(context, vault, self.budgets.uses, self.withholding)
        self.forecasts = Forecasts(context, vault, settings, self.runner)
        self.tunings = Tunings(context, vault, settings, self.budgets, self.runner)
        self.readings = Readings(self.runner)
        self._background = [
            Background("uploads", self.uploads.sweep, first_s=SWEEP_SECONDS, every_s=SWEEP_SECONDS),
            Background("recovery", self.recover),
            Background("loading", loading.load, first_s=loading.FIRST_SECONDS),
        ]

    def jobs(self) -> dict[str, dict[str, int]]:
        with self.context.database.read() as db:
            return {"tuning": states(db, store.tunings), "forecast": states(db, store.forecasts)}

    def gauges(self) -> Figures:
        """Its figures. How long commits take is left out while an open study hides how long its answers take."""
        yield from self.dataset_accounts.gauges()
        yield from self.grants.gauges()
        yield lambda: None if self._hides_times() else of_commits(self.context)

    def _hides_times(self) -> bool:
        with self.context.database.read() as db:
            return any(json.loads(spec).get("reply_after_ms") is not None for _, spec in store.open_specs(db))

    def under_way(self) -> wire.JobList:
        """Previews, releases, forecasts and tunings that have not ended, and files that are read."""
        with self.context.database.read() as db:
            jobs = [
                wire.JobView.model_validate(
                    {
                        "kind": task.kind.name,
                        "id": task.id,
                        "study_id": task.study_id,
                        "name": task.name if task.study_id is None else _name(db, task.study_id),
                        "progress": task.progress,
                        "ahead": before,
                    }
                )
                for task, before in self.runner.under_way()
            ]
        return wire.JobList(jobs=jobs)

    def recover(self) -> float | None:
        """End what a crash or a shutdown interrupted; the seconds after which to try again what could not be ended.

        Once the log is verified: what is interrupted is what the tables say. A row that a finding names stays until a
        verification finds that the edit was taken back.
        """
        try:
            have_ended = [
                service.recover() for service in (self.releases, self.forecasts, self.tunings, self.same_people)
            ]
        except (BlindoptError, StoreFault):
            return _AGAIN_SECONDS
        return None if all(have_ended) else _AGAIN_SECONDS

    def start(self) -> None:
        self.wakeups.attach()
        self.webhook_measurer.start()
        for work in (self.deadlines, *self._background):
            work.start()

    def close(self) -> None:
        self.runner.close()
        self.webhook_measurer.close()
        for work in (self.deadlines, *self._background):
            work.close()


def _name(db: Connection, study_id: str) -> str:
    return store.spec_of(db, study_id).name
