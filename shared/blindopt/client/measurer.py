"""People who measure, and programs that do: the inbox of a curator."""

from collections.abc import Iterator
from typing import Any, Literal

from blindopt import wire
from blindopt.arguments import checked_methods
from blindopt.client.connection import Client, new_key
from blindopt.display import Shown, Table
from blindopt.wire.base import parsed


@checked_methods
class Measurer(Shown, Client):
    """The inbox of a curator, by its address and a measurer's token.

    >>> inbox = bo.Measurer("https://curator.example", token).inbox  # doctest: +SKIP
    """

    _start = ", and that the service runs: `blindopt-curator serve` starts it"

    @property
    def inbox(self) -> list["Item"]:
        """Open measurements, oldest first, as they are now."""
        return [Item(self, view) for view in self.measurements()]

    def _tables(self) -> list[Table]:
        rows = [[item.whose, item.question, item.view.unit] for item in self.inbox]
        return [Table(["Whom or what", "Question", "Unit"], rows, f"{len(rows)} open measurements")]

    def measurements(
        self, *, study_id: str | None = None, state: str | None = None, query_id: str | None = None
    ) -> Iterator[wire.InboxItem]:
        """Requested measurements, oldest first; only the open ones unless ``state`` says otherwise."""
        for page in self._pages("/v1/inbox", wire.InboxPage, study_id=study_id, state=state, query_id=query_id):
            yield from page.items

    def system(self) -> wire.MeasuringSystem:
        """State of the owner's measuring system."""
        return self._get("/v1/inbox/system", wire.MeasuringSystem)

    def try_again(self, measurement_id: str | None = None, *, key: str | None = None) -> wire.TriedAgain:
        """Send measurements to the owner's system now: one, or all that wait or were given up."""
        path = "/v1/inbox/system" if measurement_id is None else f"/v1/inbox/measurements/{measurement_id}"
        return self._post(f"{path}:try_again", wire.TriedAgain, key=key)

    def inbox_page(self, *, page_size: int = 1_000, **params: Any) -> wire.InboxPage:
        """The first ``page_size`` measurements, with the number of open ones; ``params`` filter as ``measurements``."""
        return self._get("/v1/inbox", wire.InboxPage, page_size=page_size, **params)

    def measurement(self, measurement_id: str) -> wire.InboxItem:
        """A measurement by its id."""
        return self._get(f"/v1/inbox/measurements/{measurement_id}", wire.InboxItem)

    def answer(self, query_id: str, answer: wire.AnswerCreate, *, key: str | None = None) -> wire.QueryMeasurements:
        """Enter measured values of a query."""
        return self._post(f"/v1/queries/{query_id}:answer", wire.QueryMeasurements, answer, key)

    def decline(self, query_id: str, decline: wire.DeclineCreate, *, key: str | None = None) -> wire.QueryMeasurements:
        """Decline measurements of a query: they will not be made."""
        return self._post(f"/v1/queries/{query_id}:decline", wire.QueryMeasurements, decline, key)

    def correct(
        self, query_id: str, correction: wire.CorrectCreate | wire.AnswerCreate, *, key: str | None = None
    ) -> wire.QueryMeasurements:
        """Correct values of a query that were entered before."""
        return self._post(f"/v1/queries/{query_id}:correct", wire.QueryMeasurements, correction, key)

    def release_mean(
        self, query_id: str, means: wire.MeanRelease | None = None, *, key: str | None = None
    ) -> wire.QueryMeasurements:
        """Release means that are held back since a measurement was taken back; for owners."""
        means = means or wire.MeanRelease()
        return self._post(f"/v1/queries/{query_id}:release_mean", wire.QueryMeasurements, means, key)

    def export_csv(self, *, study_id: str | None = None) -> bytes:
        """Open measurements as CSV, to be filled in."""
        return self._send("GET", "/v1/inbox.csv", params={"study_id": study_id} if study_id else None).check().body

    def import_csv(
        self,
        file: bytes,
        *,
        dry_run: bool = False,
        corrections: Literal["ask", "apply"] = "ask",
        consent: bool = False,
        key: str | None = None,
    ) -> wire.InboxImport:
        """Import a filled-in ``file``: all of it, or nothing if a line is wrong. ``dry_run`` only checks it.

        Lines with what is stored already, or with a value of a withheld record, change nothing. Those with another
        value are refused (Remote), unless ``corrections`` is "apply"; a dry run lists them, and what private answers
        would be charged. ``consent``: as of ``Item.answer``, for each person of the file.
        """
        params = {"dry_run": "true" if dry_run else "false", "corrections": corrections}
        params |= {"consent": "true"} if consent else {}
        reply = self._send("POST", "/v1/inbox:import", params=params, body=file, media="text/csv", key=key or new_key())
        return reply.check().read(wire.InboxImport)


class Item:
    """A measurement to make. ``view`` holds all of it; ``shown`` the values of the record that the study shows.

    ``labels``: labels of the record that the study shows, by column. ``file_row``: its row in the file, as a
    spreadsheet counts it; None if the curator does not know it.

    >>> for item in inbox:  # doctest: +SKIP
    ...     item.answer(44.25, note="at the second visit")
    """

    def __init__(self, measurer: Measurer, view: wire.InboxItem) -> None:
        self.measurer, self.view = measurer, view
        self.id, self.record, self.question = view.id, view.record, view.question or ""
        self.file_row, self.labels = view.file_row, {label.column: label.text for label in view.labels}
        self.shown = {shown.column: shown.value for shown in view.shown}

    @property
    def whose(self) -> str:
        """The labels of the record, and its row in the file."""
        return ", ".join([*self.labels.values(), self.in_file])

    @property
    def in_file(self) -> str:
        """Where the record is in the file."""
        return f"record {self.record}" if self.file_row is None else f"row {self.file_row} of the file"

    def answer(self, value: float, *, note: str | None = None, consent: bool = False) -> wire.QueryMeasurements:
        """Enter the measured ``value``, with a ``note`` for your colleagues. Raises Invalid if it is not finite.

        ``consent`` is needed where ``view.consent`` has a text: you read it to the person, who agreed.
        """
        measured = {"measurement_id": self.id, "value": value}
        fields = {"values": [measured], "note": note, "consent": consent}
        body = parsed(wire.AnswerCreate, fields, {"values.0.value": "value"})
        return self.measurer.answer(self.view.query_id, body)

    def decline(self, reason: wire.DeclineReason, *, note: str | None = None) -> wire.QueryMeasurements:
        """Decline it for a ``reason``, with a ``note``. The vendor learns only that the candidate has no answer."""
        body = parsed(wire.DeclineCreate, {"measurement_ids": [self.id], "reason": reason, "note": note})
        return self.measurer.decline(self.view.query_id, body)

    def __repr__(self) -> str:
        return f"<measurement {self.id}: {self.in_file}, {self.question}>"
