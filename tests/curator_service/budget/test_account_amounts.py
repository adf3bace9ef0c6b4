"""The arithmetic of accounts, against exact fractions."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt import wire
from blindopt.errors import BudgetExhausted
from curator_service.budget.ledger import Account, Cost
from curator_service.privacy.prices import UNITS, exact, units
from curator_service.salted_digests import salted_digest

AMOUNTS = st.integers(min_value=0, max_value=1000 * UNITS)
DELTAS = st.floats(min_value=0, max_value=0.1).map(lambda value: Decimal(repr(value)))


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(AMOUNTS, DELTAS), max_size=30))
def test_sums_are_exact_however_small_the_parts(costs):
    account = Account()
    for epsilon, delta in costs:
        account = account.charge(Cost(epsilon, delta))
    assert account.used.epsilon == sum(epsilon for epsilon, _ in costs)
    assert Fraction(account.used.delta) == sum((Fraction(d) for _, d in costs), Fraction(0))


@settings(deadline=None, derandomize=True)
@given(DELTAS)
def test_an_amount_reads_back_what_it_writes_without_an_exponent(amount):
    text = exact(amount)
    assert Decimal(text) == amount
    assert "E" not in text.upper()


def test_ten_tenths_of_delta_fit_under_one_and_the_eleventh_does_not():
    """In floats 10 * 0.1 by addition is 0.9999999999999999, and 3 * 0.1 is above 0.3."""
    account = Account().lowered(wire.TuningCaps(epsilon="1000", delta=0.3))
    for _ in range(3):
        account = account.charge(Cost.of("0.1", "0.1"))
    assert 0.1 + 0.1 + 0.1 > 0.3  # the control
    with pytest.raises(BudgetExhausted) as refused:
        account.charge(Cost.of("0.1", "1e-300"), caps="caps")
    assert refused.value.budget["cap"] == "caps.delta"
    assert account.charge(Cost.of("0.1", "0")).used.epsilon == units("0.4")


def test_the_lowest_cap_counts_for_each_by_itself():
    account = Account().lowered(wire.TuningCaps(epsilon="3", delta=0.1))
    account = account.lowered(wire.TuningCaps(epsilon="5", delta=0.01))
    assert (account.cap_epsilon, account.cap_delta) == (units("3"), Decimal("0.01"))
    account = account.lowered(wire.TuningCaps(epsilon="2.5", delta=0.5))
    assert (account.cap_epsilon, account.cap_delta) == (units("2.5"), Decimal("0.01"))


def test_a_tuning_that_says_nothing_of_delta_leaves_its_cap_as_it_is():
    """Else a tuning of pure epsilon would be refused where a release has a delta, or would forbid one."""
    assert Account().lowered(wire.TuningCaps(epsilon="3")).cap_delta is None
    capped = Account(cap_delta=Decimal("0.1"))
    assert capped.lowered(wire.TuningCaps(epsilon="3")).cap_delta == Decimal("0.1")


def test_a_salt_makes_the_digest_of_what_can_be_guessed_another_one():
    assert salted_digest("a", "salt") not in (salted_digest("a", "other"), salted_digest("a", ""))
    assert salted_digest("a", "salt") == salted_digest("a", "salt")
    assert salted_digest(None, "salt") is None
