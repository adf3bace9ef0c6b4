"""A client of the inbox, for people who measure and programs that do."""

from collections.abc import Iterator
from typing import Any

from blindopt import wire
from blindopt.client.connection import Client, new_key
from blindopt.client.pages import paged


class MeasurerClient(Client):
    """The view of a curator of those who measure."""

    def inbox(
        self, *, study_id: str | None = None, state: str | None = None, query_id: str | None = None
    ) -> Iterator[wire.InboxItem]:
        """Measurements that were asked for, oldest first; those that are open unless ``state`` says otherwise."""
        for page in paged(
            lambda token: self.inbox_page(study_id=study_id, state=state, query_id=query_id, page_token=token)
        ):
            yield from page.items

    def system(self) -> wire.MeasuringSystem:
        """How the owner's system that measures does."""
        return self._get("/v1/inbox/system", wire.MeasuringSystem)

    def try_again(self, measurement_id: str | None = None, *, key: str | None = None) -> wire.TriedAgain:
        """Have the owner's system asked now: for one measurement, or for all that wait or were given up."""
        what = "system" if measurement_id is None else f"measurements/{measurement_id}"
        return self._post(f"/v1/inbox/{what}:try_again", wire.TriedAgain, key=key)

    def inbox_page(self, *, page_size: int = 1_000, **chosen: Any) -> wire.InboxPage:
        """A page of them, and how many are open."""
        return self._get("/v1/inbox", wire.InboxPage, page_size=page_size, **chosen)

    def measurement(self, measurement_id: str) -> wire.InboxItem:
        """One of them."""
        return self._get(f"/v1/inbox/measurements/{measurement_id}", wire.InboxItem)

    def answer(self, query_id: str, told: wire.AnswerCreate, *, key: str | None = None) -> wire.QueryMeasurements:
        """Tell what was measured of a query."""
        return self._post(f"/v1/queries/{query_id}:answer", wire.QueryMeasurements, told, key)

    def decline(self, query_id: str, told: wire.DeclineCreate, *, key: str | None = None) -> wire.QueryMeasurements:
        """Tell what will not be measured of a query."""
        return self._post(f"/v1/queries/{query_id}:decline", wire.QueryMeasurements, told, key)

    def correct(
        self, query_id: str, told: wire.CorrectCreate | wire.AnswerCreate, *, key: str | None = None
    ) -> wire.QueryMeasurements:
        """Replace what was told of a query by what is right."""
        return self._post(f"/v1/queries/{query_id}:correct", wire.QueryMeasurements, told, key)

    def export_csv(self, *, study_id: str | None = None) -> bytes:
        """Open measurements as CSV, to be filled in."""
        return self._send("GET", "/v1/inbox.csv", params={"study_id": study_id} if study_id else None).check().body

    def import_csv(self, file: bytes, *, dry_run: bool = False, key: str | None = None) -> wire.InboxImport:
        """Take what was filled in: all of it or, where a line is wrong, nothing."""
        params = {"dry_run": "true" if dry_run else "false"}
        reply = self._send("POST", "/v1/inbox:import", params=params, body=file, media="text/csv", key=key or new_key())
        return reply.check().read(wire.InboxImport)
