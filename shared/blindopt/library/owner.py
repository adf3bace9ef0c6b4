"""The owner's side: upload a dataset, draft a study, look at what a release would show, release it, grant it.

>>> import blindopt as bo
>>> owner = bo.Owner("https://curator.example", token)  # doctest: +SKIP
>>> dataset = owner.upload("houses.csv", name="houses")  # doctest: +SKIP
>>> draft = dataset.study("prices", features={"area": (30, 250, 20)}, outcome="price",
...                       privacy=3, answers={"epsilon": 1, "centre": 500, "value_bound": 500})  # doctest: +SKIP
>>> draft.preview()  # doctest: +SKIP
>>> draft.release().grant("Acme").save("grant.json")  # doctest: +SKIP
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from blindopt import wire
from blindopt.client import OwnerClient
from blindopt.errors import Invalid, Remote
from blindopt.formats.secret_files import save_secret
from blindopt.library import reports
from blindopt.library.checks import checked
from blindopt.library.display import facts, table
from blindopt.library.drafts import Columns, Outcome, Privacy, columns_of, decimal, study_of, tuning_of, undecided
from blindopt.library.service import Service

WAIT_S = 7 * 86_400.0
"""The longest that a forecast or a tuning is waited for, in seconds."""


class Owner(Service[OwnerClient]):
    """A data owner's curator, by its address and an owner's token. ``client`` has every request there is."""

    client_type = OwnerClient

    def upload(
        self,
        data: Any,
        *,
        name: str,
        columns: Columns | None = None,
        person: str | None = None,
        rows_per_person: int | None = None,
        public: bool = False,
    ) -> "Dataset":
        """Register a table: a DataFrame, the path of a CSV or Parquet file, or the bytes of a CSV file.

        ``columns`` are names, or choices such as ``{"column": "cut", "kind": "one_hot", "values": ["Good", "Ideal"]}``;
        None: all, as numbers. ``person`` is the column that says whose a row is, with the most rows of one person that
        are kept. ``public`` declares that nobody in the table needs protection.

        Raises Remote ``dataset_invalid`` where something has to be decided first. Its notes say what, by column.
        """
        file, filename = _file(data)
        chosen = None if columns is None else columns_of(columns)
        try:
            view = self.client.register(
                name,
                file,
                filename=filename,
                public=public,
                columns=chosen,
                person=person,
                rows_per_person=rows_per_person,
            )
        except Remote as error:
            if error.code == "dataset_invalid":
                for line in self._undecided(file, filename, chosen):
                    error.add_note(line)
            raise
        return Dataset(self, view)

    def _undecided(self, file: bytes, filename: str, chosen: Sequence[str | wire.ColumnChoice] | None) -> list[str]:
        """What has to be decided about a file that was refused; nothing where it cannot be read at all."""
        with suppress(Remote):
            upload = self.client.start_upload(file, filename=filename)
            survey = self.client.upload(upload.id)
            self.client.discard_upload(upload.id)
            return undecided(survey.columns, chosen)
        return []

    def dataset(self, dataset_id: str) -> "Dataset":
        """A registered dataset, by its id."""
        return Dataset(self, self.client.dataset(dataset_id))

    def draft(self, study_id: str) -> "Draft":
        """A draft, by its id."""
        return Draft(self, self.client.study(study_id))

    def study(self, study_id: str) -> "ReleasedStudy":
        """A released study, by its id."""
        return ReleasedStudy(self, study_id)

    @property
    def studies(self) -> list[wire.StudyOwnerView]:
        """Every draft and study, oldest first."""
        return self.client.studies()

    def preview_tuning(self, tuning: wire.TuningCreate | Mapping[str, Any]) -> wire.TuningReport:
        """What a private tuning would cost and promise. Spends nothing."""
        return self.client.preview_tuning(tuning_of(tuning))

    def tune(self, tuning: wire.TuningCreate | Mapping[str, Any]) -> wire.TuningView:
        """Charge a private tuning, run it, and wait for its result."""
        begun = self.client.start_tuning(tuning_of(tuning))
        return self.client.wait_tuning(begun.id, timeout_s=WAIT_S)


class Dataset:
    """A registered table. ``view`` says what it holds: for its owner alone."""

    def __init__(self, owner: Owner, view: wire.DatasetView) -> None:
        self.owner, self.view = owner, view

    @property
    def id(self) -> str:
        """ds_..."""
        return self.view.id

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

        ``features``: for each column its lower and upper bound, and the change of one record that is to be hidden, in
        the column's unit; without one its whole range is. ``outcome``: the column to optimize, or an
        InboxMeasurement where people measure. ``privacy``: epsilon of the release, or its fields, such as
        ``{"epsilon": 3, "delta": 1e-5}``; "public" for a public dataset; ``{"mechanism": "groups", "epsilon": 0.25,
        "cells": {"kind": "grid", "parts": [20, 20]}, "min_count": 20}`` to look for the best group of records, which
        hides everything about a record. ``answers``: "exact", or the fields of
        noise, such as ``{"epsilon": 0.5, "centre": 45, "value_bound": 45}``. ``budget`` holds caps: queries,
        epsilon_per_row, epsilon_total. ``more``: further fields of StudyCreate.

        Raises Invalid, naming the field, for what cannot be right.
        """
        body = study_of(
            {"name": name, "dataset_id": self.id, "budget": budget or {}, "kernel": kernel, **more},
            features=features,
            outcome=outcome,
            direction=direction,
            privacy=privacy,
            answers=answers,
        )
        return Draft(self.owner, self.owner.client.create_study(body))

    def erase(self) -> wire.DatasetErased:
        """Archive the dataset, and erase it for good: its records, and candidates and answers of its studies.

        Ids, sizes, charges, the ledger and the logs stay, and vendors keep what they received. Raises Remote
        ``state_conflict`` while a study on it is open or drawn, and names it; the dataset is archived then.
        """
        self.owner.client.archive_dataset(self.id)
        return self.owner.client.erase_dataset(self.id)

    def account(self) -> reports.DatasetAccount:
        """What all studies and tunings have cost the records of this file."""
        return reports.as_report(reports.DatasetAccount, self.owner.client.account(self.id))

    def __repr__(self) -> str:
        return f"<dataset {self.view.name} ({self.id}): {self.view.rows} records, {len(self.view.columns)} columns>"

    def _repr_html_(self) -> str:
        rows = [[column.name, column.minimum, column.maximum] for column in self.view.columns]
        caption = f"{self.view.name}: {self.view.rows} records. Smallest and largest values are for you alone."
        return table(["Column", "Smallest", "Largest"], rows, caption=caption)


class Draft:
    """A draft of a study: nothing has left. ``view`` is the draft as it was read last."""

    def __init__(self, owner: Owner, view: wire.StudyOwnerView) -> None:
        self.owner, self.view = owner, view

    @property
    def id(self) -> str:
        """std_..."""
        return self.view.id

    def check(self) -> reports.Check:
        """Guarantee, cost and cautions, from public values: choose by it as you like."""
        return reports.as_report(reports.Check, self.owner.client.check(self.view.spec))

    def preview(self) -> reports.Preview:
        """Attack a trial release, which is thrown away. Do not choose public values by it: that leaks."""
        return reports.as_report(reports.Preview, self.owner.client.preview(self.id))

    def forecast(
        self,
        epsilons: Sequence[float | str] = (0.5, 1, 2, 4, 8),
        **options: Any,
    ) -> reports.Forecast:
        """Simulate what each epsilon costs in quality, on public rows. ``options`` are fields of ForecastCreate."""
        with checked():
            wanted = wire.ForecastCreate(epsilons=[decimal(epsilon) for epsilon in epsilons], **options)
        begun = self.owner.client.start_forecast(self.id, wanted)
        ended = self.owner.client.wait_forecast(self.id, begun.id, timeout_s=WAIT_S)
        return reports.as_report(reports.Forecast, ended)

    def release(self, *, confirm_high_risk: bool = False) -> "ReleasedStudy":
        """Draw and publish the candidates, once: this cannot be undone. The draft must be as it was read last."""
        wanted = wire.ReleaseAsked(spec_sha256=self.view.spec_sha256, confirm_high_risk=confirm_high_risk)
        return ReleasedStudy(self.owner, self.owner.client.release(self.id, wanted=wanted).id)

    def __repr__(self) -> str:
        return f"<draft {self.view.spec.name} ({self.id})>"

    def _repr_html_(self) -> str:
        values = {"Draft": self.view.spec.name, "Id": self.id, "Guarantee": self.view.guarantee}
        return facts(values | {"Not protected": " ".join(self.view.not_protected)})


class ReleasedStudy:
    """A released study."""

    def __init__(self, owner: Owner, study_id: str) -> None:
        self.owner, self.id = owner, study_id

    @property
    def view(self) -> wire.StudyOwnerView:
        """The study as it is now."""
        return self.owner.client.study(self.id)

    def grant(self, name: str, *, days: int = 90) -> "Grant":
        """Let a vendor query the study."""
        with checked():
            wanted = wire.GrantCreate(name=name, expires_in_days=days)
        made = self.owner.client.grant(self.id, wanted)
        return Grant(made, made.url or self.owner.url)

    def account(self) -> reports.StudyAccount:
        """What the study has spent, beside its caps."""
        return reports.as_report(reports.StudyAccount, self.owner.client.study_account(self.id))

    def report(self) -> wire.SignedPrivacyReport:
        """The signed privacy report, which ``blindopt-curator report verify`` checks."""
        return self.owner.client.report(self.id)

    @property
    def messages(self) -> list["Message"]:
        """What vendors sent: recommendations, and requests for more budget."""
        return [Message(self, view) for view in self.owner.client.messages(study_id=self.id)]

    def open_record(self, candidate: int) -> dict[str, float]:
        """The record behind a candidate, by column. The log says that one was opened."""
        return {shown.column: shown.value for shown in self.owner.client.open_record(self.id, candidate).columns}

    def groups(self) -> list[wire.GroupEntry]:
        """The groups of a groups study: where each is, its noisy number of records, and what its answers have cost."""
        return list(self.owner.client.groups(self.id))

    def open_group(self, candidate: int) -> wire.GroupView:
        """The group behind a candidate of a groups study, with its records. The log says that one was opened."""
        return self.owner.client.open_group(self.id, candidate)

    def close(self) -> wire.StudyOwnerView:
        """Refuse further queries, for good."""
        return self.owner.client.close_study(self.id)

    def __repr__(self) -> str:
        return f"<study {self.id}>"

    def _repr_html_(self) -> str:
        view = self.view
        return facts({"ReleasedStudy": view.spec.name, "Id": view.id, "State": view.state, "Guarantee": view.guarantee})


class Grant:
    """A new grant with its token, which is a secret. Neither ``repr`` nor a notebook shows it."""

    def __init__(self, made: wire.GrantReply, address: str) -> None:
        self.id, self.name, self.expires_at = made.id, made.name, made.expires_at
        self.file = wire.GrantFile.of(made, address)

    def save(self, path: str | Path) -> Path:
        """Write grant.json, which only you can read, to send over a private channel. Never overwrites a file."""
        save_secret(path, self.file.model_dump_json(indent=2))
        return Path(path)

    def __repr__(self) -> str:
        return f"<grant {self.id} for {self.name}, until {self.expires_at:%Y-%m-%d}>"


class Message:
    """A message of a vendor. ``view`` holds its content and state."""

    def __init__(self, study: ReleasedStudy, view: wire.MessageView) -> None:
        self.study, self.view = study, view

    def decide(
        self,
        decision: Literal["accepted", "rejected", "measured", "approved", "declined"],
        word: str | None = None,
    ) -> None:
        """Decide about it; the vendor reads the decision and your words."""
        with checked():
            wanted = wire.MessageDecision(decision=decision, word=word)
        self.view = self.study.owner.client.decide(self.view.id, wanted)

    def __repr__(self) -> str:
        return f"<{self.view.message.kind} of {self.view.name}: {self.view.state}>"


def _file(data: Any) -> tuple[bytes, str]:
    """The bytes of a table, and a name that says their format."""
    if isinstance(data, bytes):
        return data, "data.csv"
    if isinstance(data, str | Path):
        return Path(data).read_bytes(), Path(data).name
    if not hasattr(data, "to_csv"):
        raise Invalid("a table is a DataFrame, the path of a CSV or Parquet file, or the bytes of a CSV file")
    text = data.to_csv(index=False)
    return str(text).encode(), "data.csv"
