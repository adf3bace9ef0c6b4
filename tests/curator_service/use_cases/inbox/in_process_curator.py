"""A curator in this process: what it does can be broken, and its tables looked at."""

import asyncio
import itertools
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from blindopt import wire
from curator_service import app as curator_app
from curator_service.settings import Settings
from curator_service.use_cases.integrity import log_checks
from service_kit.store import audit_log
from service_kit.store.base import utc_now


class House:
    """Everybody at one curator, over ASGI."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.later = timedelta()
        """How far the curator's clock is ahead of the machine's."""
        self.app = curator_app.build(Settings(data_dir=folder / "data", **settings), lambda: utc_now() + self.later)
        self.context, self.curator = self.app.state.context, self.app.state.curator
        self.tokens = {
            role: self.context.authentication.issue(role, role, days=1)[0].text for role in ("owner", "measurer")
        }
        self._keys = itertools.count()

    def close(self) -> None:
        self.context.database.close()

    def send(self, role: str, method: str, path: str, key: str | None = None, **sent: Any) -> httpx.Response:
        async def talk() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test") as client:
                headers = {"Authorization": f"Bearer {self.tokens[role]}"}
                headers |= {"Idempotency-Key": key or f"key-{next(self._keys)}"} if method in ("POST", "PUT") else {}
                headers |= sent.pop("headers", {})
                return await client.request(method, path, headers=headers, **sent)

        return asyncio.run(talk())

    def done(self, role: str, method: str, path: str, **sent: Any) -> Any:
        reply = self.send(role, method, path, **sent)
        assert reply.is_success, reply.text
        return reply.json()

    def open(self, csv: bytes, study: Any, public: bool = True) -> str:
        """An open study; a modeler's token of it is kept."""
        files, data = {"file": ("a.csv", csv)}, {"name": "n", "public": "true" if public else "false"}
        dataset = self.done("owner", "POST", "/v1/datasets", files=files, data=data)["id"]
        identity = self.done("owner", "POST", "/v1/studies", json=study(dataset).model_dump(mode="json"))["id"]
        self.done("owner", "POST", f"/v1/studies/{identity}:release")
        grant = self.done("owner", "POST", f"/v1/studies/{identity}/grants", json={"name": "m"})
        self.tokens["modeler"] = grant["token"]
        return str(identity)

    def ask(self, study: str, rows: list[int], plays: int = 1, key: str | None = None) -> str:
        """A query; its id."""
        body = {"rows": [{"row": row, "plays": plays} for row in rows]}
        return str(self.done("modeler", "POST", f"/v1/studies/{study}/queries", json=body, key=key)["id"])

    def items(self, query: str) -> list[Any]:
        path = f"/v1/inbox?state=all&page_size=1000&query_id={query}"
        found, token = [], ""
        while True:
            page = self.done("measurer", "GET", path + token)
            found += page["items"]
            if page["next_page_token"] is None:
                return found
            token = f"&page_token={page['next_page_token']}"

    def tell(self, verb: str, query: str, items: list[Any], *values: float, key: str | None = None) -> httpx.Response:
        told = [{"measurement_id": i["id"], "value": y} for i, y in zip(items, values, strict=True)]
        return self.send("measurer", "POST", f"/v1/queries/{query}:{verb}", json={"values": told}, key=key)

    def reply(self, study: str, query: str) -> wire.QueryReply:
        found = self.send("modeler", "GET", f"/v1/studies/{study}/queries/{query}")
        assert found.status_code == 200, found.text
        return wire.QueryReply.model_validate_json(found.content)

    def check(self) -> None:
        """What `audit verify` checks of the tables. Raises LogBroken."""
        with self.context.database.read() as db:
            log_checks.check(db, (entry.record for entry in audit_log.walk(db)))
