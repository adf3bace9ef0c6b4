"""Whether an address is on another machine."""

import ipaddress
from urllib.parse import urlsplit


def is_plain_abroad(url: str) -> bool:
    """Whether requests to an address leave this machine over plain http, readable on the way.

    >>> is_plain_abroad("http://10.0.0.7/score"), is_plain_abroad("http://[::1]:9000"), is_plain_abroad("https://x.org")
    (True, False, False)
    """
    parts = urlsplit(url)
    return parts.scheme == "http" and not _is_loopback(parts.hostname or "")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
