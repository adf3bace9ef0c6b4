"""How much of its caps the study or dataset closest to one has spent, for anyone who watches the service."""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from blindopt import wire
from curator_service import store
from curator_service.budget import ledger_lines
from curator_service.budget.file_use import FileUses, StudyUse
from curator_service.privacy.prices import units
from service_kit.context.context import ServiceContext
from service_kit.store.database import Connection
from service_kit.web.metrics import Figures, gauge


class BudgetShares:
    """Computes the share, and keeps it until something is charged or a cap changes."""

    def __init__(self, context: ServiceContext, uses: FileUses) -> None:
        self._context = context
        self._uses = uses
        self._computed: tuple[Any, float] = (None, 0.0)

    def gauges(self) -> Figures:
        """The largest share of any cap, of studies that are open and of files, rounded up to a tenth."""
        with self._context.database.read() as db:
            state = *ledger_lines.last_lines(db), *store.open_specs(db)
            if state != self._computed[0]:
                self._computed = state, _rounded(max(self._shares(db), default=Fraction(0)))
        about = "Largest share of a cap that is spent, of open studies and files, rounded up to a tenth."
        yield gauge("blindopt_budget_share_max", about, self._computed[1])

    def _shares(self, db: Connection) -> Iterator[Fraction]:
        opened = {study for study, _ in store.open_specs(db)}
        for account in ledger_lines.open_accounts(db):
            file = self._uses.read(db, store.find(db, store.datasets, account))
            for study in file.studies:
                if study.id in opened:
                    yield from _of_study(study)
            if file.account.cap_epsilon:
                yield Fraction(file.used.epsilon, file.account.cap_epsilon)
            if file.account.cap_delta:
                yield Fraction(file.used.delta) / Fraction(file.account.cap_delta)


def _of_study(study: StudyUse) -> Iterator[Fraction]:
    budget: wire.Budget = study.spec.budget
    of_record = max(study.balance.release + study.most, study.everyone)
    for cap, amount in ((budget.epsilon_per_row, of_record), (budget.epsilon_total, study.balance.total)):
        if cap is not None and units(cap):
            yield Fraction(amount, units(cap))
    if budget.queries:
        yield Fraction(study.balance.plays, budget.queries)


def _rounded(share: Fraction) -> float:
    """Up to a tenth, so that the page does not say which query came when.

    >>> _rounded(Fraction(0)), _rounded(Fraction(1, 1000)), _rounded(Fraction(4, 5)), _rounded(Fraction(801, 1000))
    (0.0, 0.1, 0.8, 0.9)
    """
    return math.ceil(10 * share) / 10
