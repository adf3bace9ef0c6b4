"""The owner's side: upload a dataset, draft a study, look at what a release would show, release it, grant it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from blindopt import wire
from blindopt.arguments import checked_methods, short_signature
from blindopt.client import reports, uploads
from blindopt.client.connection import ServiceClient, new_key, wait_until_ended
from blindopt.client.drafts import Columns, Outcome, Privacy, Tuning, columns_of, study_of, tuning_of, undecided
from blindopt.client.uploads import Reading, reading_of
from blindopt.display import Shown, Table, counted, facts
from blindopt.errors import Invalid, Remote
from blindopt.faults import dotted, nearest
from blindopt.formats.text_files import file_errors, save_secret
from blindopt.offers import sought
from blindopt.wire.base import parsed

WAIT_S = 7 * 86_400.0
"""The longest that a forecast or a tuning is waited for, in seconds."""


@checked_methods
class Owner(ServiceClient):
    """A data owner's curator, by its address and an owner's token: every request there is.

    ``upload``, ``dataset``, ``draft`` and ``study`` return objects with acts of their own. ``file`` holds the bytes of
    a CSV or Parquet file, and ``filename`` says by its ending which. ``name`` is for people. ``public`` declares that
    nobody in the table needs protection.

    >>> owner = bo.Owner("https://curator.example", token)  # doctest: +SKIP
    >>> dataset = owner.upload("houses.csv", name="houses")  # doctest: +SKIP
    """

    _start = ", and that the service runs: `blindopt-curator serve` starts it"

    def upload(
        self,
        data: Any,
        *,
        name: str,
        columns: Columns | None = None,
        person: str | None = None,
        rows_per_person: int | None = None,
        public: bool = False,
        reading: Reading | None = None,
    ) -> "Dataset":
        """Register ``data``: a DataFrame, the path of a CSV or Parquet file, or the bytes of a CSV file.

        The index of a DataFrame is left out: records are numbered from 1 as they stand.
        ``columns`` are names, or choices such as ``{"column": "cut", "kind": "one_hot", "values": ["Good", "Ideal"]}``;
        None: all, as numbers. ``person`` is the column that says whose a record is. ``rows_per_person`` is the most
        records of one person that are kept. ``public`` declares that nobody in the table needs protection.
        ``reading``, a ReadingChoice or its fields, says all of this about the file in place of the three.

        Raises Remote ``dataset_invalid`` where something has to be decided first. Its notes say what, by column.
        """
        file, filename = _file(data)
        choices = None if columns is None else columns_of(columns)
        choice = None if reading is None else reading_of(reading)
        try:
            view = self.register(
                name,
                file,
                filename=filename,
                public=public,
                columns=choices,
                person=person,
                rows_per_person=rows_per_person,
                reading=choice,
            )
        except Remote as error:
            if error.code == "dataset_invalid":
                for line in self._undecided(file, filename, choices):
                    error.add_note(line)
            raise
        return Dataset(self, view)

    def _undecided(self, file: bytes, filename: str, choices: Sequence[str | wire.ColumnChoice] | None) -> list[str]:
        """What has to be decided about a file that was refused; nothing where it cannot be read at all."""
        with suppress(Remote):
            upload = self.start_upload(file, filename=filename)
            survey = self.pending_upload(upload.id)
            self.discard_upload(upload.id)
            return undecided(survey.columns, choices)
        return []

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
        reading: wire.ReadingChoice | None = None,
        key: str | None = None,
    ) -> wire.DatasetView:
        """Register a CSV or Parquet file, also packed with gzip; only ``columns`` are read where given.

        ``person``: the column that says whose each row is; at most ``rows_per_person`` rows of each person are kept.
        ``reading`` says how the file is read, in place of the three.
        """
        choice = reading
        if choice is None:
            choices = None if columns is None else list(columns)
            choice = reading_of({"columns": choices, "person": person, "rows_per_person": rows_per_person})
        data = _fields(name, choice, public=public)
        return self._registered(data, {"file": (filename, file)}, key)

    def _registered(self, data: dict[str, str], files: dict[str, Any], key: str | None) -> wire.DatasetView:
        reply = self._send("POST", "/v1/datasets", key=key or new_key(), multipart=files, data=data)
        return reply.check().read(wire.DatasetView)

    def read(self, data: Any) -> "UploadedFile":
        """Keep ``data`` at the curator for 24 hours, and return how it was read. Nothing is stored yet.

        ``data`` is what ``upload`` takes. Correct the reading of what is returned, and store it. Raises Remote
        ``dataset_invalid`` for a file that is broken.
        """
        file, filename = _file(data)
        return UploadedFile(self, self.pending_upload(self.start_upload(file, filename=filename).id))

    def start_upload(self, file: bytes, *, filename: str = "data.csv", key: str | None = None) -> wire.UploadCreated:
        """Keep a file for 24 hours, to decide how its columns are read."""
        reply = self._send("POST", "/v1/uploads", key=key or new_key(), multipart={"file": (filename, file)})
        return reply.check().read(wire.UploadCreated)

    def pending_upload(self, upload_id: str) -> wire.PendingUpload:
        """What the columns of a pending file hold."""
        return self._get(f"/v1/uploads/{upload_id}", wire.PendingUpload)

    def read_upload(self, upload_id: str, reading: wire.ReadingChoice) -> wire.PendingUpload:
        """Read a pending file in another way, and count what a registration would store."""
        return self._post(f"/v1/uploads/{upload_id}:read", wire.PendingUpload, reading)

    def store_upload(
        self, upload_id: str, reading: wire.ReadingChoice, *, name: str, public: bool = False, key: str | None = None
    ) -> "Dataset":
        """Register a pending file, which is deleted then."""
        fields = _fields(name, reading, public=public)
        return Dataset(self, self._registered(fields, {"upload": (None, upload_id)}, key))

    def discard_upload(self, upload_id: str, *, key: str | None = None) -> wire.UploadDiscarded:
        """Delete a pending file."""
        return self._post(f"/v1/uploads/{upload_id}:discard", wire.UploadDiscarded, None, key)

    def dataset(self, dataset_id: str) -> "Dataset":
        """A registered dataset, by its id."""
        return Dataset(self, self._get(f"/v1/datasets/{dataset_id}", wire.DatasetView))

    def datasets(self) -> list["Dataset"]:
        """Every dataset, in the order of registration."""
        return [Dataset(self, view) for page in self._pages("/v1/datasets", wire.DatasetPage) for view in page.datasets]

    def report(self, study_or_dataset_id: str) -> wire.SignedPrivacyReport:
        """The signed privacy report: ``study_or_dataset_id`` is std_... or ds_..."""
        kind = "datasets" if study_or_dataset_id.startswith("ds_") else "studies"
        return self._post(f"/v1/{kind}/{study_or_dataset_id}:report", wire.SignedPrivacyReport)

    def letter(self, dataset_id: str, record: int | None = None, *, person: str | None = None) -> wire.SignedLetter:
        """A signed letter: what left of a ``record``, by its number in the file, or of a ``person``'s records."""
        body = parsed(wire.LetterCreate, {"record": record, "person": person})
        return self._post(f"/v1/datasets/{dataset_id}:letter", wire.SignedLetter, body)

    def archive_dataset(self, dataset_id: str, *, key: str | None = None) -> wire.DatasetView:
        """Refuse new studies on a dataset. Existing ones go on."""
        return self._post(f"/v1/datasets/{dataset_id}:archive", wire.DatasetView, None, key)

    def erase_dataset(self, dataset_id: str, *, key: str | None = None) -> wire.DatasetErased:
        """Erase an archived dataset for good, with candidates and answers of its studies.

        Raises Remote ``state_conflict``, which names the studies that are open and the work that is under way.
        """
        return self._post(f"/v1/datasets/{dataset_id}:erase", wire.DatasetErased, None, key)

    def withhold(
        self,
        dataset_id: str,
        record: int | None = None,
        *,
        file_row: int | None = None,
        label: str | None = None,
        person: str | None = None,
        dry_run: bool = False,
        key: str | None = None,
    ) -> wire.WithheldReply:
        """Measure and release a record, or a ``person``'s records, no more. Give one of the four.

        ``record``: its number in the file, from 1. ``file_row``: the same as a spreadsheet numbers it. ``label``: one
        that no other record has. ``dry_run``: only name the records, in ``named``.
        """
        fields = {"record": record, "file_row": file_row, "label": label, "person": person, "dry_run": dry_run}
        body = parsed(wire.WithholdCreate, fields)
        return self._post(f"/v1/datasets/{dataset_id}:withhold", wire.WithheldReply, body, key)

    def decide_overlap(
        self,
        dataset_id: str,
        continues: Sequence[str] = (),
        *,
        separate: str | None = None,
        pseudonyms_differ: bool = False,
        key: str | None = None,
    ) -> wire.DatasetView:
        """Decide about a dataset that has people of earlier ones: ``overlaps`` of its view names them.

        ``continues``: earlier datasets whose accounts become one with that of this dataset. ``separate``: why its
        account stays apart from that of any other. ``pseudonyms_differ``: persons have other names in ``continues``,
        so everybody starts at the amount of the person who has used most.
        """
        decision = {"continues": continues, "separate": separate, "pseudonyms_differ": pseudonyms_differ}
        body = parsed(wire.OverlapDecision, decision)
        return self._post(f"/v1/datasets/{dataset_id}:decide", wire.DatasetView, body, key)

    def find_bounds(self, dataset_id: str, bounds: wire.BoundsCreate, *, key: str | None = None) -> wire.PrivateBounds:
        """Find quantiles of columns privately; charged to the account of the dataset's file."""
        return self._post(f"/v1/datasets/{dataset_id}:bounds", wire.PrivateBounds, bounds, key)

    def bounds(self, dataset_id: str) -> list[wire.PrivateBounds]:
        """The first thousand private bounds of a dataset's file."""
        return self._get(f"/v1/datasets/{dataset_id}/bounds", wire.BoundsPage, page_size=1_000).bounds

    def create_study(self, study: wire.StudyCreate, *, key: str | None = None) -> wire.StudyOwnerView:
        """Make a draft."""
        return self._post("/v1/studies", wire.StudyOwnerView, study, key)

    def change_study(self, study_id: str, change: wire.StudyChange, *, key: str | None = None) -> wire.StudyOwnerView:
        """Replace a draft that was never charged."""
        return self._put(f"/v1/studies/{study_id}", wire.StudyOwnerView, change, key)

    def preview(self, study_id: str) -> reports.Preview:
        """Preview a release and run the attacks on a trial of it. Raises Remote ``busy`` during another preview."""
        return self._post(f"/v1/studies/{study_id}:preview", reports.Preview)

    def release(
        self, study_id: str, *, request: wire.ReleaseAsked | None = None, key: str | None = None
    ) -> wire.StudyOwnerView:
        """Draw and publish Z; the study is then open. ``request``: the draft that was read, and a confirmed risk."""
        return self._post(f"/v1/studies/{study_id}:release", wire.StudyOwnerView, request, key)

    def make_sandbox(self, study_id: str, *, key: str | None = None) -> wire.StudyOwnerView:
        """A released study on made-up rows, with the settings of a draft or an open study."""
        return self._post(f"/v1/studies/{study_id}:sandbox", wire.StudyOwnerView, None, key)

    def close_study(self, study_id: str, *, key: str | None = None) -> wire.StudyOwnerView:
        """Refuse further queries."""
        return self._post(f"/v1/studies/{study_id}:close", wire.StudyOwnerView, None, key)

    def check(self, study: wire.StudyCreate) -> reports.Check:
        """Guarantee, cost and cautions of a draft, before it is made. Changes nothing."""
        body = study.model_dump_json().encode()
        return self._send("POST", "/v1/studies:check", body=body).check().read(reports.Check)

    def studies(self) -> list[wire.StudyOwnerView]:
        """Every study, in the order of creation."""
        return [study for page in self._pages("/v1/studies", wire.StudyPage) for study in page.studies]

    def draft(self, study_id: str) -> "Draft":
        """A draft, by its id."""
        return Draft(self, self._study(study_id))

    def study(self, study_id: str) -> "ReleasedStudy":
        """A study, by its id: its ``view`` is what the curator says of it. Sends no request."""
        return ReleasedStudy(self, study_id)

    def _study(self, study_id: str) -> wire.StudyOwnerView:
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

    def limit_log(self, study_id: str, grant_id: str, quota: wire.LogQuota) -> wire.GrantView:
        """Set how many bytes a grant may add to the logs in a day."""
        return self._put(f"/v1/studies/{study_id}/grants/{grant_id}/log_quota", wire.GrantView, quota)

    def revoke_token(self, study_id: str, grant_id: str, kid: str) -> wire.GrantView:
        """Refuse one token of a grant, which is called ``kid``, from now on."""
        return self._post(f"/v1/studies/{study_id}/grants/{grant_id}/tokens/{kid}:revoke", wire.GrantView)

    def start_forecast(
        self, study_id: str, forecast: wire.ForecastCreate, *, key: str | None = None
    ) -> reports.Forecast:
        """Start to simulate what each privacy level would cost in quality."""
        return self._post(f"/v1/studies/{study_id}/forecasts", reports.Forecast, forecast, key)

    def forecast(self, study_id: str, forecast_id: str) -> reports.Forecast:
        """A forecast, with its points once it is completed."""
        return self._get(f"/v1/studies/{study_id}/forecasts/{forecast_id}", reports.Forecast)

    def forecasts(self, study_id: str) -> list[wire.ForecastView]:
        """Every forecast of a study, in order of creation."""
        pages = self._pages(f"/v1/studies/{study_id}/forecasts", wire.ForecastPage)
        return [forecast for page in pages for forecast in page.forecasts]

    def cancel_forecast(self, study_id: str, forecast_id: str, *, key: str | None = None) -> reports.Forecast:
        """End a forecast now."""
        return self._post(f"/v1/studies/{study_id}/forecasts/{forecast_id}:cancel", reports.Forecast, None, key)

    def wait_forecast(
        self, study_id: str, forecast_id: str, *, timeout_s: float, poll_s: float = 0.1
    ) -> reports.Forecast:
        """Wait until the forecast has ended. Raises StillRunning after ``timeout_s``."""
        name = f"forecast {forecast_id}"
        return wait_until_ended(lambda: self.forecast(study_id, forecast_id), name, timeout_s=timeout_s, poll_s=poll_s)

    def preview_tuning(self, tuning: Tuning) -> wire.TuningReport:
        """What a private tuning would cost and promise, and its expected accuracy. Spends nothing."""
        return self._post("/v1/tunings:preview", wire.TuningReport, tuning_of(tuning))

    def start_tuning(self, tuning: Tuning, *, key: str | None = None) -> wire.TuningView:
        """Charge a tuning and start it."""
        return self._post("/v1/tunings", wire.TuningView, tuning_of(tuning), key)

    def tune(self, tuning: Tuning) -> wire.TuningView:
        """Charge a private tuning, run it, and wait for its result."""
        return self.wait_tuning(self.start_tuning(tuning).id, timeout_s=WAIT_S)

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
        """Wait until the tuning has ended. Raises StillRunning after ``timeout_s``."""
        name = f"tuning {tuning_id}"
        return wait_until_ended(lambda: self.tuning(tuning_id), name, timeout_s=timeout_s, poll_s=poll_s)

    def account(self, dataset_id: str) -> reports.DatasetAccount:
        """The account of a dataset's file, with the first uses."""
        return self._get(f"/v1/datasets/{dataset_id}/account", reports.DatasetAccount)

    def uses(self, dataset_id: str) -> list[wire.DatasetUse]:
        """Every use of a dataset's file, and every change of its account."""
        pages = self._pages(f"/v1/datasets/{dataset_id}/account", wire.DatasetAccount)
        return [use for page in pages for use in page.uses]

    def change_caps(self, dataset_id: str, caps: wire.DatasetCaps, *, key: str | None = None) -> wire.DatasetAccount:
        """Declare, lower or raise the caps of the account of a dataset's file."""
        return self._put(f"/v1/datasets/{dataset_id}/account/caps", wire.DatasetAccount, caps, key)

    def raise_caps(self, study_id: str, change: wire.BudgetRaise, *, key: str | None = None) -> wire.StudyOwnerView:
        """Raise caps of an open study."""
        return self._put(f"/v1/studies/{study_id}/budget", wire.StudyOwnerView, change, key)

    def messages(self, *, study_id: str | None = None, only_open: bool = False) -> list[wire.MessageView]:
        """Recommendations of vendors, and requests for more budget; with ``only_open``, those without a decision."""
        params = {"only_open": "true" if only_open else "false"} | ({"study_id": study_id} if study_id else {})
        return [
            message for page in self._pages("/v1/messages", wire.MessagePage, **params) for message in page.messages
        ]

    def decide(self, message_id: str, decision: wire.MessageDecision, *, key: str | None = None) -> wire.MessageView:
        """Decide about a message; the vendor reads the decision."""
        return self._post(f"/v1/messages/{message_id}:decide", wire.MessageView, decision, key)

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
        """Proof that the log has only grown between the sizes ``first`` and ``second``."""
        return self._get("/v1/audit/consistency", wire.Consistency, first=first, second=second, grant_id=grant_id)


class UploadedFile(Shown):
    """A file that waits at the curator for 24 hours. ``view`` says how it was read: for its owner alone.

    >>> file = owner.read("houses.csv")  # doctest: +SKIP
    >>> print(file)  # doctest: +SKIP
    >>> built = {"kind": "number", "missing": "leave_out", "missing_values": ["?"]}  # doctest: +SKIP
    >>> stored = file.correct(columns={"built": built}).store(name="houses")  # doctest: +SKIP
    """

    def __init__(self, owner: "Owner", view: wire.PendingUpload) -> None:
        self.owner, self.view = owner, view
        self._decimal: wire.DecimalSign | None = None  # as declared, not as found

    @property
    def reading(self) -> wire.ReadingChoice | None:
        """How the file is read: as proposed, or as corrected last. None: no column can be read without a decision."""
        return self.view.reading

    def correct(self, **changes: Any) -> "UploadedFile":
        """Read the file in another way, and count again. Nothing is stored. Return the file.

        ``changes`` are fields of ReadingChoice: separator, decimal, encoding, missing_values, person, person_ids and
        rows_per_person. ``columns`` replaces all choices, or, as a dict by name, some of them: None leaves a column
        out, as ``person`` does with its own. Columns are proposed anew if one of the first four changes without them,
        and the decimal sign is found anew unless it was declared for this separator and encoding.

        Raises Invalid for what cannot be right, and Remote ``dataset_invalid`` with each fault.
        """
        fields = {} if self.reading is None else self.reading.model_dump()
        anew = changes.keys() & uploads.OF_CELLS and "columns" not in changes
        of_person = {str(changes["person"]).strip(): None} if changes.get("person") is not None else {}
        columns = changes.get("columns")
        if isinstance(columns, Mapping):
            names = [column.name for column in self.view.columns]
            if unknown := next((str(name) for name in columns if name not in names), None):
                argument = dotted(["columns", unknown])
                raise Invalid.at(argument, f"names no column of the file{nearest(unknown, names)}")
            changes["columns"] = self._with(of_person | dict(columns))
        elif of_person and "columns" not in changes:
            changes["columns"] = self._with(of_person) or None
        fields["decimal"] = None if changes.keys() & {"separator", "encoding"} else self._decimal
        reading = reading_of(fields | changes | ({"columns": None} if anew else {}))
        self.view = self.owner.read_upload(self.view.id, reading)
        self._decimal = reading.decimal
        return self

    def _with(self, columns: Mapping[str, Any]) -> list[Any]:
        """The choices so far, with these in their places."""
        choices: dict[str, Any] = {choice.column: choice for choice in uploads.choices_of(self.view)}
        for name, choice in columns.items():
            if isinstance(choice, str):
                raise Invalid.at(f"columns.{name}", "must be a choice such as {'kind': 'number'}, or None")
            choices[name] = {"column": name, **choice} if isinstance(choice, Mapping) else choice
        in_order = [*(column.name for column in self.view.columns), *choices]
        return [choices[name] for name in dict.fromkeys(in_order) if choices.get(name) is not None]

    def store(self, *, name: str, public: bool = False) -> "Dataset":
        """Register the file as it is read, and return the dataset: it has as many records as were counted.

        ``name`` is for people. ``public`` declares that nobody in the table needs protection.
        """
        if self.reading is None:
            raise Invalid("no column of the file is read: say how, with correct(columns=...)")
        return self.owner.store_upload(self.view.id, self.reading, name=name, public=public)

    def discard(self) -> None:
        """Delete the file at the curator."""
        self.owner.discard_upload(self.view.id)

    def __repr__(self) -> str:
        return f"<file {self.view.filename}: {uploads.remaining(self.view)}>"

    def _tables(self) -> list[Table]:
        return [
            Table(uploads.HEAD, uploads.rows_of(self.view), uploads.first_line(self.view)),
            *(Table((), (), note) for note in uploads.notes(self.view)),
        ]


class Dataset(Shown):
    """A registered table. ``view`` says what it holds: for its owner alone.

    >>> draft = dataset.study(
    ...     "Where do houses sell best?",
    ...     features={"area_m2": (40, 200), "built": (1900, 2020)},
    ...     outcome="price",
    ...     privacy={"mechanism": "groups", "epsilon": 0.5, "cells": {"kind": "grid", "parts": [3, 3]}, "min_count": 9},
    ...     answers={"epsilon": 0.5, "centre": 500, "value_bound": 400},
    ...     budget={"epsilon_per_row": 1, "queries": 50},
    ... )  # doctest: +SKIP
    """

    def __init__(self, owner: Owner, view: wire.DatasetView) -> None:
        self.owner, self.view = owner, view

    @property
    def id(self) -> str:
        """ds_..."""
        return self.view.id

    @short_signature
    def study(
        self,
        name: str,
        *,
        features: Mapping[str, Sequence[float]] | Sequence[wire.Feature],
        outcome: Outcome,
        privacy: Privacy,
        answers: wire.Answers | Mapping[str, Any] | Literal["exact"],
        direction: Literal["maximize", "minimize"] = "maximize",
        budget: wire.Budget | Mapping[str, Any] | None = None,
        kernel: wire.Kernel | Mapping[str, Any] | None = None,
        **more: Any,
    ) -> "Draft":
        """Make a draft. Nothing is drawn, charged or released, and all of this must be public knowledge.

        ``name`` is for people. ``features``: for each column its lower and upper bound, and the change of one record
        that is to be hidden, in the column's unit; without one its whole range is. ``outcome``: the column to optimize,
        or ``{"question": "How much?", "unit": "kg"}`` where people measure; ``direction``: what is best of it.
        ``privacy``: epsilon of the
        release, or its fields, such as ``{"epsilon": 3, "delta": 1e-5}``; "public" for a public dataset;
        ``{"mechanism": "groups", "epsilon": 0.25, "cells": {"kind": "grid", "parts": [20, 20]}, "min_count": 20}`` to
        look for the best group of records, which hides everything about a record. ``answers``: "exact", or the fields
        of noise, such as ``{"epsilon": 0.5, "centre": 45, "value_bound": 45}``. ``budget`` holds caps: queries,
        epsilon_per_row, epsilon_total. ``kernel``: public hyper-parameters, if you know some. ``more``: further fields
        of StudyCreate.

        Raises Invalid, naming the field, for what cannot be right.
        """
        body = study_of(
            {"name": name, "dataset_id": self.id, "budget": {} if budget is None else budget, "kernel": kernel, **more},
            features=features,
            outcome=outcome,
            direction=direction,
            privacy=privacy,
            answers=answers,
        )
        names = [column.name for column in self.view.columns]
        named = [(f"features.{column}", column) for column in features] if isinstance(features, Mapping) else []
        for argument, column in [*named, ("outcome", outcome)]:
            if isinstance(column, str) and column not in names:
                raise Invalid.at(dotted([argument]), f"names no column of the dataset{nearest(column, names)}")
        return Draft(self.owner, self.owner.create_study(body))

    def erase(self) -> wire.DatasetErased:
        """Archive the dataset, and erase it for good: its records, and candidates and answers of its studies.

        Ids, sizes, charges, the ledger and the logs stay, and vendors keep what they received. Raises Remote
        ``state_conflict`` while a study on it is open or drawn, and names it; the dataset is archived then.
        """
        self.owner.archive_dataset(self.id)
        return self.owner.erase_dataset(self.id)

    def account(self) -> reports.DatasetAccount:
        """What all studies and tunings have cost the records of this file."""
        return self.owner.account(self.id)

    def __repr__(self) -> str:
        return f"<dataset {self.view.name} ({self.id}): {self._size()}>"

    def _size(self) -> str:
        return f"{counted(self.view.rows, 'record')}, {counted(len(self.view.columns), 'column')}"

    def _tables(self) -> list[Table]:
        rows = [[column.name, column.minimum, column.maximum] for column in self.view.columns]
        caption = f"{self.view.name}: {self._size()}. Smallest and largest values are for you alone."
        return [Table(["Column", "Smallest", "Largest"], rows, caption)]


class Draft(Shown):
    """A draft of a study: nothing has left. ``view`` is the draft as it was read last.

    >>> study = draft.release()  # doctest: +SKIP
    """

    def __init__(self, owner: Owner, view: wire.StudyOwnerView) -> None:
        self.owner, self.view = owner, view

    @property
    def id(self) -> str:
        """std_..."""
        return self.view.id

    def check(self) -> reports.Check:
        """Guarantee, cost and cautions, from public values: choose by it as you like."""
        return self.owner.check(self.view.spec)

    def preview(self) -> reports.Preview:
        """Attack a trial release, which is thrown away. Do not choose public values by it: that leaks."""
        return self.owner.preview(self.id)

    def forecast(self, epsilons: Sequence[float | str] = (0.5, 1, 2, 4, 8), **options: Any) -> reports.Forecast:
        """Simulate a search at each of ``epsilons``, on public values. ``options`` are fields of ForecastCreate.

        It has as many queries as the study's cap allows, up to 500, unless ``queries`` says otherwise.
        """
        cap = self.view.spec.budget.queries
        allowed = {} if cap is None else {"queries": max(2, min(cap, 500))}
        request = parsed(wire.ForecastCreate, {"epsilons": epsilons, **allowed, **options})
        return self.owner.wait_forecast(self.id, self.owner.start_forecast(self.id, request).id, timeout_s=WAIT_S)

    def release(
        self, *, confirm_high_risk: bool = False, confirm_chance: bool = False, confirm_consent: bool = False
    ) -> "ReleasedStudy":
        """Draw and publish the candidates, once: this cannot be undone. The draft must be as it was read last.

        ``confirm_high_risk`` is needed after a preview with a high risk, ``confirm_chance`` with the caution
        ``answers_hide_search``, ``confirm_consent`` with ``refine`` where no person measures: all persons agreed
        beforehand that a measured record leaves again.
        """
        confirmed = {"confirm_high_risk": confirm_high_risk, "confirm_chance": confirm_chance}
        confirmed["confirm_consent"] = confirm_consent
        fields = {"spec_sha256": self.view.spec_sha256, **confirmed}
        request = parsed(wire.ReleaseAsked, fields)
        return ReleasedStudy(self.owner, self.owner.release(self.id, request=request).id)

    def __repr__(self) -> str:
        return f"<draft {self.view.spec.name} ({self.id})>"

    def _tables(self) -> list[Table]:
        values = {
            "Draft": self.view.spec.name,
            "Id": self.id,
            "Looks for": sought(self.view.spec.goal, self.view.spec.measurement.direction),
        }
        return [facts(values | {"Guarantee": self.view.guarantee, "Not protected": self.view.not_protected})]


class ReleasedStudy(Shown):
    """A released study.

    >>> study.grant("Acme").save("grant.json")  # doctest: +SKIP
    """

    def __init__(self, owner: Owner, study_id: str) -> None:
        self.owner, self.id = owner, study_id

    @property
    def view(self) -> wire.StudyOwnerView:
        """The study as it is now."""
        return self.owner._study(self.id)

    @short_signature
    def another(
        self,
        name: str,
        *,
        outcome: Outcome,
        answers: wire.Answers | Mapping[str, Any] | Literal["exact"],
        direction: Literal["maximize", "minimize"] = "maximize",
        budget: wire.Budget | Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Draft:
        """Make a draft for another outcome of this study's candidates: only its answers use epsilon.

        ``name``, ``outcome``, ``answers``, ``direction``, ``budget`` and ``more`` are those of ``Dataset.study``; all
        that made the candidates stays. Its caps count the release, the account of the file counts it once. Raises
        Invalid, naming the field, for what cannot be right.
        """
        spec = self.view.spec
        read = {"release_of": spec.release_of or self.id, "rows_per_person": spec.rows_per_person}
        body = study_of(
            {"name": name, "dataset_id": spec.dataset_id, "budget": {} if budget is None else budget, **read, **more},
            features=spec.features,
            outcome=outcome,
            direction=direction,
            privacy=spec.release,
            answers=answers,
        )
        return Draft(self.owner, self.owner.create_study(body))

    def grant(self, name: str, *, days: int = 90) -> "Grant":
        """Let a vendor, whose ``name`` is for people, query the study for ``days`` days."""
        request = parsed(wire.GrantCreate, {"name": name, "expires_in_days": days}, {"expires_in_days": "days"})
        reply = self.owner.grant(self.id, request)
        return Grant(reply, reply.url or self.owner.url)

    def account(self) -> reports.StudyAccount:
        """What the study has spent, beside its caps."""
        return self.owner._get(f"/v1/studies/{self.id}/account", reports.StudyAccount)

    def report(self) -> wire.SignedPrivacyReport:
        """The signed privacy report, which ``blindopt-curator report verify`` checks."""
        return self.owner.report(self.id)

    @property
    def messages(self) -> list["Message"]:
        """What vendors sent: recommendations, and requests for more budget."""
        return [Message(self, view) for view in self.owner.messages(study_id=self.id)]

    def open_record(self, candidate: int) -> dict[str, float]:
        """The record behind a ``candidate``, by column. The log says that one was opened."""
        view = self.owner._post(f"/v1/studies/{self.id}:open_record", wire.RecordView, _choice(candidate))
        return {shown.column: shown.value for shown in view.columns}

    def groups(self) -> reports.Groups:
        """The groups of a groups study: place, noisy number of records, what answers cost, and after ``answer_all`` y.

        ``expected`` is then what the model of all answers expects of a group, and one group is ``recommended``.
        """
        pages = self.owner._pages(f"/v1/studies/{self.id}/groups", wire.GroupPage)
        return reports.Groups(group for page in pages for group in page.groups)

    def answer_all(self) -> reports.Groups:
        """Answer about every group of a groups study at once, for all grants, and return ``groups()``.

        A record uses the epsilon of one answer at most, because it is in one group. Once: a repetition draws and
        charges nothing. Raises Remote ``privacy_budget_exhausted`` where a cap leaves no room.
        """
        self.owner._post(f"/v1/studies/{self.id}:answer_all", wire.QueryReply)
        return self.groups()

    def open_group(self, candidate: int) -> reports.Group:
        """The group behind a ``candidate`` of a groups study, with its records. The log says that one was opened."""
        return self.owner._post(f"/v1/studies/{self.id}:open_group", reports.Group, _choice(candidate))

    def close(self) -> wire.StudyOwnerView:
        """Refuse further queries, for good."""
        return self.owner.close_study(self.id)

    def __repr__(self) -> str:
        return f"<study {self.id}>"

    def _tables(self) -> list[Table]:
        view = self.view
        values = {"Study": view.spec.name, "Id": view.id, "State": view.state, "Dataset": view.spec.dataset_id}
        return [
            facts(
                values
                | {"Looks for": sought(view.spec.goal, view.spec.measurement.direction), "Guarantee": view.guarantee}
            )
        ]


@checked_methods
class Grant:
    """A new grant with its token, which is a secret. Neither ``repr`` nor a notebook shows it.

    >>> study.grant("Own loop", days=30).save("own-loop.json")  # doctest: +SKIP
    """

    def __init__(self, reply: wire.GrantReply, address: str) -> None:
        self.id, self.name, self.expires_at = reply.id, reply.name, reply.expires_at
        self.file = wire.GrantFile.of(reply, address)

    def save(self, path: str | Path) -> Path:
        """Write a file ``path`` that only you can read, to send over a private channel. Never overwrites a file."""
        with file_errors(path, "written"):
            save_secret(path, self.file.model_dump_json(indent=2))
        return Path(path)

    def __repr__(self) -> str:
        return f"<grant {self.id} for {self.name}, until {self.expires_at:%Y-%m-%d}>"


class Message:
    """A message of a vendor. ``view`` holds its content and state.

    >>> for message in study.messages:  # doctest: +SKIP
    ...     message.decide("accepted", "Thank you.")
    """

    def __init__(self, study: ReleasedStudy, view: wire.MessageView) -> None:
        self.study, self.view = study, view

    def decide(
        self, decision: Literal["accepted", "rejected", "measured", "approved", "declined"], word: str | None = None
    ) -> None:
        """Decide about it; the vendor reads the ``decision`` and your ``word``."""
        request = parsed(wire.MessageDecision, {"decision": decision, "word": word})
        self.view = self.study.owner.decide(self.view.id, request)

    def __repr__(self) -> str:
        return f"<{self.view.message.kind} of {self.view.name}: {self.view.state}>"


def _choice(candidate: int) -> wire.RecordChoice:
    return parsed(wire.RecordChoice, {"row": candidate}, {"row": "candidate"})


def _fields(name: str, reading: wire.ReadingChoice, *, public: bool) -> dict[str, str]:
    fields = reading.model_dump(mode="json", exclude_defaults=True)
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in fields.items()}
    return {"name": name, "public": "true" if public else "false", **texts}


def _file(data: Any) -> tuple[bytes, str]:
    """The bytes of a table, and a name that says their format."""
    if isinstance(data, bytes):
        return data, "data.csv"
    if isinstance(data, str | Path):
        try:
            with file_errors(data):
                return Path(data).read_bytes(), Path(data).name
        except ValueError:  # a null character, or half of a sign
            raise Invalid("a path of a table has a character that no file name has") from None
    if not callable(getattr(data, "to_csv", None)):
        raise Invalid("a table is a DataFrame, the path of a CSV or Parquet file, or the bytes of a CSV file")
    return str(data.to_csv(index=False)).encode(), "data.csv"
