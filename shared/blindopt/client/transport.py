"""What every connection keeps: errors of the transport in plain words, replies that are not encoded, bounded."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import httpx

from blindopt.errors import ProtocolViolated, Unreachable


@cache
def _usual_authorities() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)


def tls_context(verify: str | bool) -> ssl.SSLContext | bool:
    """What a connection verifies certificates with: a file of authorities, the usual ones (True) or nothing (False).

    Reading the usual authorities takes 20 ms and no process sees them change, so connections share them. A file is
    read for each connection: its operator may replace it.
    """
    if isinstance(verify, str):
        return ssl.create_default_context(cafile=verify)
    return verify and _usual_authorities()


def is_ready(base_url: str) -> bool:
    """Whether a service at this address can take requests."""
    try:
        reply = httpx.get(f"{base_url}/readyz", timeout=5.0, verify=tls_context(True), trust_env=False)
    except httpx.TransportError:
        return False
    return reply.status_code == 200


def not_encoded(response: httpx.Response) -> None:
    """ProtocolViolated where the bytes are not those that were sent."""
    # A few bytes of gzip inside gzip unfold to gigabytes; and digests are of the bytes as sent.
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ProtocolViolated("the reply is encoded, though identity was asked for")


def at_most(response: httpx.Response, most: int) -> Iterator[bytes]:
    """The body, as it comes; ProtocolViolated once it is longer than ``most``."""
    not_encoded(response)
    got = 0
    for chunk in response.iter_raw():
        got += len(chunk)
        if got > most:
            raise ProtocolViolated(f"the reply is larger than {most} bytes")
        yield chunk


@contextmanager
def transport_errors() -> Iterator[None]:
    """Unreachable, in plain words, for whatever goes wrong between the parties."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise Unreachable("the other party did not answer in time") from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # the last: no name that could be looked up
        raise Unreachable(f"the connection to the other party failed ({type(error).__name__})") from error
