"""The addresses of curators: which ones a grant's token may be sent to, and what vendors see of a failure there."""

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from blindopt.addresses import is_localhost_name, is_loopback, is_plain_abroad
from blindopt.errors import Invalid, Unreachable
from modeler_service.settings import Settings

NO_CURATOR = (
    "no curator answers at this address: check it, or ask the operator of this modeler to add its host to "
    "ALLOWED_CURATORS, which shows more"
)
"""What vendors read of every failure at an unlisted address of the house's own network, so that none can scan it."""


def check_address(url: str, field: str, *, plain_http: bool) -> None:
    """Raise Invalid, with the ``field`` of the URL, for plain http to another machine unless that is allowed."""
    if not plain_http and is_plain_abroad(url):
        what = "a token is not sent over plain http to another machine"
        raise Invalid.at(field, f"{what}: use https, or set BLINDOPT_MODELER_ALLOW_PLAIN_HTTP")


def check_curator(settings: Settings, url: str, field: str) -> None:
    """Raise Invalid for a curator that ALLOWED_CURATORS, or ALLOW_PLAIN_HTTP, does not allow.

    Without a list every host is allowed but this machine itself; that one too, where the modeler serves nobody else.
    A link, over which a curator takes requests, was made by the operator.
    """
    if url.startswith("link://"):
        return
    if settings.allowed_curators:
        is_allowed = _is_listed(settings, url)
    else:
        is_allowed = is_loopback(settings.host) or not any(ip.is_loopback or ip.is_unspecified for ip in _ips_of(url))
    if not is_allowed:
        what = "this modeler sends no request to that host: its operator has not allowed it"
        raise Invalid.at(field, f"{what} in BLINDOPT_MODELER_ALLOWED_CURATORS")
    check_address(url, field, plain_http=settings.allow_plain_http)


@contextmanager
def plain_failures(settings: Settings, url: str) -> Iterator[None]:
    """Raise one and the same Unreachable for all failures at an address whose network vendors may not explore."""
    try:
        yield
    except Unreachable as error:
        if shows_failures(settings, url):
            raise
        raise Unreachable(NO_CURATOR) from error


def shows_failures(settings: Settings, url: str) -> bool:
    """Whether vendors read why a curator cannot be reached: it is listed or public, or they share this machine."""
    if url.startswith("link://") or is_loopback(settings.host) or _is_listed(settings, url):
        return True
    ips = _ips_of(url)  # a proxy reaches names that have no address here
    return all(ip.is_global for ip in ips) and (settings.https_proxy is None or bool(ips))


def _is_listed(settings: Settings, url: str) -> bool:
    address = urlsplit(url)
    host, port = (address.hostname or "").removesuffix("."), address.port or (443 if address.scheme == "https" else 80)
    patterns = [pattern.strip().lower() for pattern in settings.allowed_curators.split(",")]
    return any(fnmatchcase(host, pattern) or fnmatchcase(f"{host}:{port}", pattern) for pattern in patterns)


def _ips_of(url: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The addresses of a URL's host, also where it is written in an unusual way; none if there is no such machine."""
    host = urlsplit(url).hostname or ""
    try:
        infos = socket.getaddrinfo("127.0.0.1" if is_localhost_name(host) else host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    ips = [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in infos]
    return [(ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None) or ip for ip in ips]
