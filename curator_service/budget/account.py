"""The account of a dataset's file: what was charged to every record at once, its caps, and checks against them."""

from dataclasses import replace
from decimal import Decimal

from blindopt import wire
from blindopt.errors import StateConflict
from blindopt.values import value
from curator_service.budget.ledger import amount_text, check
from curator_service.privacy.prices import exact_sum, units

A_FILE = "file"
"""What a finding is about after which it is not known which studies are on a file: no account with a cap is charged."""

CLOSED = (
    "a backup was restored, and what was spent on this file after it is not known: nothing more is released of it or "
    "tuned on it; new records, in a new file, have an account of their own"
)


@value
class Cost:
    """Epsilon in the ledger's units, and delta; both add up exactly."""

    epsilon: int = 0
    delta: Decimal = Decimal(0)

    @staticmethod
    def of(epsilon: str, delta: str) -> "Cost":
        """The cost with these texts."""
        return Cost(units(epsilon), Decimal(delta))

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.epsilon + other.epsilon, exact_sum(self.delta, other.delta))

    @property
    def texts(self) -> tuple[str, str]:
        """Both as they are stored and shown."""
        return amount_text(self.epsilon), amount_text(self.delta)


@value
class Account:
    """What tunings and bounds were charged to every record of a file, and the caps on the whole account.

    Studies have ledgers of their own. A cap of None is no cap.
    """

    used: Cost = Cost()
    cap_epsilon: int | None = None
    cap_delta: Decimal | None = None
    closed: bool = False

    @property
    def is_capped(self) -> bool:
        """Whether there is any cap."""
        return self.cap_epsilon is not None or self.cap_delta is not None

    @property
    def cap_texts(self) -> tuple[str | None, str | None]:
        """Both caps as they are stored and shown."""
        epsilon, delta = (None if cap is None else amount_text(cap) for cap in (self.cap_epsilon, self.cap_delta))
        return epsilon, delta

    def check_open(self) -> None:
        """Raise StateConflict if the account is closed."""
        if self.closed:
            raise StateConflict(CLOSED)

    def with_caps(self, epsilon: str | None, delta: str | None) -> "Account":
        """The account with these caps and no others."""
        cap_epsilon = None if epsilon is None else units(epsilon)
        return replace(self, cap_epsilon=cap_epsilon, cap_delta=None if delta is None else Decimal(delta))

    def lowered(self, caps: wire.TuningCaps) -> "Account":
        """The account with the caps of a tuning: the lowest counts, until the owner raises it."""
        tuning = self.with_caps(caps.epsilon, None if caps.delta is None else repr(caps.delta))
        epsilons = [cap for cap in (tuning.cap_epsilon, self.cap_epsilon) if cap is not None]
        deltas = [cap for cap in (tuning.cap_delta, self.cap_delta) if cap is not None]
        return replace(self, cap_epsilon=min(epsilons), cap_delta=min(deltas, default=None))

    def check(
        self, used: Cost, cost: Cost, *, caps: str = "dataset", requested: int | None = None, row: int | None = None
    ) -> Cost:
        """What a record has used after a cost on top of what it has ``used``. Raises BudgetExhausted at a cap.

        ``caps``: what the refusal calls the caps. ``requested``: the epsilon that it says was requested, if other than
        the cost. ``row``: which it names.
        """
        after, epsilon = used + cost, cost.epsilon if requested is None else requested
        check(f"{caps}.epsilon", self.cap_epsilon, used.epsilon, after.epsilon, epsilon, row)
        check(f"{caps}.delta", self.cap_delta, used.delta, after.delta, cost.delta, row)
        return after

    def charge(self, cost: Cost, *, of_studies: Cost = Cost(), caps: str = "dataset") -> "Account":
        """The account after a charge to every record. Raises BudgetExhausted at a cap.

        ``of_studies``: what the record which lost most has lost by studies.
        """
        self.check(self.used + of_studies, cost, caps=caps)
        return replace(self, used=self.used + cost)


NO_CHARGES = Account()
"""The account of a file to whose every record nothing was charged."""


def is_raised(old: int | Decimal | None, new: int | Decimal | None) -> bool:
    """Whether a cap allows more than before; None: no cap."""
    return old is not None and (new is None or new > old)
