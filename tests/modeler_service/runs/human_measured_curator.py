"""A curator with people who measure: queries are pending until a test answers them, and may be corrected."""

import json
import re
import secrets
from typing import Any
from urllib.parse import parse_qs

from tests.modeler_service.lying_curator import CuratorRequest, FakeCurator, Headers

AT = "2026-11-21T00:00:00Z"


class HumanMeasuredCurator(FakeCurator):
    """Honest. ``measure`` returns the y of a row at once; without it, a query waits for ``answer``."""

    def __init__(self, study: dict[str, Any], **chosen: Any) -> None:
        super().__init__(study | {"measurement_source": "inbox"}, **chosen)
        self.rows: dict[str, list[int]] = {}
        """The rows of each query, in the order of the queries."""
        self.versions: dict[str, list[bytes]] = {}
        self.revised: list[tuple[str, int]] = []
        self.measure: Any = None
        self.looks = self.studies = 0
        self.refuses: tuple[int, str] | None = None
        """Status and code of a refusal of every request."""
        self.cap: int | None = None
        """The most queries; more are refused."""
        self.refused = 0
        self.seqs: list[int] | None = None
        self.page = 1_000
        """The most revisions of a reply."""

    @property
    def open(self) -> list[str]:
        """The pending queries."""
        return [query for query in self.rows if not self.versions[query]]

    def answer(self, query: str, *values: float | None, declined: list[int] | None = None) -> None:
        """Answer or correct: y of each row, None for a decline."""
        rows = self.rows[query]
        passport = {"measurement_variance": 0.0}
        answers = [
            {"row": row, "play": 1, "y": y, "passport": passport}
            for row, y in zip(rows, values, strict=True)
            if y is not None
        ]
        measured = {answer["row"] for answer in answers}
        reply = {
            "id": query,
            "study_id": self.study_id,
            "state": "answered",
            "version": len(self.versions[query]) + 1,
            "created_at": AT,
            "answers": answers,
            "declined": sorted(set(rows) - measured) if declined is None else declined,
            "salt": secrets.token_hex(16),
        }
        self.versions[query].append(json.dumps(reply).encode())
        self.revised.append((query, reply["version"]))

    def exchange(self, request: CuratorRequest, path: str) -> tuple[int, bytes, Headers]:
        is_more = path.endswith("/queries") and self.cap is not None and len(self.rows) >= self.cap
        if is_more and request.headers["Idempotency-Key"] not in self.replies:
            self.refused += 1
        else:
            is_more = False
        if self.refuses is not None or is_more:
            status, code = self.refuses or (403, "privacy_budget_exhausted")
            problem = {
                "type": "about:blank",
                "title": "no",
                "status": status,
                "detail": "no",
                "instance": path,
                "code": code,
            }
            if is_more:  # of all candidates together
                spent = {"requested": "1", "spent": str(self.cap), "limit": str(self.cap)}
                problem["budget"] = {"cap": "queries", "row": None} | spent
            return status, json.dumps(problem | {"retryable": status == 503, "request_id": "0" * 32}).encode(), {}
        parameters = parse_qs(request.path.partition("?")[2])
        if path.endswith("/revisions"):
            after = int(parameters.get("page_token", ["0"])[0])
            revisions = [
                {"seq": seq, "query_id": query, "version": version}
                for seq, (query, version) in enumerate(self.revised, start=1)
                if seq > after
            ]
            more = str(revisions[self.page - 1]["seq"]) if len(revisions) > self.page else None
            revisions = revisions[: self.page]
            for item, seq in zip(revisions, self.seqs or [], strict=False):
                item["seq"] = seq
            return 200, json.dumps({"revisions": revisions, "next_page_token": more}).encode(), {}
        if match := re.search("/queries/(qry_[0-9a-f]{16})$", path):
            self.looks += 1
            versions = self.versions[match[1]]
            return (200, versions[-1], {}) if versions else (202, self._pending(match[1]), {})
        if not path.endswith("/queries"):
            self.studies += path.endswith(self.study_id)
            return super().exchange(request, path)
        key = request.headers["Idempotency-Key"]
        if key in self.replies:
            return 202, self.replies[key], {"Idempotency-Replayed": "true"}
        query = f"qry_{secrets.token_hex(8)}"
        self.rows[query] = [item["row"] for item in json.loads(request.body)["rows"]]
        self.versions[query] = []
        self.replies[key] = self._pending(query)
        if self.measure is not None:
            values = [self.measure(row) for row in self.rows[query]]
            if "wait" not in values:
                self.answer(query, *values)
        return 202, self.replies[key], {}

    def _pending(self, query: str) -> bytes:
        pending = {"id": query, "study_id": self.study_id, "state": "pending", "created_at": AT, "due_at": None}
        return json.dumps(pending).encode()
