"""Every error that one party returns to the other: its code, its HTTP status, whether a retry can help.

The message of a BlindoptError is sent to the other party unchanged: it never holds a value from a
dataset, a secret, a path or a query string.
"""

import errno
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

_TEMPORARY = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EROFS), "a file cannot be written: the disk is full"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "a file cannot be opened: too many are open"),
}


class BlindoptError(Exception):
    """Root of all errors. ``code`` is stable and for programs; the message and ``what_to_do`` are for people.

    A traceback shows ``what_to_do`` below the message.
    """

    code: str = "internal"
    what_to_do: str = "Report it to who runs the service, with the X-Request-ID of the reply."
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


class Unauthenticated(BlindoptError):
    """No token, or an unknown, expired or revoked one. The error does not distinguish them."""

    code, status, title = "unauthenticated", 401, "A valid token is needed"
    what_to_do = "Check the token: it may be mistyped, expired or revoked. Ask who gave it for another one."


class ClientCertificateNeeded(BlindoptError):
    """The service takes requests only over TLS with a client certificate, and this connection has none."""

    code, status, title, retryable = "client_certificate_needed", 403, "A client certificate is needed", True
    what_to_do = "Set a client certificate that the service's CA signed, as BLINDOPT_MODELER_CURATOR_CLIENT_CERT."


class Forbidden(BlindoptError):
    """The token is good, but its role may not do this."""

    code, status, title = "forbidden", 403, "Not allowed for this role"
    what_to_do = "Use a token of a role that may do this."


class BudgetExhausted(BlindoptError):
    """The request would exceed a cap of the study. Final: spent budget never comes back, so a retry cannot help.

    Depends on the history of requests alone, never on the data. To a modeler (``remaining``), on that of its own grant:
    ``spent`` is what the release and this grant have spent; ``cap`` and ``limit`` are None where that leaves room for
    the request, so that other spending decides.
    """

    code, status, title = "privacy_budget_exhausted", 403, "The study's budget does not allow this"
    what_to_do = "Stop here, or request more budget from the owner."

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
            text = f"{requested} requested: what is left of the study's budget does not allow it"
        else:
            by = "" if remaining is None else " by the release and this grant"
            text = f"{cap}{where}: {requested} requested with {spent} of {limit} spent{by}"
        super().__init__(text)
        self.row = row
        self.budget = {"cap": cap, "row": row, "requested": requested, "spent": spent, "limit": limit}
        if remaining is not None:
            self.budget["remaining"] = remaining

    def extra(self) -> dict[str, object]:
        return {"budget": self.budget}


class StudyNotOpen(BlindoptError):
    """Queries need a study that has released its candidates and is not closed."""

    code, status, title = "study_not_open", 403, "The study is not open"
    what_to_do = "Ask the owner to release the study, or use another one: a closed study stays closed."


class NotFound(BlindoptError):
    """The resource does not exist or is not accessible. The error does not distinguish the two."""

    code, status, title = "not_found", 404, "Not found"
    what_to_do = "Check the id, and that your token is of the same study or service."


class Erased(BlindoptError):
    """What was requested was erased by its owner, for good: records, candidates, answers, stored replies."""

    code, status, title = "erased", 410, "Erased by its owner"
    what_to_do = "Keep what you have received: what was erased does not come back, and a retry cannot help."


class UnknownRow(BlindoptError):
    """A row number outside the release."""

    code, status, title = "unknown_row", 404, "No such row"
    what_to_do = "Use a candidate number from 0 to n - 1."


class StateConflict(BlindoptError):
    """The resource is in a state that does not allow this."""

    code, status, title = "state_conflict", 409, "Not possible in this state"
    what_to_do = "Read the resource again: its state says what is possible."


class StillRunning(BlindoptError):
    """The same request, with the same idempotency key, is still being handled."""

    code, status, title, retryable = "still_running", 409, "Still running", True
    what_to_do = "Wait a moment, then repeat the request with the same key."


class BodyTooLarge(BlindoptError):
    """The request is larger than this service takes."""

    code, status, title = "too_large", 413, "Request too large"
    what_to_do = "Send less at once, or raise the limit in the settings of the service."


class Invalid(BlindoptError):
    """The request is well-formed but cannot be right; ``errors`` says where, never the value."""

    code, status, title = "invalid", 422, "Invalid request"
    what_to_do = "Correct what the message names, and the fields in errors, if there are any."

    def __init__(self, detail: str, errors: list[dict[str, object]] | None = None) -> None:
        super().__init__(detail)
        self.errors = errors or []

    def extra(self) -> dict[str, object]:
        return {"errors": self.errors} if self.errors else {}


class DatasetInvalid(Invalid):
    """A file that is refused as a whole; ``errors`` lists the rows, lines and columns to correct."""

    code, title = "dataset_invalid", "The file cannot be registered"
    what_to_do = "Correct the lines and columns that errors names, then upload the file again."

    def __init__(self, detail: str, errors: list[dict[str, object]], total: int) -> None:
        super().__init__(detail, errors)
        self.total = total

    def extra(self) -> dict[str, object]:
        return {"errors": self.errors, "errors_total": self.total}


class ReleaseImpossible(Invalid):
    """The mechanism cannot be run on this study; the text says what to change."""

    code, title = "release_impossible", "This release cannot be made"
    what_to_do = "Change the study as the message says."


class TuningImpossible(Invalid):
    """The method cannot be run on this problem; the text says what to change. Nothing was charged.

    ``field`` names the wrong field of the request, if there is a single one.
    """

    code, title = "tuning_impossible", "This tuning cannot be run"
    what_to_do = "Change the tuning as the message says."

    def __init__(self, detail: str, field: str | None = None) -> None:
        super().__init__(detail, None if field is None else [{"field": field, "message": detail}])
        self.field = field


class TuningFailed(BlindoptError):
    """A started tuning failed and releases nothing; its charge stays spent."""

    code, status, title = "tuning_failed", 500, "The tuning failed"
    what_to_do = "Read the log of the curator, mend the cause, and start another tuning: it is charged again."


class IdempotencyKeyMissing(BlindoptError):
    """A request that creates or spends needs a key, so that a retry does it once."""

    code, status, title = "idempotency_key_missing", 400, "Idempotency-Key is needed"
    what_to_do = "Send a header Idempotency-Key with a new random value."


class IdempotencyKeyReused(BlindoptError):
    """The key was used for another request; take a new one."""

    code, status, title = "idempotency_key_reused", 422, "Idempotency-Key was used before"
    what_to_do = "Take a new key for a new request."


class RateLimited(BlindoptError):
    """Too many requests by one principal, or too many invalid tokens from one address."""

    code, status, title, retryable = "rate_limited", 429, "Too many requests", True
    what_to_do = "Wait as long as Retry-After says."

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many requests: try again in {seconds} s")
        self.headers = {"Retry-After": str(seconds)}


class AuditUnavailable(BlindoptError):
    """The record of an exchange could not be written, so the exchange did not happen."""

    code, status, title, retryable = "audit_unavailable", 503, "The audit log cannot be written", True
    what_to_do = "Free space on the service's disk, then repeat the request with the same key."


class StorageUnavailable(BlindoptError):
    """A file could not be written or read, so nothing happened: the disk is full, or too many files are open."""

    code, status, title, retryable = "storage_unavailable", 503, "A file cannot be written or read", True
    what_to_do = "Free space on the service's disk, then repeat the request."

    @staticmethod
    def of(error: BaseException | None) -> "StorageUnavailable | None":
        """Convert an OSError that may be temporary; None for any other error."""
        detail = _TEMPORARY.get(error.errno or 0) if isinstance(error, OSError) else None
        return None if detail is None else StorageUnavailable(detail)


class Standby(BlindoptError):
    """Another process leads, or the database cannot be reached, so nothing happened."""

    code, status, title, retryable = "standby", 503, "This process is a standby", True
    what_to_do = "Repeat the request with the same key; a load balancer reads /readyz."

    def __init__(self) -> None:
        super().__init__("another process serves these data, or the database cannot be reached")


class Busy(BlindoptError):
    """Work that runs one at a time is running for another request."""

    code, status, title, retryable = "busy", 503, "Busy with another's request", True
    what_to_do = "Wait as long as Retry-After says, then repeat the request."

    def __init__(self, detail: str, *, seconds: int) -> None:
        super().__init__(detail)
        self.headers = {"Retry-After": str(seconds)}


class Draining(BlindoptError):
    """The service is shutting down and did not handle the request."""

    code, status, title, retryable = "draining", 503, "The service is ending", True
    what_to_do = "Repeat the request when the service is up again."


class RangeNotSatisfiable(BlindoptError):
    """A range outside the file, or several at once."""

    code, status, title = "range_not_satisfiable", 416, "Range not satisfiable"
    what_to_do = "Request one range within the file."

    def __init__(self, detail: str, size: int) -> None:
        super().__init__(detail)
        self.headers = {"Content-Range": f"bytes */{size}"}


class LogBroken(BlindoptError):
    """A log does not verify, or a table differs from it; the message names the first wrong record and its fault.

    ``about``: the id of the study, grant or run; None for the whole log.
    """

    code, title = "log_broken", "The audit log does not verify"
    what_to_do = "Keep both files as they are, and compare with a backup: somebody changed or cut a log."

    def __init__(self, message: str, *, about: str | None = None) -> None:
        super().__init__(message)
        self.about = about


class RecordChanged(BlindoptError):
    """A stored record differs from the service's audit log, so nothing is done by it."""

    code, status, title, retryable = "record_changed", 503, "A stored record was changed", True
    what_to_do = "Tell the service's owner, whose audit page names it. Then repeat the request with the same key."


class NumericalFailure(BlindoptError):
    """A computation has no valid result: a non-finite number or a failed factorization."""

    code, title = "numerical_failure", "A computation failed"
    what_to_do = "Check the numbers: duplicates, scales that differ by many powers of ten, values that are not finite."


class EngineUnavailable(BlindoptError):
    """The workers that a run computes on, or that draw a release, cannot be reached, or lack what they need."""

    code, status, title, retryable = "engine_unavailable", 503, "The cluster's workers are not available", True
    what_to_do = (
        "See to the scheduler and its workers: the message says what is missing. A run goes on by itself; a release is "
        "asked for again, and is charged once."
    )


class Unreachable(BlindoptError):
    """The other party did not answer; it may or may not have handled the request."""

    code, status, title, retryable = "unreachable", 502, "The other party did not answer", True
    what_to_do = "Check the address, the network and the certificate, then repeat the request with the same key."


class ProtocolViolated(BlindoptError):
    """The other party's reply violates the protocol; a retry cannot help."""

    code, status, title = "protocol_violated", 502, "The other party broke the protocol"
    what_to_do = "Query no further under this grant, keep your log, and compare both logs with the other party."


class Remote(BlindoptError):
    """A problem document of the other party. Of a refusal by a cap: ``cap``, ``row``; of what is wrong: ``faults``."""

    title = "The other party refused"
    cap: str | None = None
    row: int | None = None
    faults: tuple[str, ...] = ()
    what_to_do = "Read the message: it is of the other party."

    def __init__(
        self, *, code: str, status: int, detail: str, retryable: bool, retry_after_s: float | None = None
    ) -> None:
        self.code = self.remote_code = code
        self.what_to_do = _of_code(code) or self.what_to_do
        super().__init__(detail)
        self.retry_after_s, self.remote_status, self.remote_retryable = retry_after_s, status, retryable

    def __str__(self) -> str:
        return f"{self.remote_code} ({self.remote_status}): {super().__str__()}"


class CuratorRefused(BlindoptError):
    """A curator refused a modeler's request. Only its error code is passed on: its text may quote a token."""

    code, status, title = "curator_refused", 502, "The curator refused"
    what_to_do = "Check the study's id, its token and its address."

    def __init__(self, error: Remote) -> None:
        code = error.remote_code if re.fullmatch("[a-z_]{1,60}", error.remote_code) else "an error"
        super().__init__(f"the curator answered {code} ({error.remote_status}): check the study and its token")
        self.retryable = error.remote_retryable


class ExtraMissing(BlindoptError, ImportError):
    """A package that this needs is not installed; it comes with an extra of a distribution."""

    code, title = "extra_missing", "A package is not installed"
    what_to_do = "Install the extra that the message names."

    def __init__(self, package: str, extra: str, distribution: str = "blindopt") -> None:
        super().__init__(f"this needs {package}: pip install '{distribution}[{extra}]'")


def _of_code(code: str) -> str | None:
    """Return what to do about an error of another party, by its code."""
    kinds = [BlindoptError]
    for kind in kinds:
        if kind.code == code and kind is not BlindoptError:
            return kind.what_to_do
        kinds += kind.__subclasses__()
    return None
