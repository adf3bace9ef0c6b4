"""The specification of ledger and account holds in each state of a small world, and each rule of it is needed."""

import pytest

from tests.curator_service.budget.model import CHARGED, FAULTS, Model, check


def test_every_invariant_holds_in_every_state_of_one_query():
    """A query of one candidate, beside three studies, a backup and two files: 23,736 states."""
    result = check(Model(keys=1))
    assert (result.broken, result.states) == (None, 23_736)


@pytest.mark.slow(sibling="test_every_invariant_holds_in_every_state_of_one_query")
def test_every_invariant_holds_in_every_state_of_three_queries():
    assert check(Model(keys=3)).broken is None


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_changed_rule_breaks_the_invariant_that_it_is_for(fault):
    result = check(Model(keys=2, fault=fault))
    assert result.broken == FAULTS[fault]
    assert result.steps


def test_the_cap_is_reached_so_that_it_is_the_cap_that_holds():
    """With more cap there are more states: refusals are among the transitions."""
    assert check(Model(keys=1, cap=2)).states < check(Model(keys=1, cap=3)).states


def test_what_was_charged_and_not_drawn_is_drawn_after_a_crash():
    """A crash is no refusal: the charge stays, and the same key is answered under it."""
    model = Model(keys=1)
    state, names = (
        model.first(),
        ("charge release 0", "draw release 0", "publish release 0", "charge 0", "draw 0", "crash"),
    )
    for name in names:
        state = dict(model.next(state))[name]
    assert state.stored.answers == (CHARGED,)
    assert "charge 0" not in dict(model.next(state))
    for name in ("draw 0", "publish 0"):
        state = dict(model.next(state))[name]
    assert (state.stored.answer_charges, state.answer_draws) == ((1,), (1,))
