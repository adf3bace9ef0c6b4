"""Hosts that are this machine, and addresses that are not."""

import ipaddress
from urllib.parse import urlsplit


def is_localhost_name(host: str) -> bool:
    """Whether a lower-case name always means this machine: localhost and all names under it (RFC 6761, 6.3).

    >>> [is_localhost_name(name) for name in ("localhost", "curator.localhost", "localhost.example", "notlocalhost")]
    [True, True, False, False]
    """
    name = host.removesuffix(".")
    return name == "localhost" or name.endswith(".localhost")


def is_loopback(host: str) -> bool:
    """Whether requests to a host, a lower-case name or an IP address, stay on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return is_localhost_name(host)


def is_http_address(url: str) -> bool:
    """Whether this is http, a host, and perhaps a port and a user.

    >>> [is_http_address(url) for url in ("http://proxy:3128", "http://a:b@10.0.0.1", "proxy:3128", "http://x:99999")]
    [True, True, False, False]
    """
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0 and parts.path in ("", "/")
    except ValueError:
        return False


def is_web_address(url: str) -> bool:
    """Whether requests can be sent to this: http or https, a host, and perhaps a port, a user, a path and a query.

    >>> [is_web_address(url) for url in ("https://a.example/b?c", "http://[::1]:9", "https://", "http://[x", "http://a:b")]
    [True, True, False, False, False]
    """
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not set(url) & set(" \t")
        )
    except ValueError:
        return False


def is_plain_abroad(url: str) -> bool:
    """Whether requests to an address leave this machine over plain http, readable on the way.

    >>> is_plain_abroad("http://10.0.0.7/score"), is_plain_abroad("http://[::1]:9000"), is_plain_abroad("https://x.org")
    (True, False, False)
    """
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")
