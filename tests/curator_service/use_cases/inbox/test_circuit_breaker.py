"""When a system that failed is called again: a simulation of hundreds of callers, and each rule by itself."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt.client.webhook import seconds_until
from curator_service.use_cases.inbox import circuit_breaker
from curator_service.use_cases.inbox.circuit_breaker import (
    FAILURES,
    LONGEST_WAIT_SECONDS,
    RESPECTED_SECONDS,
    Circuit,
    wait_after,
)
from tests.scale import scaled

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def later(seconds):
    return NOW + timedelta(seconds=seconds)


def circuit_of(part=1.0):
    return Circuit(chance=lambda: part)


class NeverOpens(Circuit):
    """Control: forgets every failure."""

    def record_failure(self, now, problem, retry_after_s=None):
        pass


def calls_while_down(circuit, callers, seconds):
    """How often a system that is down for ``seconds`` is called, if each caller tries every half second."""
    count = 0
    for tick in range(int(seconds * 2)):
        now = later(tick / 2)
        for caller in range(callers):
            if circuit.may_call(now):
                circuit.begin_call(str(caller))
                circuit.record_failure(now, "down")
                circuit.end_call(str(caller))
                count += 1
    return count


def test_hundreds_of_callers_call_a_system_that_is_down_a_few_times():
    """In ten minutes: the first failures, and then probes 0.5, 1, 2, 4, ... seconds apart."""
    assert calls_while_down(circuit_of(), 300, 600) == FAILURES + 10  # 0.5 (2^k - 1) < 600 for ten k
    assert calls_while_down(NeverOpens(), 300, 600) == 300 * 1200


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_each_wait_lies_between_half_of_the_doubled_one_and_it_and_never_past_the_cap(failures, part):
    whole = 0.5
    for _ in range(min(failures, 50) - 1):
        whole = min(2 * whole, LONGEST_WAIT_SECONDS)
    assert whole / 2 <= wait_after(failures, part) <= whole <= LONGEST_WAIT_SECONDS


def test_the_chance_is_spread_over_all_of_its_range():
    drawn = [circuit_breaker.chance() for _ in range(scaled(400))]
    assert 0 <= min(drawn) < 0.1 < 0.9 < max(drawn) <= 1


def test_one_call_at_a_time_probes_whether_it_is_back_and_its_success_lets_all_in():
    circuit = circuit_of()
    for _ in range(FAILURES):
        assert circuit.may_call(NOW)
        circuit.begin_call("a")
        circuit.record_failure(NOW, "down")
        circuit.end_call("a")
    assert circuit.is_open(NOW)
    assert not circuit.may_call(later(0.49))
    assert circuit.may_call(later(0.5))
    circuit.begin_call("b")
    assert not circuit.may_call(later(0.6))  # a probe is under way
    assert not circuit.is_open(later(0.4))  # so no measurement is given up
    circuit.end_call("a")  # a call that began before the circuit opened is no probe
    assert not circuit.may_call(later(0.6))
    circuit.record_success()
    circuit.end_call("b")
    state = circuit.may_call(later(0.6)), circuit.failures, circuit.problem, circuit.opens_at
    assert state == (True, 0, None, None)


def test_a_probe_that_ends_without_an_outcome_allows_the_next_one():
    circuit = circuit_of()
    for _ in range(FAILURES):
        circuit.record_failure(NOW, "down")
    circuit.begin_call("a")
    circuit.end_call("a")
    assert circuit.may_call(later(1))


@settings(max_examples=scaled(60), derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 2e6), st.booleans()), min_size=1, max_size=8))
def test_no_call_is_made_before_the_time_that_the_system_named_for_a_day_at_most(failures):
    """The longest of its waits counts, up to a day; a success or a person ends it."""
    circuit, until = circuit_of(0.0), NOW
    for seconds, says in failures:
        circuit.record_failure(NOW, "busy", seconds if says else None)
        if says and seconds > 0:
            until = max(until, later(min(seconds, RESPECTED_SECONDS)))
    if until > NOW:
        assert not circuit.may_call(until - timedelta(microseconds=10))
    assert circuit.may_call(max(until, later(LONGEST_WAIT_SECONDS)))
    circuit.allow_probe(NOW)
    assert circuit.may_call(NOW)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("0", 0.0), ("120", 120.0), ("999999", 999_999.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0)]
    + [
        (header, None)
        for header in ("", "-1", "1e9", "inf", "nan", "1.5", "soon", "9" * 5_000, "Wed, 99 Foo 9999", "\x00")
    ],
)
def test_a_retry_after_that_is_neither_seconds_nor_a_date_is_ignored(header, seconds):
    assert seconds_until(header) == seconds


def test_a_retry_after_may_be_a_date():
    at = datetime.now(UTC) + timedelta(hours=1)
    assert 3_500 < seconds_until(at.strftime("%a, %d %b %Y %H:%M:%S GMT")) <= 3_600
