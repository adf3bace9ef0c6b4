"""Exact arithmetic of epsilons and deltas as decimals."""

from decimal import ROUND_CEILING, Context, Decimal

_SUM = Context(prec=400, rounding=ROUND_CEILING)  # more digits than two amounts have: sums are exact
_NANO = -12  # the ledger's unit is 1e-12


def add(a: Decimal, b: Decimal) -> Decimal:
    """The exact sum."""
    return _SUM.add(a, b)


def times(k: int, amount: Decimal) -> Decimal:
    """The exact product."""
    return _SUM.multiply(k, amount)


def decimal(units: int) -> Decimal:
    """An amount of the ledger as a decimal.

    >>> decimal(2_500_000_000_000)
    Decimal('2.500000000000')
    """
    return Decimal(units).scaleb(_NANO, _SUM)
