"""Work that nobody waits for: once, again and again, after a fault, and never after its end."""

import threading

from service_kit.background import Background


def test_it_is_done_again_when_it_says_so_after_a_fault_and_when_it_is_woken(until, caplog):
    calls = []

    def act():
        calls.append(len(calls))
        if len(calls) == 1:
            raise ZeroDivisionError("77123456789.25")
        return 0.0 if len(calls) < 4 else 3_600.0

    work = Background("work", act, every_s=0.0)
    work.start()
    until(lambda: len(calls) == 4)
    work.wake()
    until(lambda: len(calls) == 5)
    work.close()
    work.wake()
    assert [record.fields for record in caplog.records] == [{"work": "work", "kind": "ZeroDivisionError"}]
    assert "77123456789" not in caplog.text
    assert len(calls) == 5


def test_it_is_done_once_without_an_interval_and_not_at_all_if_it_is_closed_before(until):
    calls = []
    once, never = (Background("work", lambda: calls.append(1), first_s=seconds) for seconds in (0.0, 3_600.0))
    for work in (once, never):
        work.start()
    until(lambda: calls)
    never.close()
    until(lambda: not any(thread.name == "work" for thread in threading.enumerate()))
    assert calls == [1]
