"""How many bytes each grant may add to the logs in a day."""

from datetime import datetime, timedelta

from blindopt.errors import LogQuotaReached
from service_kit.store import day_counts
from service_kit.store.base import Clock
from service_kit.store.database import Connection

GRANT = "grt_"
_NOT_LIVE = " not live"


def counted_as(principal_id: str, *, is_live: bool) -> str:
    """The name under which requests count: a token that expired or was revoked takes nothing from a live one."""
    return principal_id if is_live else principal_id + _NOT_LIVE


class LogQuotas:
    """The bytes of a grant's exchanges, charges and stored replies, and its quota of a day in UTC.

    The count is stored in the transaction that adds the bytes, so that it is exact. Refusals of a grant's tokens that
    are not live have a quota apart, as large as that of all (``counted_as``).
    """

    def __init__(self, clock: Clock, per_day: int | None) -> None:
        self.per_day = per_day
        """The quota of a grant without one of its own; None: it has none."""
        self.refused = 0
        """How many requests were refused since the start."""
        self._clock = clock
        self._reached: dict[str, tuple[str, int, int]] = {}

    def check(self, grant_id: str) -> None:
        """Raise LogQuotaReached for a grant that ``add`` has refused today; reads no database."""
        if (reached := self._reached.get(grant_id)) is None:
            return
        day, quota, amount = reached
        if day == str((now := self._clock()).date()):
            raise self._refusal(quota, now, amount)
        self._reached.pop(grant_id, None)

    def check_room(self, db: Connection, grant_id: str, size: int) -> None:
        """Raise LogQuotaReached if the quota leaves no room for so many bytes."""
        if not grant_id.startswith(GRANT):
            return
        now = self._clock()
        row = day_counts.find(db, grant_id, now)
        quota = self.per_day if row.most is None else row.most
        if quota is not None and row.amount + size > quota:
            raise self._refusal(quota, now, row.amount, size)

    def add(self, db: Connection, grant_id: str, size: int) -> None:
        """Count bytes that the transaction adds. Raises LogQuotaReached, and then ``check`` does for the day.

        A negative size gives back what was reserved for more than was needed. Only grants have a quota.
        """
        if not grant_id.startswith(GRANT):
            return
        now = self._clock()
        if (quota := day_counts.add(db, grant_id, now, size, self.per_day)) is not None:
            amount = day_counts.find(db, grant_id, now).amount
            self._reached[grant_id] = str(now.date()), quota, amount
            raise self._refusal(quota, now, amount, size)
        if size < 0:
            self._reached.pop(grant_id, None)

    def limit(self, db: Connection, grant_id: str, quota: int | None) -> None:
        """Give a grant a quota of its own; None: that of all."""
        day_counts.limit(db, grant_id, self._clock(), quota)
        self._reached.pop(grant_id, None)

    def share_max(self, db: Connection) -> float:
        """The largest share of a quota that is used today, rounded down to a tenth."""
        rows = (row for row in day_counts.of_day(db, self._clock()) if not row.name.endswith(_NOT_LIVE))
        quotas = ((row.amount, self.per_day if row.most is None else row.most) for row in rows)
        return max((10 * amount // quota / 10 for amount, quota in quotas if quota), default=0.0)

    def _refusal(self, quota: int, now: datetime, amount: int, size: int = 0) -> LogQuotaReached:
        self.refused += 1
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        return LogQuotaReached(quota, int((midnight - now).total_seconds()) + 1, amount, size)
