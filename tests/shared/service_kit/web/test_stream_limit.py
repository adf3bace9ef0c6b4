"""The limit on open streams: no principal takes all slots, and no slot is lost."""

from blindopt.errors import RateLimited
from service_kit.web.server_sent_events import PRINCIPAL_MAX, TOTAL_MAX, StreamLimit


def _acquire_all(limit, principal):
    """As many slots as a principal gets."""
    slots = []
    while len(slots) < TOTAL_MAX:
        try:
            slots.append(limit.acquire(principal))
        except RateLimited:
            break
    return slots


def test_each_principal_and_all_together_have_a_limit():
    limit = StreamLimit()
    slots = [_acquire_all(limit, f"usr_{n}") for n in range(TOTAL_MAX)]
    full = TOTAL_MAX // PRINCIPAL_MAX
    assert [len(own) for own in slots] == [PRINCIPAL_MAX] * full + [0] * (TOTAL_MAX - full)
    slots[0].pop().release()
    assert len(_acquire_all(limit, "usr_new")) == 1


def test_a_slot_is_free_again_once_it_is_released_or_garbage_collected_and_counts_once():
    limit = StreamLimit()
    slots = _acquire_all(limit, "usr_1")
    released = slots.pop()
    released.release()
    released.release()
    del released
    again = _acquire_all(limit, "usr_1")
    assert len(again) == 1
    slots.clear()
    again.clear()
    assert len(_acquire_all(limit, "usr_1")) == PRINCIPAL_MAX
