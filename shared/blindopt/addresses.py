"""Hosts that are this machine."""

import ipaddress


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
