"""Where a grant's token may be sent."""

import ipaddress
from urllib.parse import urlsplit

from shared.errors import Invalid


def check_address(url: str, field: str, *, plain_http: bool) -> None:
    """Invalid, with the ``field`` it came in, for plain http to another machine unless that is allowed."""
    parts = urlsplit(url)
    if parts.scheme == "http" and not plain_http and not _is_loopback(parts.hostname or ""):
        raise Invalid(
            "a grant token is not sent over plain http to another machine",
            [{"field": field, "message": "use https, or set BLINDOPT_MODELER_ALLOW_PLAIN_HTTP"}],
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
