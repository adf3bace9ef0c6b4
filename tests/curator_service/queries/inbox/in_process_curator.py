"""A curator in this process: what it does can be broken, and its tables looked at."""

import asyncio
import itertools
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from blindopt import wire
from curator_service import app as curator_app
from curator_service.integrity import log_checks
from curator_service.queries.answer_versions import AnswerVersions
from curator_service.queries.inbox.inbox import Deadlines, Inbox
from curator_service.settings import Settings
from service_kit.store import audit_log
from service_kit.store.base import utc_now


class InProcessCurator:
    """A curator over ASGI, and requests to it in any role."""

    later = timedelta()
    """How far the curator's clock is ahead of the machine's."""

    def __init__(self, folder: Path, *, recovers: bool = True, **settings: Any) -> None:
        """``recovers``: what was interrupted is ended at once, as if the log were verified."""
        self._recovers = recovers
        self.settings = Settings(data_dir=folder / "data", **settings)
        self.open_folder()
        self.tokens = {
            role: self.context.authentication.issue(role, role, days=1)[0].text for role in ("owner", "measurer")
        }
        self.keys = itertools.count()

    def open_folder(self) -> None:
        self.app = curator_app.build(self.settings, lambda: utc_now() + self.later)
        self.context, self.curator = self.app.state.context, self.app.state.curator
        if self._recovers:
            assert self.curator.recover() is None

    def reopen(self) -> None:
        """Close as a kill does, with nothing said to anybody, and open again, for the same callers."""
        self.curator.close()
        self.close()
        self.open_folder()

    def close(self) -> None:
        self.context.database.close()

    def use(self, versions: AnswerVersions, inbox: type[Inbox] = Inbox) -> None:
        """Serve the inbox with other parts: broken ones, for controls."""
        curator = self.curator
        curator.inbox = inbox(self.context, curator.vault, curator.released, versions, curator.wakeups)
        curator.deadlines = Deadlines(self.context, curator.inbox, versions, curator.wakeups)

    def send(self, role: str, method: str, path: str, key: str | None = None, **sent: Any) -> httpx.Response:
        async def talk() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test") as client:
                headers = {"Authorization": f"Bearer {self.tokens[role]}"}
                headers |= {"Idempotency-Key": key or f"key-{next(self.keys)}"} if method in ("POST", "PUT") else {}
                headers |= sent.pop("headers", {})
                while True:
                    reply = await client.request(method, path, headers=headers, **sent)
                    if reply.status_code != 503 or reply.json()["code"] != "verifying":
                        return reply
                    await asyncio.sleep(0.02)

        return asyncio.run(talk())

    def call(self, role: str, method: str, path: str, **sent: Any) -> Any:
        """The body of a reply that must be a success."""
        reply = self.send(role, method, path, **sent)
        assert reply.is_success, reply.text
        return reply.json()

    def register(self, csv: bytes | str, *, public: bool = False, apart: bool = True, **fields: str) -> str:
        """A dataset of this file; its id. ``apart``: its account is not that of earlier files with the same people."""
        data = {"name": "n", "public": "true" if public else "false", **fields}
        view = self.call("owner", "POST", "/v1/datasets", files={"file": ("a.csv", csv)}, data=data)
        if apart and any(overlap["decision"] == "undecided" for overlap in view["overlaps"]):
            self.call("owner", "POST", f"/v1/datasets/{view['id']}:decide", json={"separate": "another test"})
        return str(view["id"])

    def draft(self, study: wire.StudyCreate) -> Any:
        """The view of a draft of this study."""
        return self.call("owner", "POST", "/v1/studies", json=study.model_dump(mode="json"))

    def grant(self, study: str, modeler: str = "modeler") -> str:
        """Grant a study to a modeler, who sends under this name; the study again."""
        self.tokens[modeler] = self.call("owner", "POST", f"/v1/studies/{study}/grants", json={"name": "m"})["token"]
        return study

    def release(self, study: wire.StudyCreate, **confirmed: bool) -> str:
        """An open study with its modeler; its id."""
        draft = self.draft(study)
        body = {"json": {"spec_sha256": draft["spec_sha256"], **confirmed}} if confirmed else {}
        self.call("owner", "POST", f"/v1/studies/{draft['id']}:release", **body)
        return self.grant(str(draft["id"]))

    def open(self, csv: bytes, study: Any, public: bool = True) -> str:
        """An open study on a file, with its modeler."""
        return self.release(study(self.register(csv, public=public)))

    def ask(self, study: str, rows: list[int], plays: int = 1, key: str | None = None) -> str:
        """A query; its id."""
        body = {"rows": [{"row": row, "plays": plays} for row in rows]}
        return str(self.call("modeler", "POST", f"/v1/studies/{study}/queries", json=body, key=key)["id"])

    def items(self, query: str) -> list[Any]:
        """The measurements of a query."""
        path = f"/v1/inbox?state=all&page_size=1000&query_id={query}"
        items, token = [], ""
        while True:
            page = self.call("measurer", "GET", path + token)
            items += page["items"]
            if page["next_page_token"] is None:
                return items
            token = f"&page_token={page['next_page_token']}"

    def enter(
        self, verb: str, query: str, items: list[Any], *values: float, key: str | None = None, **fields: bool
    ) -> httpx.Response:
        """Answer or correct measurements."""
        entries = [{"measurement_id": i["id"], "value": y} for i, y in zip(items, values, strict=True)]
        return self.send("measurer", "POST", f"/v1/queries/{query}:{verb}", json={"values": entries} | fields, key=key)

    def reply(self, study: str, query: str) -> wire.QueryReply:
        """The answer of a query, as the modeler gets it."""
        reply = self.send("modeler", "GET", f"/v1/studies/{study}/queries/{query}")
        assert reply.status_code == 200, reply.text
        return wire.QueryReply.model_validate_json(reply.content)

    def check(self) -> None:
        """Check the tables as `audit verify` does. Raises LogBroken."""
        with self.context.database.read() as db:
            log_checks.check(db, (entry.record for entry in audit_log.walk(db)))
