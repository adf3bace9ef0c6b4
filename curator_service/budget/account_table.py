"""The table of dataset accounts: append-only lines, by file, of charges to every record and of changes of the caps."""

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from sqlalchemy import Column, Index, Integer, Table, Text, bindparam, func, select

from blindopt import wire
from blindopt.errors import BudgetExhausted
from curator_service.privacy import amounts
from curator_service.privacy.prices import exact
from curator_service.store import datasets, studies
from curator_service.store.base import METADATA
from service_kit.store.database import Connection
from service_kit.store.prepared_statement import PreparedStatement

account_lines = Table(
    "tuning_ledger",  # the name that version 0.1.0 gave it
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("account", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("tuning_id", Text, key="subject"),  # the tuning or the bounds; of a raised cap, the owner's reason
    Column("epsilon", Text, nullable=False),
    Column("delta", Text, nullable=False),
    Column("cap", Text),  # the cap that refused; of a change of the caps, what the change does
    Column("cap_epsilon", Text),
    Column("cap_delta", Text),
    Column("total_epsilon", Text, nullable=False),
    Column("total_delta", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Index("tuning_ledger_by_account", "account", "seq"),
)
_LAST = PreparedStatement(
    select(*(account_lines.c[name] for name in ("kind", "cap_epsilon", "cap_delta", "total_epsilon", "total_delta")))
    .where(account_lines.c.account == bindparam("account"))
    .order_by(account_lines.c.seq.desc())
    .limit(1),
    kept=True,
)
_STUDIES = PreparedStatement(
    select(studies.c.id, studies.c.dataset_id, studies.c.spec)
    .join(datasets, datasets.c.id == studies.c.dataset_id)
    .where(datasets.c.sha256 == bindparam("sha256"))
    .order_by(studies.c.seq)
)


@dataclass(frozen=True, slots=True)
class Account:
    """The amounts that were charged to every record of a file at once, and the caps on the whole account.

    ``epsilon`` and ``delta`` are of tunings and bounds; studies have ledgers of their own. A cap of None is no cap.
    """

    epsilon: Decimal = Decimal(0)
    delta: Decimal = Decimal(0)
    cap_epsilon: Decimal | None = None
    cap_delta: Decimal | None = None
    closed: bool = False

    @property
    def is_capped(self) -> bool:
        """Whether there is any cap."""
        return self.cap_epsilon is not None or self.cap_delta is not None

    def lowered(self, caps: wire.TuningCaps) -> "Account":
        """The account with the caps of a tuning: the lowest counts, until the owner raises it."""
        declared = Decimal(caps.epsilon), None if caps.delta is None else Decimal(repr(caps.delta))
        lowest = [
            min((cap for cap in pair if cap is not None), default=None)
            for pair in zip(declared, (self.cap_epsilon, self.cap_delta), strict=True)
        ]
        return replace(self, cap_epsilon=lowest[0], cap_delta=lowest[1])

    def spend(
        self,
        epsilon: Decimal,
        delta: Decimal,
        *,
        of_studies: tuple[Decimal, Decimal] = (Decimal(0), Decimal(0)),
        caps: str = "caps",
    ) -> "Account":
        """The account after a charge to every record. Raises BudgetExhausted if it would pass a cap.

        ``of_studies``: epsilon and delta that the record which lost most has lost by studies. ``caps``: what the
        refusal calls the caps.
        """
        add = amounts.add
        after = replace(self, epsilon=add(self.epsilon, epsilon), delta=add(self.delta, delta))
        for cap, cost, others in (("epsilon", epsilon, of_studies[0]), ("delta", delta, of_studies[1])):
            limit = getattr(self, f"cap_{cap}")
            if limit is not None and add(getattr(after, cap), others) > limit:
                spent = exact(add(getattr(self, cap), others))
                raise BudgetExhausted(f"{caps}.{cap}", requested=exact(cost), spent=spent, limit=exact(limit))
        return after


A_FILE = "file"
"""What a finding is about after which it is not known which studies are on a file: no account with a cap is charged."""
NO_CHARGES = Account()
"""The account of a file to whose every record nothing was charged."""


def is_raised(old: Decimal | None, new: Decimal | None) -> bool:
    """Whether a cap allows more than before; None: no cap."""
    return old is not None and (new is None or new > old)


def account_name(db: Connection, dataset: Any) -> str:
    """The account of a dataset: the id under which its file was registered first, since its records are the same."""
    same = select(datasets.c.id).where(datasets.c.sha256 == dataset.sha256)
    return str(db.execute(same.order_by(datasets.c.seq).limit(1)).scalar_one())


def accounts(db: Connection) -> list[str]:
    """Every account that is not closed."""
    first = select(func.min(datasets.c.seq)).group_by(datasets.c.sha256)
    query = select(datasets.c.id).where(datasets.c.seq.in_(first)).order_by(datasets.c.seq)
    return [account for account in db.execute(query).scalars() if not account_of(db, account).closed]


def last_line(db: Connection) -> int | None:
    """The number of the last line of all accounts; None without any."""
    number: int | None = db.execute(select(func.max(account_lines.c.seq))).scalar_one()
    return number


def account_of(db: Connection, account: str) -> Account:
    """The account with this name."""
    row = _LAST.row(db, account=account)
    if row is None:
        return NO_CHARGES
    return Account(
        Decimal(row.total_epsilon),
        Decimal(row.total_delta),
        None if row.cap_epsilon is None else Decimal(row.cap_epsilon),
        None if row.cap_delta is None else Decimal(row.cap_delta),
        row.kind == "closed",  # no line follows one that closes
    )


def studies_of(db: Connection, sha256: str) -> list[Any]:
    """Id, dataset and spec of every study on any registration of a file, in order."""
    return _STUDIES.rows(db, sha256=sha256)


def add(
    db: Connection,
    account: str,
    kind: str,
    *,
    after: Account,
    at: str,
    subject: str | None = None,
    epsilon: Decimal = Decimal(0),
    delta: Decimal = Decimal(0),
    cap: str | None = None,
) -> None:
    """Add a line, in the transaction that checked it."""
    values = {
        "account": account,
        "kind": kind,
        "subject": subject,
        "epsilon": exact(epsilon),
        "delta": exact(delta),
        "cap": cap,
        "cap_epsilon": None if after.cap_epsilon is None else exact(after.cap_epsilon),
        "cap_delta": None if after.cap_delta is None else exact(after.cap_delta),
        "total_epsilon": exact(after.epsilon),
        "total_delta": exact(after.delta),
        "created_at": at,
    }
    db.execute(account_lines.insert().values(values))


def lines(db: Connection, account: str) -> list[Any]:
    """The lines of an account in order."""
    return list(
        db.execute(select(account_lines).where(account_lines.c.account == account).order_by(account_lines.c.seq))
    )
