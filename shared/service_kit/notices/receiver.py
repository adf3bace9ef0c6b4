"""The receiver of notices, at the operator's address, and its problems in plain words."""

import socket
import ssl
from typing import TYPE_CHECKING, Self

from blindopt.certificates import causes
from blindopt.errors import BlindoptError
from service_kit.notices.webhooks import open_client
from service_kit.settings import ServiceSettings

if TYPE_CHECKING:
    from blindopt.client import WebhookClient

_EXPIRED, _ANOTHER_NAME = 10, (62, 64)  # X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_HOSTNAME_ and _IP_ADDRESS_MISMATCH
_STATUSES = {
    400: "it does not take this body: its address may want another format than ours",
    401: "it does not take the signature: compare its key with NOTIFY_SECRET_FILE, and its clock with ours",
    403: "it does not take the signature, or not from here: compare its key with NOTIFY_SECRET_FILE",
    404: "nothing is at that path: check the end of NOTIFY_URL",
    405: "it takes no POST at that path: check NOTIFY_URL",
    410: "what was at that path is gone: set another NOTIFY_URL",
    413: "it takes only smaller bodies than ours, which have less than 2,000 bytes",
    429: "it has too many requests",
}


class Receiver:
    """Sends signed notices over HTTP. Problems contain neither the address nor the text of the receiver."""

    def __init__(self, client: "WebhookClient", timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    @classmethod
    def of(cls, settings: ServiceSettings) -> Self | None:
        """The receiver of the settings, or None. Raises StateConflict for a key that is too short."""
        client = open_client(settings, "notify", reply_max_bytes=0)
        return None if client is None else cls(client, settings.notify_timeout_seconds)

    def send(self, notice_id: str, body: bytes) -> str | None:
        """Send a notice. Return None if it arrived (a status from 200 to 299), otherwise the problem."""
        try:
            status = self._client.post(body, key=notice_id, reads=False).status
        except BlindoptError as error:
            return self._transport_problem(error)
        return None if 200 <= status < 300 else _status_problem(status)

    def _transport_problem(self, error: BlindoptError) -> str:
        for cause in causes(error):
            if isinstance(cause, socket.gaierror):
                return "its name cannot be looked up: check the host in NOTIFY_URL, and this machine's name server"
            if isinstance(cause, ssl.SSLError):
                return _tls_problem(cause)
            if isinstance(cause, ConnectionRefusedError):
                return "nothing listens there: check host and port in NOTIFY_URL, and whether it runs"
            if isinstance(cause, TimeoutError) or "Timeout" in type(cause).__name__:
                return f"no answer came within {self._timeout_s:g} s (NOTIFY_TIMEOUT_SECONDS)"
        return f"the connection failed ({type(error.__cause__ or error).__name__}): check NOTIFY_URL"


def _tls_problem(error: ssl.SSLError) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return "it speaks no TLS that we know: check whether NOTIFY_URL should begin with http://"
    if error.verify_code == _EXPIRED:
        return "its TLS certificate has expired"
    if error.verify_code in _ANOTHER_NAME:
        return "its TLS certificate is for another name than the one in NOTIFY_URL"
    return "its TLS certificate is not signed by an authority that is trusted here: set NOTIFY_CA to that authority"


def _status_problem(status: int) -> str:
    why = _STATUSES.get(status, "what that means is its own")
    if 300 <= status < 400:
        why = "a redirect, which is not followed: set NOTIFY_URL to where it leads"
    elif status >= 500:
        why = "a fault of its own"
    return f"it answered {status}: {why}"
