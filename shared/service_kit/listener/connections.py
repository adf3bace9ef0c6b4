"""The open connections of a service: how many there may be, and which of them leaves for a newcomer."""

import ipaddress
import resource
from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from typing import Protocol

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
RESERVE = 16
"""Connections beyond the caps, which may only ask for health."""
OTHER_FILES = 256
"""Descriptors that connections leave to the database, files and processes."""


class Standing(IntEnum):
    """Whom a connection serves; the lowest leaves first."""

    NOBODY = 0
    """No request on it was authenticated yet."""
    KEPT = 1
    """Its last request was, and is answered."""
    BUSY = 2
    """Its request is, and is under way."""


class Member(Protocol):
    """A connection."""

    address: str
    """Where it comes from; connections are counted by it."""

    @property
    def standing(self) -> Standing: ...

    def check(self) -> None:
        """Close it if its peer is late."""

    def drop(self) -> None: ...


class Connections:
    """Counts connections, in all and by address.

    At a cap the connection leaves that has waited longest: first one without an authenticated request, then one that
    is kept between two requests. One with an authenticated request under way is never dropped. Where there is no
    other, the newcomer gets a place of the reserve, in which the longest there leaves.
    """

    def __init__(self, total: int, per_address: int) -> None:
        self.total, self.per_address = total, per_address
        self._by_address: Counter[str] = Counter()
        self._members: dict[Member, None] = {}
        """Longest without a reply first."""
        self._reserve: dict[Member, None] = {}
        self.turned_away: Counter[str] = Counter()
        """How often a connection was refused or cut, by reason, since the last report."""

    def __len__(self) -> int:
        return len(self._members)

    def all(self) -> list[Member]:
        return [*self._members, *self._reserve]

    def enter(self, member: Member, *, serves_many: bool = False) -> bool:
        """Add a connection. Return False if it has a place of the reserve only.

        ``serves_many``: its peer is a trusted proxy, for which the cap by address does not hold.
        """
        is_crowd = not serves_many and self._by_address[member.address] >= self.per_address
        if is_crowd or len(self._members) >= self.total:
            self.turned_away["per_address" if is_crowd else "total"] += 1
            leaver = self._longest_waiting(member.address if is_crowd else None)
            if leaver is None:
                if len(self._reserve) >= RESERVE:
                    self._remove(next(iter(self._reserve)))
                self._reserve[member] = None
                return False
            self._remove(leaver)
        self._members[member] = None
        self._by_address[member.address] += 1
        return True

    def _longest_waiting(self, address: str | None) -> Member | None:
        for standing in (Standing.NOBODY, Standing.KEPT):
            for member in self._members:
                if address in (None, member.address) and member.standing == standing:
                    return member
        return None

    def _remove(self, member: Member) -> None:
        self.leave(member)
        member.drop()

    def rest(self, member: Member) -> None:
        """Note that its requests are answered, and that it is kept for the next one."""
        if member in self._members:
            del self._members[member]
            self._members[member] = None

    def leave(self, member: Member) -> None:
        """Remove a connection; one that has left already is ignored."""
        self._reserve.pop(member, None)
        if member in self._members:
            del self._members[member]
            self._by_address[member.address] -= 1
            if not self._by_address[member.address]:
                del self._by_address[member.address]

    def report(self) -> dict[str, int]:
        """Return how often connections were refused or cut, by reason, and count anew."""
        counts, self.turned_away = dict(self.turned_away), Counter()
        return counts


def counted_address(host: str) -> str:
    """The address by which a peer is counted: itself, or the /64 network of an IPv6 address, which one host may own.

    >>> counted_address("192.0.2.7"), counted_address("2001:db8::1:2:3:4"), counted_address("::ffff:192.0.2.7")
    ('192.0.2.7', '2001:db8::/64', '192.0.2.7')
    """
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


class TrustedProxies:
    """The proxies that may say for whom they ask: only from these is ``X-Forwarded-For`` read."""

    def __init__(self, networks: Iterable[Network]) -> None:
        self._networks = tuple(networks)

    def has(self, host: str) -> bool:
        address = _address(host) if self._networks else None
        return address is not None and any(address in network for network in self._networks)

    def client_of(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The address of a request's client: the rightmost one that is no trusted proxy's. Its peer's for others.

        Each proxy adds its peer at the right, so what stands left of that was sent by the client, who may make it up.
        """
        if not self.has(peer):
            return peer
        lines = [value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for"]
        client = peer
        for hop in reversed(",".join(lines).split(",")):
            address = _address(hop.strip())
            if address is None:  # the address of the last proxy that is known
                return client
            client = str(address)
            if not self.has(client):
                return client
        return client


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open descriptors to the hard one. Return how many connections it leaves room for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 1 << 31 if hard == resource.RLIM_INFINITY else max(1, hard - OTHER_FILES - RESERVE)
