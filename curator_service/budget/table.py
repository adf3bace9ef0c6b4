"""The lines of both ledgers, of studies and of the accounts of files: append-only, and nobody else writes one.

Each line of a study has the balances after it, and each line of an account the caps and totals, so that a check reads
two lines.
"""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Column, ForeignKey, Index, Integer, Table, Text, bindparam, select

from blindopt.wire.base import GuaranteeKind
from curator_service.budget.ledger import Account, Charge, Cost
from curator_service.privacy.prices import text
from curator_service.store.base import METADATA
from service_kit.store.database import Connection
from service_kit.store.prepared_statement import PreparedStatement

ledger = Table(
    "ledger",
    METADATA,
    Column("seq", Integer, primary_key=True),
    Column("study_id", Text, ForeignKey("studies.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("query_id", Text),
    Column("row", Integer),
    Column("plays", Integer, nullable=False),
    Column("cost", Text, nullable=False),  # a refused one may be more than an integer of SQLite holds
    Column("cap", Text),
    Column("row_queries", Integer, nullable=False),
    Column("row_plays", Integer, nullable=False),
    Column("row_total", Integer, nullable=False),
    Column("release", Integer, nullable=False),
    Column("total", Integer, nullable=False),
    Column("total_plays", Integer, nullable=False),
    Column("created_at", Text, nullable=False),
    Index("ledger_by_study", "study_id", "seq"),
    Index("ledger_by_row", "study_id", "row", "seq", "kind", "row_queries", "row_plays", "row_total"),
)
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
    Column("guarantee_kind", Text),  # of a charge; null: it is none, or it was added before schema 15
    Index("tuning_ledger_by_account", "account", "seq"),
)
LAST = PreparedStatement(
    select(ledger.c.release, ledger.c.total, ledger.c.total_plays)
    .where(ledger.c.study_id == bindparam("study"))
    .order_by(ledger.c.seq.desc())
    .limit(1),
    kept=True,
)
"""The balances of a study."""
LAST_OF_ROW = PreparedStatement(
    select(ledger.c.row_queries, ledger.c.row_plays, ledger.c.row_total)
    .where(ledger.c.study_id == bindparam("study"), ledger.c.row == bindparam("row"), ledger.c.kind != "refused")
    .order_by(ledger.c.seq.desc())
    .limit(1),
    kept=True,
)
"""The balances of a row of a study."""
LINES_OF_ACCOUNT = PreparedStatement(
    select(account_lines).where(account_lines.c.account == bindparam("account")).order_by(account_lines.c.seq)
)
_ADD = PreparedStatement(ledger.insert(), [column.key for column in ledger.c if column.key != "seq"])


def add(
    db: Connection,
    study_id: str,
    kind: str,
    charges: Iterable[Charge],
    *,
    at: str,
    query_id: str | None = None,
    cap: str | None = None,
) -> None:
    """Add lines of a study, in the transaction that checked them. A refusal, at a ``cap``, changes no balance."""
    for charge in charges:
        after, row_after = charge.after, charge.row_after
        _ADD.run(
            db,
            study_id=study_id,
            kind=kind,
            query_id=query_id,
            row=charge.row,
            plays=charge.plays,
            cost=text(charge.cost),
            cap=cap,
            row_queries=row_after.queries,
            row_plays=row_after.plays,
            row_total=row_after.total,
            release=after.release,
            total=after.total,
            total_plays=after.plays,
            created_at=at,
        )
        LAST.remember(db, (after.release, after.total, after.plays), study=study_id)
        if charge.row is not None and kind != "refused":
            balances = row_after.queries, row_after.plays, row_after.total
            LAST_OF_ROW.remember(db, balances, study=study_id, row=charge.row)


def add_to_account(
    db: Connection,
    account: str,
    kind: str,
    *,
    after: Account,
    at: str,
    subject: str | None = None,
    cost: Cost = Cost(),
    cap: str | None = None,
    guarantee_kind: GuaranteeKind | None = None,
) -> None:
    """Add a line of an account, in the transaction that checked it."""
    values: dict[str, Any] = {"account": account, "kind": kind, "subject": subject, "cap": cap, "created_at": at}
    values["guarantee_kind"] = guarantee_kind
    values["epsilon"], values["delta"] = cost.texts
    values["cap_epsilon"], values["cap_delta"] = after.cap_texts
    values["total_epsilon"], values["total_delta"] = after.total.texts
    db.execute(account_lines.insert().values(values))
