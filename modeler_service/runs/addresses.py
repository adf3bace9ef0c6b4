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

_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
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
    is_allowed = _is_listed(settings, url) if settings.allowed_curators else _may_reach(settings, _ips_of(url))
    if not is_allowed:
        what = "this modeler sends no request to that host: its operator has not allowed it"
        raise Invalid.at(field, f"{what} in BLINDOPT_MODELER_ALLOWED_CURATORS")
    check_address(url, field, plain_http=settings.allow_plain_http)


class Reached:
    """Looks a curator up once for each connection, which goes to these addresses alone, and is judged by them.

    Whoever answers for the name may say that it is public when asked first, and this machine when asked again.
    """

    def __init__(self, settings: Settings, url: str) -> None:
        self._settings, self._url = settings, url
        self._ips: list[_Ip] = []

    def __call__(self, host: str) -> list[str]:
        """The addresses to connect to. Raises OSError for an unknown name, Unreachable if one is not allowed."""
        addresses = _look_up(host)
        self._ips = [_ip(address) for address in addresses]
        if not self._settings.allowed_curators and not _may_reach(self._settings, self._ips):
            raise Unreachable(NO_CURATOR)
        return addresses

    def shows_failures(self) -> bool:
        """Whether vendors read why a curator cannot be reached: it is listed or public, or they share this machine."""
        settings, url = self._settings, self._url
        if url.startswith("link://") or is_loopback(settings.host) or _is_listed(settings, url):
            return True
        if settings.proxy_to(url) is not None:  # the proxy looks the name up, and connects
            ips = _ips_of(url)
            return bool(ips) and all(ip.is_global for ip in ips)
        return all(ip.is_global for ip in self._ips)

    @contextmanager
    def plain_failures(self) -> Iterator[None]:
        """Raise one and the same Unreachable for all failures at an address whose network vendors may not explore."""
        try:
            yield
        except Unreachable as error:
            if self.shows_failures():
                raise
            raise Unreachable(NO_CURATOR) from error


def _may_reach(settings: Settings, ips: list[_Ip]) -> bool:
    """Whether no list is needed for these addresses: this machine is for those who share it."""
    return is_loopback(settings.host) or not any(ip.is_loopback or ip.is_unspecified for ip in ips)


def _is_listed(settings: Settings, url: str) -> bool:
    address = urlsplit(url)
    host, port = (address.hostname or "").removesuffix("."), address.port or (443 if address.scheme == "https" else 80)
    patterns = [pattern.strip().lower() for pattern in settings.allowed_curators.split(",")]
    return any(fnmatchcase(host, pattern) or fnmatchcase(f"{host}:{port}", pattern) for pattern in patterns)


def _ips_of(url: str) -> list[_Ip]:
    """The addresses of a URL's host, also where it is written in an unusual way; none if there is no such machine."""
    try:
        return [_ip(address) for address in _look_up(urlsplit(url).hostname or "")]
    except (OSError, UnicodeError):
        return []


def _look_up(host: str) -> list[str]:
    infos = socket.getaddrinfo("127.0.0.1" if is_localhost_name(host) else host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in infos]


def _ip(address: str) -> _Ip:
    ip = ipaddress.ip_address(address.partition("%")[0])
    return (ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None) or ip
