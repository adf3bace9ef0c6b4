"""Whether an address is on another machine."""

from urllib.parse import urlsplit

from blindopt.addresses import is_loopback


def is_plain_abroad(url: str) -> bool:
    """Whether requests to an address leave this machine over plain http, readable on the way.

    >>> is_plain_abroad("http://10.0.0.7/score"), is_plain_abroad("http://[::1]:9000"), is_plain_abroad("https://x.org")
    (True, False, False)
    """
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")
