"""Every error that one party returns to the other, and those of loops: a table of codes, statuses and advice.

The message of a BlindoptError is sent to the other party unchanged: it never holds a value from a
dataset, a secret, a path or a query string.
"""

import errno
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

_TEMPORARY = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EROFS), "a file cannot be written: the disk is full"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "a file cannot be opened: too many are open"),
    errno.EIO: "a file cannot be read or written: its disk reports an error",
}


class BlindoptError(Exception):
    """Root of all errors. ``code`` is stable and for programs; the message and ``what_to_do`` are for people.

    A traceback shows ``what_to_do`` below the message: the first paragraph of the docstring of a class in ``TABLE``.
    """

    code: str = "internal"
    what_to_do: str = "Report it to the person who runs the service, with the X-Request-ID of the reply."
    status: int = 500
    title: str = "Internal error"
    retryable: bool = False
    headers: Mapping[str, str] = MappingProxyType({})
    """Further headers of the reply."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.add_note(self.what_to_do)

    def extra(self) -> dict[str, object]:
        """Further members of the problem document."""
        return {}


class BadRequest(BlindoptError):
    """Correct the client: its request is not HTTP, or a form that cannot be read."""


class MethodNotAllowed(BlindoptError):
    """Use a method that the header Allow names."""


class RequestTimeout(BlindoptError):
    """Repeat the request with the same key, over a faster connection."""


class HeadTooLarge(BlindoptError):
    """Send fewer or shorter headers."""


class Unauthenticated(BlindoptError):
    """Check the token: it may be mistyped, expired or revoked. Ask the person who gave you the token for a new one."""


class ClientCertificateNeeded(BlindoptError):
    """Set a client certificate that the service's CA signed, as BLINDOPT_MODELER_CURATOR_CLIENT_CERT."""


class Forbidden(BlindoptError):
    """Use a token of a role that may do this."""


class NotFound(BlindoptError):
    """Check the id, and that your token is of the same study or service.

    The resource does not exist or is not accessible: the error does not distinguish the two.
    """


class RateLimited(BlindoptError):
    """Wait as long as Retry-After says."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many requests: try again in {seconds} s")
        self.headers = {"Retry-After": str(seconds)}


class LogQuotaReached(BlindoptError):
    """Wait as long as Retry-After says, or ask the owner for a higher quota. Then repeat the request with the same key.

    Every request of a grant adds bytes to the curator's logs. Beyond the quota of a day, a request changes nothing.
    Send a query that alone needs more than the quota in several.
    """

    def __init__(self, quota: int, seconds: int, amount: int, size: int) -> None:
        if size > quota:
            detail = (
                f"this request needs room for {size:,} bytes, and this grant may add {quota:,} a day to the curator's "
                "logs: send a query of fewer measurements, or ask the owner to raise the quota"
            )
        else:
            detail = (
                f"this grant has added {amount:,} of the {quota:,} bytes that it may add to the curator's logs today: "
                "the curator takes this request from 0:00 UTC on, or once the owner raises the quota"
            )
        super().__init__(detail)
        self.headers = {"Retry-After": str(seconds)}


Fault: TypeAlias = dict[str, object]
"""What is wrong: ``message``, with ``field``, or ``row``, ``line`` and ``column`` of a file."""
_PREDICATE = ("is ", "must ", "has ", "needs ", "holds ", "names ")


def sentence(fault: Mapping[str, object]) -> str:
    """A fault with its place in front; a row as a spreadsheet counts it: where there are lines, the first is a header.

    >>> sentence({"field": "name", "message": "is missing"}), sentence({"row": 3, "column": "a", "message": "blank"})
    ('name is missing', 'column a, row 3 of the file: blank')
    >>> sentence({"row": 3, "line": 7, "message": "blank"}), sentence({"line": 7, "message": "blank"})
    ('row 4 of the file: blank', 'line 7: blank')
    """
    names = ("column",) if fault.get("row") is not None else ("column", "line")
    named = [f"{name} {fault[name]}" for name in names if fault.get(name) is not None]
    if (row := fault.get("row")) is not None:
        named.append(f"row {int(str(row)) + (fault.get('line') is not None)} of the file")
    where, message = str(fault.get("field") or ", ".join(named)), str(fault["message"])
    count = f" ({fault['count']} times)" if fault.get("count") else ""
    return f"{where}{' ' if message.startswith(_PREDICATE) else ': '}{message}{count}" if where else f"{message}{count}"


class Invalid(BlindoptError):
    """Correct what the message names, and the other faults in errors, if there are any."""

    def __init__(self, detail: str, errors: list[dict[str, object]] | None = None) -> None:
        super().__init__(detail)
        self.errors = errors or []

    @classmethod
    def of(cls, faults: Sequence[Fault]) -> "Invalid":
        """The error of these faults: the first is the message, notes in a traceback are the others."""
        error = cls(sentence(faults[0]), list(faults))
        for fault in faults[1:20]:
            error.add_note(sentence(fault))
        return error

    @classmethod
    def at(cls, field: str, message: str) -> "Invalid":
        """The error of one field."""
        return cls.of([{"field": field, "message": message}])

    def extra(self) -> dict[str, object]:
        return {"errors": self.errors} if self.errors else {}


class DatasetInvalid(Invalid):
    """Correct the file, or say how its columns are read, then upload it again."""

    def __init__(self, detail: str, errors: list[dict[str, object]], total: int) -> None:
        super().__init__(detail, errors)
        self.total = total

    def extra(self) -> dict[str, object]:
        return {"errors": self.errors, "errors_total": self.total}


class ReleaseImpossible(Invalid):
    """Change the study as the message says."""


class TuningImpossible(Invalid):
    """Change the tuning as the message says.

    Nothing was charged. ``field`` names the wrong field of the request, if there is a single one.
    """

    def __init__(self, detail: str, field: str | None = None) -> None:
        super().__init__(detail, None if field is None else [{"field": field, "message": detail}])
        self.field = field


class BodyTooLarge(BlindoptError):
    """Send less at once, or raise the limit in the settings of the service."""


class UnsupportedMediaType(BlindoptError):
    """Send the header Content-Type that the message names, and a body of that kind."""


class RangeNotSatisfiable(BlindoptError):
    """Request one range within the file."""

    def __init__(self, detail: str, size: int) -> None:
        super().__init__(detail)
        self.headers = {"Content-Range": f"bytes */{size}"}


class IdempotencyKeyMissing(BlindoptError):
    """Send a header Idempotency-Key with a new random value."""


class IdempotencyKeyReused(BlindoptError):
    """Take a new key for a new request."""


class StillRunning(BlindoptError):
    """Wait a moment, then repeat the request with the same key."""


class BudgetExhausted(BlindoptError):
    """Stop here, or request more budget from the owner.

    Final: a retry cannot help. Depends on the history of requests alone, never on the data. To a modeler
    (``remaining``), on that of its own grant: ``spent`` is what the release and this grant have used; ``cap`` and
    ``limit`` are None where that leaves room for the request, so that other queries decide.
    """

    def __init__(
        self,
        cap: str | None,
        *,
        requested: str,
        spent: str,
        limit: str | None,
        row: int | None = None,
        remaining: Literal["none", "some"] | None = None,
    ) -> None:
        where = "" if row is None else f" of row {row}"
        if cap is None:
            detail = f"{requested} requested: the study's remaining budget does not allow it"
        else:
            by = "" if remaining is None else " by the release and this grant"
            detail = f"{cap}{where}: {requested} requested with {spent} of {limit} spent{by}"
        super().__init__(detail)
        self.row = row
        self.budget = {"cap": cap, "row": row, "requested": requested, "spent": spent, "limit": limit}
        if remaining is not None:
            self.budget["remaining"] = remaining

    def extra(self) -> dict[str, object]:
        return {"budget": self.budget}


class StudyNotOpen(BlindoptError):
    """Ask the owner to release the study, or use another one: a closed study stays closed."""


class UnknownRow(BlindoptError):
    """Use a candidate number from 0 to n - 1."""


class StateConflict(BlindoptError):
    """Do what the message says: the state of the resource does not allow the request as it is."""


class OverlapUndecided(StateConflict):
    """Decide on the dataset's page whether it continues the account of the earlier dataset, or keep it apart."""


class Erased(BlindoptError):
    """Keep what you have received: what was erased does not come back, and a retry cannot help."""


class Archived(BlindoptError):
    """Ask the service's owner for the named file, a segment of its audit log: the service no longer reads it."""


class TuningFailed(BlindoptError):
    """Read the log of the curator, mend the cause, and start another tuning: it is charged again."""


class AuditUnavailable(BlindoptError):
    """Free space on the service's disk, then repeat the request with the same key.

    The record of an exchange could not be written, so the exchange did not happen.
    """


class Verifying(AuditUnavailable):
    """Wait as long as Retry-After says, then repeat the request with the same key.

    Another program wrote to the database, or the service was started: it verifies its log before it goes on.
    """

    def __init__(self, seconds: int) -> None:
        super().__init__("the audit log is being verified after a start or another program's write: try again soon")
        self.headers = {"Retry-After": str(seconds)}


class StorageUnavailable(BlindoptError):
    """Free space on the service's disk, then repeat the request."""

    @staticmethod
    def of(error: BaseException | None) -> "StorageUnavailable | None":
        """Convert an OSError that may be temporary; None for any other error."""
        detail = _TEMPORARY.get(error.errno or 0) if isinstance(error, OSError) else None
        return None if detail is None else StorageUnavailable(detail)


class Standby(BlindoptError):
    """Repeat the request with the same key; a load balancer reads /readyz."""

    def __init__(self) -> None:
        super().__init__("another process serves these data, or the database cannot be reached")


class Busy(BlindoptError):
    """Wait as long as Retry-After says, then repeat the request."""

    def __init__(self, detail: str, *, seconds: int) -> None:
        super().__init__(detail)
        self.headers = {"Retry-After": str(seconds)}


class EngineUnavailable(BlindoptError):
    """See to the scheduler and its workers: the message says what is missing. A run goes on by itself."""


class RecordChanged(BlindoptError):
    """Tell the service's owner, whose audit page names it. Then repeat the request with the same key."""


class LogBroken(BlindoptError):
    """Check that the file is the one you mean. If so, keep it and compare with a backup: somebody changed or cut a log.

    The message names the first wrong record and its fault. ``about``: the id of the study, grant or run; None for the
    whole log. ``others``: what it is about, too.
    """

    def __init__(self, message: str, *, about: str | None = None, others: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.about, self.others = about, tuple(others)


class NumericalFailure(BlindoptError):
    """Check the numbers: duplicates, scales that differ by many powers of ten, values that are not finite."""


class OutOfMemory(BlindoptError, MemoryError):
    """Ask for fewer queries, or give the service more memory."""


class ExtraMissing(BlindoptError, ImportError):
    """Install the extra that the message names."""

    def __init__(self, package: str, extra: str, distribution: str = "blindopt") -> None:
        requirement = f"'./shared[{extra}]'" if distribution == "blindopt" else f"./shared '.[{extra}]'"
        super().__init__(f"this needs {package}: in a checkout of blindopt, pip install {requirement}")


class Unreachable(BlindoptError):
    """Check what the message names: the address, the network or the certificate. Repeat with the same key.

    The other party may or may not have handled the request.
    """


class ProtocolViolated(BlindoptError):
    """Query no further under this grant, keep your log, and compare both logs with the other party."""


class SentTooMuch(BlindoptError):
    """Ask the curator's owner why it sends so much. Then start another run, with the answers as observations."""


class Remote(BlindoptError):
    """A problem document of the other party. Of a refusal by a cap: ``cap``, ``row``; of what is wrong: ``faults``."""

    title = "The other party refused"
    what_to_do = "Read the message: it is of the other party."
    cap: str | None = None
    row: int | None = None
    faults: tuple[str, ...] = ()

    def __init__(
        self, *, code: str, status: int, detail: str, retryable: bool, retry_after_s: float | None = None
    ) -> None:
        self.code = self.remote_code = code
        self.what_to_do = BY_CODE[code].what_to_do if code in BY_CODE else self.what_to_do
        super().__init__(detail)
        self.retry_after_s, self.remote_status, self.remote_retryable = retry_after_s, status, retryable

    def __str__(self) -> str:
        return f"{self.remote_code} ({self.remote_status}): {super().__str__()}"

    @property
    def other_faults(self) -> list[str]:
        """The faults that the message does not tell."""
        return [fault for fault in self.faults if fault not in str(self)]


class CuratorRefused(BlindoptError):
    """Check the study's id, its token and its address.

    Only the curator's error code is passed on: its text may quote a token.
    """

    def __init__(self, error: Remote) -> None:
        code = error.remote_code if re.fullmatch("[a-z_]{1,60}", error.remote_code) else "an error"
        super().__init__(f"the curator answered {code} ({error.remote_status}): check the study and its token")
        self.retryable = error.remote_retryable


class LoopEnded(BlindoptError):
    """Take the recommendation, or make another optimizer: the same with `observations=optimizer.history`."""

    def __init__(self, because: str, queries: int) -> None:
        super().__init__(f"the loop has ended after {queries} queries ({because})")
        self.because = because


class StillMeasured(BlindoptError):
    """Query the same candidate again later: it is the same query, and is charged once."""

    def __init__(self, candidate: int) -> None:
        super().__init__(f"candidate {candidate} was queried and is not measured yet")
        self.candidate = candidate


class Declined(BlindoptError):
    """Query another candidate."""

    def __init__(self, candidate: int) -> None:
        super().__init__(f"candidate {candidate} was declined: it has no answer")
        self.candidate = candidate


TABLE: dict[type[BlindoptError], tuple[str, int, str, bool]] = {
    BadRequest: ("bad_request", 400, "The request cannot be read", False),
    MethodNotAllowed: ("method_not_allowed", 405, "Not a method of this path", False),
    RequestTimeout: ("request_timeout", 408, "The request came too slowly", True),
    HeadTooLarge: ("head_too_large", 431, "The head is too large", False),
    Unauthenticated: ("unauthenticated", 401, "A valid token is needed", False),
    ClientCertificateNeeded: ("client_certificate_needed", 403, "A client certificate is needed", True),
    Forbidden: ("forbidden", 403, "Not allowed for this role", False),
    NotFound: ("not_found", 404, "Not found", False),
    RateLimited: ("rate_limited", 429, "Too many requests", True),
    LogQuotaReached: ("log_quota_reached", 429, "The grant's log quota is reached", True),
    Invalid: ("invalid", 422, "Invalid request", False),
    DatasetInvalid: ("dataset_invalid", 422, "The file cannot be registered", False),
    ReleaseImpossible: ("release_impossible", 422, "This release cannot be made", False),
    TuningImpossible: ("tuning_impossible", 422, "This tuning cannot be run", False),
    BodyTooLarge: ("too_large", 413, "Request too large", False),
    UnsupportedMediaType: ("unsupported_media_type", 415, "Another Content-Type is needed", False),
    RangeNotSatisfiable: ("range_not_satisfiable", 416, "Range not satisfiable", False),
    IdempotencyKeyMissing: ("idempotency_key_missing", 400, "Idempotency-Key is needed", False),
    IdempotencyKeyReused: ("idempotency_key_reused", 422, "Idempotency-Key was used before", False),
    StillRunning: ("still_running", 409, "Still running", True),
    BudgetExhausted: ("privacy_budget_exhausted", 403, "The study's budget does not allow this", False),
    StudyNotOpen: ("study_not_open", 403, "The study is not open", False),
    UnknownRow: ("unknown_row", 404, "No such row", False),
    StateConflict: ("state_conflict", 409, "Not possible in this state", False),
    OverlapUndecided: ("overlap_undecided", 409, "People are in an earlier dataset too", False),
    Erased: ("erased", 410, "Erased by its owner", False),
    Archived: ("archived", 410, "In an archived segment of the log", False),
    TuningFailed: ("tuning_failed", 500, "The tuning failed", False),
    AuditUnavailable: ("audit_unavailable", 503, "The audit log cannot be written", True),
    Verifying: ("verifying", 503, "The audit log is being verified", True),
    StorageUnavailable: ("storage_unavailable", 503, "A file cannot be written or read", True),
    Standby: ("standby", 503, "This process is a standby", True),
    Busy: ("busy", 503, "Busy with another's request", True),
    EngineUnavailable: ("engine_unavailable", 503, "The cluster's workers are not available", True),
    RecordChanged: ("record_changed", 503, "A stored record was changed", True),
    LogBroken: ("log_broken", 500, "The audit log does not verify", False),
    NumericalFailure: ("numerical_failure", 500, "A computation failed", False),
    OutOfMemory: ("out_of_memory", 500, "Out of memory", False),
    ExtraMissing: ("extra_missing", 500, "A package is not installed", False),
    Unreachable: ("unreachable", 502, "The other party did not answer", True),
    ProtocolViolated: ("protocol_violated", 502, "The other party broke the protocol", False),
    SentTooMuch: ("curator_sent_too_much", 502, "The curator sent too much", False),
    CuratorRefused: ("curator_refused", 502, "The curator refused", False),
    LoopEnded: ("loop_ended", 409, "The loop has ended", False),
    StillMeasured: ("still_measured", 409, "Not measured yet", True),
    Declined: ("declined", 409, "Not measured", False),
}
"""Code, status and title in the problem document of each error, and whether a retry can help."""
for _kind, _row in TABLE.items():
    _kind.code, _kind.status, _kind.title, _kind.retryable = _row
    _kind.what_to_do = " ".join((_kind.__doc__ or "").partition("\n\n")[0].split())
BY_CODE: dict[str, type[BlindoptError]] = {"internal": BlindoptError, **{kind.code: kind for kind in TABLE}}
"""Every code that the services reply with, and its class, which has status, title, retryable and what_to_do."""
