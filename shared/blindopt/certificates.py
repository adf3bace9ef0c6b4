"""Certificates in files: the TLS contexts made of them, when they expire, and problems of TLS in plain words."""

import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

LOOK_SECONDS = 60.0
"""How often files are looked at for a change."""
_EXPIRED, _NOT_YET = 10, 9  # X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_CERT_NOT_YET_VALID
_ANOTHER_NAME = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_ALERTS = {
    "CERTIFICATE_REQUIRED": "it needs a client certificate, and got none",
    "CERTIFICATE_EXPIRED": "it says that our client certificate has expired",
    "CERTIFICATE_REVOKED": "it says that our client certificate was revoked",
    "UNKNOWN_CA": "it does not trust the authority that signed our client certificate",
    "BAD_CERTIFICATE": "it does not take our client certificate",
    "PROTOCOL_VERSION": "it takes no version of TLS that we speak: 1.2 and 1.3",
    "HANDSHAKE_FAILURE": "it found no common way to encrypt, or needs a client certificate",
}
_latest_call = 0


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Files in PEM: ``ca`` signs the other side's certificates, ``cert`` and ``key`` are our own. All are optional."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @property
    def names(self) -> list[str]:
        return [name for name in (self.ca, self.cert, self.key) if name is not None]

    def client_context(self, trusted: ssl.SSLContext | None = None) -> ssl.SSLContext:
        """The context of a client; ``trusted`` has the authorities where there is no ``ca``, else the system's.

        Raises OSError for a file that cannot be used (ssl.SSLError is one).
        """
        return self._with_own(trusted or ssl.create_default_context(cafile=self.ca))

    def server_context(self) -> ssl.SSLContext:
        """The context of a server. With ``ca``, what a client shows must be of it; showing nothing is the caller's.

        Raises OSError for a file that cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self.ca is not None:
            context.load_verify_locations(cafile=self.ca)
            context.verify_mode = ssl.CERT_OPTIONAL
        return self._with_own(context)

    def _with_own(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key, password=lambda: "")  # else OpenSSL asks at the terminal
        return context


class FileWatch:
    """Notices changes of files: looks at them once a minute, or at once after ``look_again``."""

    def __init__(self, names: list[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._names, self._clock = names, clock
        self._seen = self._stamp()
        self._looked_at, self._call = clock(), _latest_call

    def has_changed(self) -> bool:
        """Whether a file has changed since it was last looked at."""
        now = self._clock()
        if now - self._looked_at < LOOK_SECONDS and self._call == _latest_call:
            return False
        self._looked_at, self._call = now, _latest_call
        before, self._seen = self._seen, self._stamp()
        return self._seen != before

    def _stamp(self) -> list[tuple[int, int, int] | None]:
        stamps: list[tuple[int, int, int] | None] = []
        for name in self._names:
            try:
                status = Path(name).stat()
            except OSError:
                stamps.append(None)
            else:
                stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return stamps


def look_again() -> None:
    """Let every FileWatch of this process look at its files at the next chance."""
    global _latest_call
    _latest_call += 1


def expires_at(name: str, *, is_ca: bool = False) -> datetime:
    """When the first certificate of a chain in PEM expires; of a file of authorities, the last one.

    Raises OSError for a file that cannot be read, ValueError for one without a certificate.
    """
    from cryptography import x509  # late: only services and clients with certificates need it

    ends = [each.not_valid_after_utc for each in x509.load_pem_x509_certificates(Path(name).read_bytes())]
    return max(ends) if is_ca else min(ends)


def file_problem(error: Exception) -> str:
    """Why files cannot be used for TLS, in plain words."""
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate"
    if isinstance(error, ssl.SSLError) and reason in (None, "NO_START_LINE", "BAD_END_LINE", "PEM_LIB"):
        return "it is no certificate or key in PEM, or a key with a password"
    if isinstance(error, ssl.SSLError):
        return f"TLS does not take it: {str(reason).lower().replace('_', ' ')}"
    if isinstance(error, OSError):
        return f"it cannot be read: {str(error.strerror).lower()}"
    return "it is no certificate in PEM"


def tls_problem(error: BaseException) -> str | None:
    """The problem of a connection in plain words, "it" being the other side; None if it is not one of TLS."""
    for cause in causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _verification_problem(cause.verify_code)
        if isinstance(cause, ssl.SSLError):
            reason = cause.reason or ""
            for alert, text in _ALERTS.items():
                if "ALERT" in reason and reason.endswith(alert):
                    return text
            if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
                return "it does not speak TLS there: check the port, or whether the address must begin with http://"
    return None


def _verification_problem(code: int) -> str:
    if code == _EXPIRED:
        return "its certificate has expired: ask its owner to renew it, and compare the clocks"
    if code == _NOT_YET:
        return "its certificate is not valid yet: compare the clocks"
    if code in _ANOTHER_NAME:
        return "its certificate is for another name: check the address, or ask its owner which names it has"
    return "its certificate is not signed by an authority that is trusted here: ask its owner for the CA"


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, the innermost first."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    yield from reversed(chain)
