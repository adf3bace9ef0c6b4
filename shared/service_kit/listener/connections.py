"""The open connections of a service: how many there may be, and which of them leaves for a newcomer."""

import ipaddress
import resource
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

RESERVE = 16
"""Connections beyond the caps, which may only ask for health."""
OTHER_FILES = 256
"""Descriptors that connections leave to the database, files and processes."""


class Member(Protocol):
    """A connection. It is waiting while no request of it is under way."""

    address: str
    """Where it comes from; connections are counted by it."""

    def check(self) -> None:
        """Close it if its peer is late."""
        ...

    def drop(self) -> None:
        """Close it at once."""
        ...


class Connections:
    """Counts connections, in all and by address.

    At a cap, the connection that has waited longest leaves: first one that never sent a whole head, then one that is
    kept between two requests. A connection with a request under way is never dropped. Where none waits, the newcomer
    gets a place of the reserve, in which the longest there leaves.
    """

    def __init__(
        self, total: int, per_address: int, *, uncounted: Callable[[str], bool] = lambda address: False
    ) -> None:
        self.total, self.per_address = total, per_address
        self._uncounted = uncounted
        self._by_address: Counter[str] = Counter()
        self._members: set[Member] = set()
        self._new: dict[Member, None] = {}
        self._kept: dict[Member, None] = {}
        self._reserve: dict[Member, None] = {}
        self.turned_away: Counter[str] = Counter()
        """How often a connection was refused or cut, by reason, since the last report."""

    def __len__(self) -> int:
        return len(self._members)

    def all(self) -> list[Member]:
        """Every connection, with those in the reserve."""
        return [*self._members, *self._reserve]

    def enter(self, member: Member) -> bool:
        """Add a connection. Return False if it has a place of the reserve only."""
        is_crowd = self._by_address[member.address] >= self.per_address and not self._uncounted(member.address)
        if is_crowd or len(self._members) >= self.total:
            self.turned_away["per_address" if is_crowd else "total"] += 1
            leaver = self._longest_waiting(member.address if is_crowd else None)
            if leaver is None:
                if len(self._reserve) >= RESERVE:
                    self._remove(next(iter(self._reserve)))
                self._reserve[member] = None
                return False
            self._remove(leaver)
        self._members.add(member)
        self._by_address[member.address] += 1
        self._new[member] = None
        return True

    def _longest_waiting(self, address: str | None) -> Member | None:
        for waiting in (self._new, self._kept):
            for member in waiting:
                if address in (None, member.address):
                    return member
        return None

    def _remove(self, member: Member) -> None:
        self.leave(member)
        member.drop()

    def begin(self, member: Member) -> None:
        """Note that a request has begun: its head is whole."""
        self._new.pop(member, None)
        self._kept.pop(member, None)

    def rest(self, member: Member) -> None:
        """Note that its requests are answered, and that it is kept for the next one."""
        if member in self._members:
            self._kept[member] = None

    def leave(self, member: Member) -> None:
        """Remove a connection; one that has left already is ignored."""
        self.begin(member)
        self._reserve.pop(member, None)
        if member in self._members:
            self._members.remove(member)
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


def is_within(networks: Iterable[ipaddress.IPv4Network | ipaddress.IPv6Network], host: str) -> bool:
    """Whether an address, as a socket has it, lies in one of these networks."""
    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open descriptors to the hard one. Return how many connections it leaves room for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 1 << 31 if hard == resource.RLIM_INFINITY else max(1, hard - OTHER_FILES - RESERVE)
