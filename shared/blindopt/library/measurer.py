"""People who measure, and programs that do: the inbox of a curator.

>>> import blindopt as bo
>>> for item in bo.Measurer("https://curator.example", token).inbox:  # doctest: +SKIP
...     item.answer(44.25)
"""

from blindopt import wire
from blindopt.client import MeasurerClient
from blindopt.library.checks import checked
from blindopt.library.display import table
from blindopt.library.service import Service


class Measurer(Service[MeasurerClient]):
    """The inbox of a curator, by its address and a measurer's token."""

    client_type = MeasurerClient

    @property
    def inbox(self) -> list["Item"]:
        """Open measurements, oldest first, as they are now."""
        return [Item(self, view) for view in self.client.inbox()]

    def _repr_html_(self) -> str:
        rows = [[item.view.record, item.question, item.view.unit] for item in self.inbox]
        return table(["Record", "Question", "Unit"], rows, caption=f"{len(rows)} open measurements")


class Item:
    """A measurement to make. ``view`` holds all of it; ``shown`` the values of the record that the study shows."""

    def __init__(self, measurer: Measurer, view: wire.InboxItem) -> None:
        self.measurer, self.view = measurer, view
        self.id, self.record, self.question = view.id, view.record, view.question or ""
        self.shown = {shown.column: shown.value for shown in view.shown}

    def answer(self, value: float, *, note: str | None = None) -> wire.QueryMeasurements:
        """Enter the measured value. Raises Invalid if it is not finite."""
        with checked():
            body = wire.AnswerCreate(values=[wire.Measured(measurement_id=self.id, value=float(value))], note=note)
        return self.measurer.client.answer(self.view.query_id, body)

    def decline(self, reason: wire.DeclineReason, *, note: str | None = None) -> wire.QueryMeasurements:
        """Say that it will not be made, and why. The vendor learns only that the candidate has no answer."""
        with checked():
            body = wire.DeclineCreate(measurement_ids=[self.id], reason=reason, note=note)
        return self.measurer.client.decline(self.view.query_id, body)

    def __repr__(self) -> str:
        return f"<measurement {self.id}: record {self.record}, {self.question}>"
