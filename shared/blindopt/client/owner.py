"""A data owner's client of the curator."""

import json
from collections.abc import Iterator, Sequence

from blindopt import wire
from blindopt.client.connection import ServiceClient, new_key, wait_until_ended


class OwnerClient(ServiceClient):
    """A data owner's view of a curator."""

    def register(
        self,
        name: str,
        file: bytes,
        *,
        filename: str = "data.csv",
        public: bool = False,
        columns: Sequence[str | wire.ColumnChoice] | None = None,
        person: str | None = None,
        rows_per_person: int | None = None,
        key: str | None = None,
    ) -> wire.DatasetView:
        """Register a CSV or Parquet file, also packed with gzip; only ``columns`` are read where given.

        ``person``: the column that says whose each row is; at most ``rows_per_person`` rows of each person are kept.
        """
        data = {"name": name, "public": "true" if public else "false"}
        if columns is not None:
            plain = [each if isinstance(each, str) else each.model_dump(mode="json") for each in columns]
            data["columns"] = json.dumps(plain)
        if person is not None:
            data["person"] = person
        if rows_per_person is not None:
            data["rows_per_person"] = str(rows_per_person)
        files = {"file": (filename, file)}
        reply = self._send("POST", "/v1/datasets", key=key or new_key(), multipart=files, data=data)
        return reply.check().read(wire.DatasetView)

    def start_upload(self, file: bytes, *, filename: str = "data.csv", key: str | None = None) -> wire.UploadCreated:
        """Keep a file for 24 hours, to decide how its columns are read."""
        reply = self._send("POST", "/v1/uploads", key=key or new_key(), multipart={"file": (filename, file)})
        return reply.check().read(wire.UploadCreated)

    def upload(self, upload_id: str) -> wire.PendingUpload:
        """What the columns of a pending file hold."""
        return self._get(f"/v1/uploads/{upload_id}", wire.PendingUpload)

    def discard_upload(self, upload_id: str, *, key: str | None = None) -> wire.UploadDiscarded:
        """Delete a pending file."""
        return self._post(f"/v1/uploads/{upload_id}:discard", wire.UploadDiscarded, None, key)

    def dataset(self, dataset_id: str) -> wire.DatasetView:
        """A dataset with its columns."""
        return self._get(f"/v1/datasets/{dataset_id}", wire.DatasetView)

    def datasets(self) -> list[wire.DatasetView]:
        """Every dataset, in the order of registration."""
        return [dataset for page in self._pages("/v1/datasets", wire.DatasetPage) for dataset in page.datasets]

    def report(self, identity: str) -> wire.SignedPrivacyReport:
        """The signed privacy report of a study (std_...), or of a dataset (ds_...)."""
        kind = "datasets" if identity.startswith("ds_") else "studies"
        return self._post(f"/v1/{kind}/{identity}:report", wire.SignedPrivacyReport)

    def archive_dataset(self, dataset_id: str, *, key: str | None = None) -> wire.DatasetView:
        """Refuse new studies on a dataset. Existing ones go on."""
        return self._post(f"/v1/datasets/{dataset_id}:archive", wire.DatasetView, None, key)

    def erase_dataset(self, dataset_id: str, *, key: str | None = None) -> wire.DatasetErased:
        """Erase an archived dataset for good, with candidates and answers of its studies.

        Raises Remote ``state_conflict``, which names the studies that are open and the work that is under way.
        """
        return self._post(f"/v1/datasets/{dataset_id}:erase", wire.DatasetErased, None, key)

    def withhold(
        self, dataset_id: str, record: int | None = None, *, person: str | None = None, key: str | None = None
    ) -> wire.WithheldReply:
        """Measure and release a record (its number in the file, from 1), or a person's records, no more."""
        wanted = wire.WithholdCreate(record=record, person=person)
        return self._post(f"/v1/datasets/{dataset_id}:withhold", wire.WithheldReply, wanted, key)

    def find_bounds(self, dataset_id: str, wanted: wire.BoundsCreate, *, key: str | None = None) -> wire.PrivateBounds:
        """Find quantiles of columns privately; charged to the account of the dataset's file."""
        return self._post(f"/v1/datasets/{dataset_id}:bounds", wire.PrivateBounds, wanted, key)

    def bounds(self, dataset_id: str) -> list[wire.PrivateBounds]:
        """The first thousand private bounds of a dataset's file."""
        return self._get(f"/v1/datasets/{dataset_id}/bounds", wire.BoundsPage, page_size=1_000).bounds

    def create_study(self, study: wire.StudyCreate, *, key: str | None = None) -> wire.StudyOwnerView:
        """Make a draft."""
        return self._post("/v1/studies", wire.StudyOwnerView, study, key)

    def change_study(self, study_id: str, change: wire.StudyChange, *, key: str | None = None) -> wire.StudyOwnerView:
        """Replace a draft that was never charged."""
        content = change.model_dump_json().encode()
        reply = self._send("PUT", f"/v1/studies/{study_id}", body=content, key=key or new_key())
        return reply.check().read(wire.StudyOwnerView)

    def preview(self, study_id: str) -> wire.ReleaseReport:
        """Preview a release and run the attacks on a trial of it. Raises Remote ``busy`` during another preview."""
        return self._post(f"/v1/studies/{study_id}:preview", wire.ReleaseReport)

    def release(
        self, study_id: str, *, wanted: wire.ReleaseAsked | None = None, key: str | None = None
    ) -> wire.StudyOwnerView:
        """Draw and publish Z; the study is then open. ``wanted``: the draft that was read, and a confirmed risk."""
        return self._post(f"/v1/studies/{study_id}:release", wire.StudyOwnerView, wanted, key)

    def make_sandbox(self, study_id: str, *, key: str | None = None) -> wire.StudyOwnerView:
        """A released study on made-up rows, with the settings of a draft or an open study."""
        return self._post(f"/v1/studies/{study_id}:sandbox", wire.StudyOwnerView, None, key)

    def close_study(self, study_id: str, *, key: str | None = None) -> wire.StudyOwnerView:
        """Refuse further queries."""
        return self._post(f"/v1/studies/{study_id}:close", wire.StudyOwnerView, None, key)

    def check(self, study: wire.StudyCreate) -> wire.StudyCheck:
        """Guarantee, cost and cautions of a draft, before it is made. Changes nothing."""
        body = study.model_dump_json().encode()
        return self._send("POST", "/v1/studies:check", body=body).check().read(wire.StudyCheck)

    def studies(self) -> list[wire.StudyOwnerView]:
        """Every study, in the order of creation."""
        return [study for page in self._pages("/v1/studies", wire.StudyPage) for study in page.studies]

    def study_account(self, study_id: str) -> wire.StudyAccount:
        """What a study has spent, beside its caps."""
        return self._get(f"/v1/studies/{study_id}/account", wire.StudyAccount)

    def study(self, study_id: str) -> wire.StudyOwnerView:
        """A study with its report."""
        return self._get(f"/v1/studies/{study_id}", wire.StudyOwnerView)

    def grant(self, study_id: str, grant: wire.GrantCreate, *, key: str | None = None) -> wire.GrantReply:
        """A token for one modeler."""
        return self._post(f"/v1/studies/{study_id}/grants", wire.GrantReply, grant, key)

    def rotate(
        self, study_id: str, grant_id: str, rotation: wire.Rotation, *, key: str | None = None
    ) -> wire.GrantReply:
        """A further token for a grant."""
        return self._post(f"/v1/studies/{study_id}/grants/{grant_id}:rotate", wire.GrantReply, rotation, key)

    def grants(self, study_id: str) -> list[wire.GrantView]:
        """The first thousand grants of a study, with their tokens' state."""
        return self._get(f"/v1/studies/{study_id}/grants", wire.GrantPage, page_size=1_000).grants

    def revoke(self, study_id: str, grant_id: str) -> wire.GrantView:
        """Refuse all tokens of a grant from now on."""
        return self._post(f"/v1/studies/{study_id}/grants/{grant_id}:revoke", wire.GrantView)

    def revoke_token(self, study_id: str, grant_id: str, kid: str) -> wire.GrantView:
        """Refuse one token of a grant from now on."""
        return self._post(f"/v1/studies/{study_id}/grants/{grant_id}/tokens/{kid}:revoke", wire.GrantView)

    def start_forecast(
        self, study_id: str, forecast: wire.ForecastCreate, *, key: str | None = None
    ) -> wire.ForecastView:
        """Start to simulate what each privacy level would cost in quality."""
        return self._post(f"/v1/studies/{study_id}/forecasts", wire.ForecastView, forecast, key)

    def forecast(self, study_id: str, forecast_id: str) -> wire.ForecastView:
        """A forecast, with its points once it is completed."""
        return self._get(f"/v1/studies/{study_id}/forecasts/{forecast_id}", wire.ForecastView)

    def forecasts(self, study_id: str) -> list[wire.ForecastView]:
        """Every forecast of a study, in order of creation."""
        pages = self._pages(f"/v1/studies/{study_id}/forecasts", wire.ForecastPage)
        return [forecast for page in pages for forecast in page.forecasts]

    def cancel_forecast(self, study_id: str, forecast_id: str, *, key: str | None = None) -> wire.ForecastView:
        """End a forecast now."""
        return self._post(f"/v1/studies/{study_id}/forecasts/{forecast_id}:cancel", wire.ForecastView, None, key)

    def wait_forecast(
        self, study_id: str, forecast_id: str, *, timeout_s: float, poll_s: float = 0.1
    ) -> wire.ForecastView:
        """Poll until the forecast has ended; Unreachable after ``timeout_s``."""
        name = f"forecast {forecast_id}"
        return wait_until_ended(lambda: self.forecast(study_id, forecast_id), name, timeout_s=timeout_s, poll_s=poll_s)

    def preview_tuning(self, tuning: wire.TuningCreate) -> wire.TuningReport:
        """What a tuning would cost and promise, and its expected accuracy. Spends nothing."""
        return self._post("/v1/tunings:preview", wire.TuningReport, tuning)

    def start_tuning(self, tuning: wire.TuningCreate, *, key: str | None = None) -> wire.TuningView:
        """Charge a tuning and start it."""
        return self._post("/v1/tunings", wire.TuningView, tuning, key)

    def tuning(self, tuning_id: str) -> wire.TuningView:
        """A tuning, with its result once it is completed."""
        return self._get(f"/v1/tunings/{tuning_id}", wire.TuningView)

    def tunings(self) -> list[wire.TuningView]:
        """Every tuning, in order of creation."""
        return [tuning for page in self._pages("/v1/tunings", wire.TuningPage) for tuning in page.tunings]

    def cancel_tuning(self, tuning_id: str, *, key: str | None = None) -> wire.TuningView:
        """End a tuning now; what it was charged stays spent."""
        return self._post(f"/v1/tunings/{tuning_id}:cancel", wire.TuningView, None, key)

    def wait_tuning(self, tuning_id: str, *, timeout_s: float, poll_s: float = 0.1) -> wire.TuningView:
        """Poll until the tuning has ended; Unreachable after ``timeout_s``."""
        name = f"tuning {tuning_id}"
        return wait_until_ended(lambda: self.tuning(tuning_id), name, timeout_s=timeout_s, poll_s=poll_s)

    def account(self, dataset_id: str) -> wire.DatasetAccount:
        """The account of a dataset's file, with the first uses."""
        return self._get(f"/v1/datasets/{dataset_id}/account", wire.DatasetAccount)

    def uses(self, dataset_id: str) -> list[wire.DatasetUse]:
        """Every use of a dataset's file, and every change of its account."""
        pages = self._pages(f"/v1/datasets/{dataset_id}/account", wire.DatasetAccount)
        return [use for page in pages for use in page.uses]

    def change_caps(self, dataset_id: str, caps: wire.DatasetCaps, *, key: str | None = None) -> wire.DatasetAccount:
        """Declare, lower or raise the caps of the account of a dataset's file."""
        path, body = f"/v1/datasets/{dataset_id}/account/caps", caps.model_dump_json().encode()
        return self._send("PUT", path, body=body, key=key or new_key()).check().read(wire.DatasetAccount)

    def raise_caps(self, study_id: str, change: wire.BudgetRaise, *, key: str | None = None) -> wire.StudyOwnerView:
        """Raise caps of an open study."""
        path, body = f"/v1/studies/{study_id}/budget", change.model_dump_json().encode()
        return self._send("PUT", path, body=body, key=key or new_key()).check().read(wire.StudyOwnerView)

    def messages(self, *, study_id: str | None = None, only_open: bool = False) -> list[wire.MessageView]:
        """Messages of vendors: recommendations, and requests for more budget."""
        params = {"only_open": "true" if only_open else "false"} | ({"study_id": study_id} if study_id else {})
        return [
            message for page in self._pages("/v1/messages", wire.MessagePage, **params) for message in page.messages
        ]

    def decide(self, message_id: str, decision: wire.MessageDecision, *, key: str | None = None) -> wire.MessageView:
        """Decide about a message; the vendor reads the decision."""
        return self._post(f"/v1/messages/{message_id}:decide", wire.MessageView, decision, key)

    def open_record(self, study_id: str, row: int) -> wire.RecordView:
        """The record behind a candidate. The log says that one was opened."""
        return self._post(f"/v1/studies/{study_id}:open_record", wire.RecordView, wire.RecordChoice(row=row))

    def groups(self, study_id: str) -> Iterator[wire.GroupEntry]:
        """The groups of a groups study, with what was released about each and what its answers cost."""
        for page in self._pages(f"/v1/studies/{study_id}/groups", wire.GroupPage):
            yield from page.groups

    def open_group(self, study_id: str, row: int) -> wire.GroupView:
        """The group behind a candidate of a groups study, with its records; the log says that one was opened."""
        return self._post(f"/v1/studies/{study_id}:open_group", wire.GroupView, wire.RecordChoice(row=row))

    def ledger(self, study_id: str) -> Iterator[wire.LedgerEntry]:
        """Every charge and refusal of a study."""
        for page in self._pages(f"/v1/studies/{study_id}/ledger", wire.LedgerPage):
            yield from page.entries

    def balance(self, study_id: str) -> wire.LedgerPage:
        """What a study has spent, without the lines."""
        return self._get(f"/v1/studies/{study_id}/ledger", wire.LedgerPage, page_size=1)

    def results(self, study_id: str) -> wire.StudyResults:
        """The answers of a study against each feature, with its relevance."""
        return self._get(f"/v1/studies/{study_id}/results", wire.StudyResults)

    def exposure(self, study_id: str) -> Iterator[wire.RowExposure]:
        """Every row that was queried, and what its answers cost."""
        for page in self._pages(f"/v1/studies/{study_id}/exposure", wire.ExposurePage):
            yield from page.rows

    def accounting(self, study_id: str, *, delta: float | None = None) -> wire.Accounting:
        """What a study has cost so far, by the sum and tightly at ``delta``."""
        return self._get(f"/v1/studies/{study_id}/accounting", wire.Accounting, delta=delta)

    def checkpoint(self, grant_id: str | None = None) -> wire.Checkpoint:
        """The signed head of the log, or of the shared one of a grant."""
        return self._get("/v1/audit/checkpoint", wire.Checkpoint, grant_id=grant_id)

    def consistency(self, first: int, second: int, grant_id: str | None = None) -> wire.Consistency:
        """Proof that the log has only grown between two sizes."""
        return self._get("/v1/audit/consistency", wire.Consistency, first=first, second=second, grant_id=grant_id)
