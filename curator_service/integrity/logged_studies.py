"""Studies and what they have spent, as the audit log describes them: for checks of the tables."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from blindopt.audit.merkle_log import Json, sha256
from blindopt.errors import LogBroken
from curator_service import store
from curator_service.budget.ledger import A_FILE, Balance, RowBalance
from curator_service.privacy.prices import Prices, text, units
from service_kit.store.database import Connection

STUDY_KINDS = (
    "study.created",
    "study.changed",
    "study.deleted",
    "study.caps_raised",
    "study.released",
    "study.closed",
    "log.restored",
    "dataset.erased",
)
_CLOSING = {"log.restored": "closed_studies", "dataset.erased": "studies"}
"""Kinds of records that close several studies, and where they name them."""


@dataclass
class LoggedStudy:
    """A study as the log describes it."""

    spec_sha256: str
    release_sha256: str | None = None
    report_sha256: str | None = None
    """None also for a release that was recorded without it, before version 0.3."""
    closed: bool = False
    release_of: str | None = None
    """The study whose release it reads."""

    def fault(self, row: Any, release: Any) -> str | None:
        """What differs in the row of the study, or in that of its release; None if nothing does."""
        if sha256(row.spec.encode()) != self.spec_sha256:
            return f"study {row.id} was changed: its spec is not the one in the log"
        if json.loads(row.spec)["dataset_id"] != row.dataset_id:
            return f"study {row.id} was changed: it is on another dataset than its spec says"
        if release is not None and json.loads(row.spec).get("release_of") != self.release_of:
            return f"study {row.id} was changed: it reads another release than the log says"
        if (None if release is None else release.sha256) != self.release_sha256:
            return f"the release of study {row.id} is not the one in the log"
        if release is not None and self.report_sha256 not in (None, sha256(release.report.encode())):
            return f"the report of the release of study {row.id} was changed"
        if release is not None and (release.n, release.r) != _size(release):
            return f"the release of study {row.id} was changed: its candidates are not as many as its report says"
        states = {"closed"} if self.closed else {"draft", "releasing"} if release is None else {"open"}
        if row.state not in states:
            return f"study {row.id} is {row.state}, and the log does not say so"
        return None


def _size(release: Any) -> tuple[int, int]:
    report = json.loads(release.report)
    return report["n"], report["r"]


class StudyLogSummary:
    """Studies: spec, release and state."""

    kinds = STUDY_KINDS

    def __init__(self) -> None:
        self.studies: dict[str, LoggedStudy] = {}

    def follow(self, record: Json) -> None:
        """Take the next record of the log. Raises LogBroken if it contradicts an earlier one."""
        kind, details = record["kind"], record.get("details", {})
        if kind not in STUDY_KINDS:
            return
        if kind in _CLOSING:
            for study_id in details[_CLOSING[kind]]:
                study = self._created(study_id)
                study.closed = True  # an erasure may have changed the report, too
                study.report_sha256 = details.get("reports", {}).get(study_id, study.report_sha256)
        elif kind == "study.created":
            self.studies[details["study_id"]] = LoggedStudy(details["spec_sha256"])
        else:
            self._change(kind, details["study_id"], details)

    def _change(self, kind: str, study_id: str, details: Json) -> None:
        study = self._created(study_id)
        is_draft = study.release_sha256 is None and not study.closed
        is_same = study.spec_sha256 == details.get("replaces")
        if kind == "study.changed":
            if not is_draft or not is_same:
                raise LogBroken(
                    f"study {study_id} was changed when it was no draft, or from another one", about=study_id
                )
            study.spec_sha256 = details["spec_sha256"]
        elif kind == "study.deleted":
            if not is_draft:
                raise LogBroken(f"study {study_id} was deleted when it was no draft", about=study_id)
            del self.studies[study_id]
        elif kind == "study.caps_raised":
            if is_draft or study.closed or not is_same:
                what = "were raised when it was not open, or of another"
                raise LogBroken(f"caps of study {study_id} {what}", about=study_id)
            study.spec_sha256 = details["spec_sha256"]
        elif kind == "study.released":
            study.release_sha256, study.report_sha256 = details["sha256"], details.get("report_sha256")
            if (source_id := details.get("release_of")) is not None:
                study.release_of, source = source_id, self._created(source_id)
                is_copy = source.release_sha256 is not None and source.release_sha256 == study.release_sha256
                if source.release_of is not None or not is_copy:
                    what = "has other candidates than the release that it reads"
                    raise LogBroken(f"study {study_id} {what}", about=study_id, others=[A_FILE])
        else:
            study.closed = True

    def _created(self, study_id: str) -> LoggedStudy:
        if (study := self.studies.get(study_id)) is None:
            raise LogBroken(f"study {study_id} is in the log and was never created there", about=study_id)
        return study

    def check(self, db: Connection) -> Iterator[LogBroken]:
        """Yield what differs in the row of a study, or of its release, from the log."""
        missing = dict(self.studies)
        for row in store.every(db, store.studies):
            if (study := missing.pop(row.id, None)) is None:
                yield LogBroken(f"study {row.id} is not in the log", about=row.id, others=[A_FILE])
            elif (fault := study.fault(row, store.release_of(db, row.id))) is not None:
                yield LogBroken(fault, about=row.id, others=[A_FILE])
        for name in missing:
            yield LogBroken(f"study {name} is missing", about=name, others=[A_FILE])


_DIGEST = 16


def line_digest(content: tuple[Any, ...]) -> bytes:
    return hashlib.blake2b(repr(content).encode(), digest_size=_DIGEST).digest()


class Account:
    """What one study has spent, charge by charge, as the log describes it."""

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self.balance = Balance()
        self.rows: dict[int, RowBalance] = {}
        self._digests = bytearray()

    def __len__(self) -> int:
        return len(self._digests) // _DIGEST

    def digest(self, count: int) -> bytes:
        """The digest of the line after ``count`` others."""
        return bytes(self._digests[count * _DIGEST : (count + 1) * _DIGEST])

    def take(self, details: Json, *, refused: bool = False) -> None:
        """Take the next charge or refusal. Raises LogBroken if its epsilon is not the price of its request."""
        if refused:
            self._refuse(details)
        elif details["rows"] == "all":
            cost, old = units(details["epsilon"]), self.balance
            self.balance = Balance(old.release + cost, old.total + cost, old.plays)
            self._add("release", None, None, 0, cost, None, RowBalance())
        else:
            before = self.balance.total
            for row, count in details["rows"]:
                if "version" in details:
                    self._charge("correction", details["query_id"], row, 0, count * self.prices.answer)
                else:
                    self._charge("answers", details["query_id"], row, count, self.prices.cost(count))
            if details["epsilon"] != text(self.balance.total - before):
                what = "the log has another epsilon than its study's price"
                raise LogBroken(f"query {details['query_id']}: {what}", about=details["study_id"])

    def _charge(self, kind: str, query_id: str, row: int, plays: int, cost: int) -> None:
        """Add a line of answers, or of a correction, which releases answers again and is no query."""
        old, before = self.rows.get(row, RowBalance()), self.balance
        self.rows[row] = RowBalance(old.queries + (kind == "answers"), old.plays + plays, old.total + cost)
        self.balance = Balance(before.release, before.total + cost, before.plays + plays)
        self._add(kind, query_id, row, plays, cost, None, self.rows[row])

    def _refuse(self, details: Json) -> None:
        row, cap, study = details["row"], details["cap"], details["study_id"]
        if details["rows"] == "all":  # a release, which a cap of the dataset's account refused
            cost = self.prices.release
            if cap == "dataset.epsilon" and details["requested"] != text(cost):
                raise LogBroken("a refused release in the log has another amount than it costs", about=study)
            self._add("refused", None, None, 0, cost, cap, RowBalance())
            return
        of_cap = [plays for requested, plays in details["rows"] if row in (None, requested)]
        cost, plays = sum(map(self.prices.cost, of_cap)), sum(of_cap)
        if details["requested"] != (str(plays) if cap == "queries" else text(cost)):
            raise LogBroken("a refusal in the log has another amount than its request costs", about=study)
        of_row = self.rows.get(row, RowBalance()) if row is not None else RowBalance()
        self._add("refused", None, row, plays, cost, cap, of_row)

    def _add(
        self, kind: str, query: str | None, row: int | None, plays: int, cost: int, cap: str | None, of_row: RowBalance
    ) -> None:
        now = self.balance
        balances = of_row.queries, of_row.plays, of_row.total, now.release, now.total, now.plays
        self._digests += line_digest((kind, query, row, plays, text(cost), cap, *balances))
