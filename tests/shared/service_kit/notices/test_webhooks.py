"""When a system that failed is called again: a simulation of hundreds of callers, and each rule by itself."""

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt.client.webhook import seconds_until
from service_kit.notices import webhooks
from service_kit.notices.webhooks import ATTEMPTS_MIN, RESPECTED_SECONDS, Circuit, Retries
from tests.scale import scaled

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def later(seconds):
    return NOW + timedelta(seconds=seconds)


def circuit_of(share=1.0):
    return Circuit(chance=lambda: share)


class NeverOpens(Circuit):
    """Control: forgets every failure."""

    def record_failure(self, now, problem, retry_after_s=0.0):
        pass


def calls_while_down(circuit, callers, seconds):
    """How often a system that is down for ``seconds`` is called, if each caller tries every half second."""
    count = 0
    for tick in range(int(seconds * 2)):
        now = later(tick / 2)
        for _ in range(callers):
            if circuit.may_call(now, 0):
                circuit.record_failure(now, "down")
                count += 1
    return count


def test_hundreds_of_callers_call_a_system_that_is_down_a_few_times():
    """In ten minutes: the first failures, and then probes 0.5, 1, 2, 4, ... seconds apart."""
    assert calls_while_down(circuit_of(), 300, 600) == ATTEMPTS_MIN + 10  # 0.5 (2^k - 1) < 600 for ten k
    assert calls_while_down(NeverOpens(), 300, 600) == 300 * 1200


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_each_wait_lies_between_half_of_the_doubled_one_and_it_and_never_past_the_cap(failures, share):
    limit_s, waits = 0.5, Retries(0.5, 600.0)
    for _ in range(min(failures, 50) - 1):
        limit_s = min(2 * limit_s, 600)
    assert limit_s / 2 <= waits.wait_s(failures, share) <= limit_s == waits.wait_s(failures)


def test_the_chance_is_spread_over_all_of_its_range():
    shares = [webhooks.chance() for _ in range(scaled(400))]
    assert 0 <= min(shares) < 0.1 < 0.9 < max(shares) <= 1


def test_one_call_at_a_time_probes_whether_it_is_back_and_its_success_lets_all_in():
    circuit = circuit_of()
    for _ in range(ATTEMPTS_MIN):
        assert circuit.may_call(NOW, 3)
        assert not circuit.is_down(NOW)
        circuit.record_failure(NOW, "down")
    assert circuit.is_down(later(0.49))
    assert not circuit.may_call(later(0.49), 0)
    assert circuit.may_call(later(0.5), 0)
    assert not circuit.may_call(later(0.6), 1)  # a probe is under way
    assert not circuit.is_down(later(0.6))  # so no measurement is given up
    circuit.record_success()
    state = circuit.may_call(later(0.6), 3), circuit.failures, circuit.problem, circuit.opens_at
    assert state == (True, 0, None, None)


@settings(max_examples=scaled(60), derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 2e6), st.booleans()), min_size=1, max_size=8))
def test_no_call_is_made_before_the_time_that_the_system_named_for_a_day_at_most(failures):
    """The longest of its waits counts, up to a day; a success or a person ends it."""
    circuit, until = circuit_of(0.0), NOW
    for seconds, says in failures:
        circuit.record_failure(NOW, "busy", seconds if says else 0.0)
        if says and seconds > 0:
            until = max(until, later(min(seconds, RESPECTED_SECONDS)))
    if until > NOW:
        assert not circuit.may_call(until - timedelta(microseconds=10), 0)
    assert circuit.may_call(max(until, later(600)), 0)
    circuit.allow_call(NOW)
    assert circuit.may_call(NOW, 0)


def test_a_retry_after_is_seconds_or_a_date_and_any_other_text_is_ignored():
    headers = {"120": 120.0, "999999": 999_999.0, "Wed, 21 Oct 2015 07:28:00 GMT": 0.0}
    headers |= dict.fromkeys(
        ("", "-1", "1e9", "inf", "nan", "1.5", "soon", "9" * 5_000, "Wed, 99 Foo 9999", "\x00"), 0.0
    )
    assert {header: seconds_until(header) for header in headers} == headers
    at = datetime.now(UTC) + timedelta(hours=1)
    assert 3_500 < seconds_until(at.strftime("%a, %d %b %Y %H:%M:%S GMT")) <= 3_600
