"""Places for streams: nobody takes them all, and none is lost."""

from blindopt.errors import RateLimited
from service_kit.web.stream_limit import ALL, EACH, Places


def _takes(places, who, most=ALL):
    """As many places as there are for one."""
    found = []
    while len(found) < most:
        try:
            found.append(places.take(who))
        except RateLimited:
            break
    return found


def test_each_has_so_many_and_all_have_so_many():
    places = Places()
    held = [_takes(places, f"usr_{n}") for n in range(ALL)]
    assert [len(one) for one in held] == [EACH] * (ALL // EACH) + [0] * (ALL - ALL // EACH)
    held[0].pop().give_back()
    assert len(_takes(places, "usr_new")) == 1


def test_a_place_is_free_again_once_it_is_given_back_or_forgotten_and_no_more_than_once():
    places = Places()
    held = _takes(places, "usr_1")
    given = held.pop()
    given.give_back()
    given.give_back()
    del given
    again = _takes(places, "usr_1")
    assert len(again) == 1
    held.clear()
    again.clear()
    assert len(_takes(places, "usr_1")) == EACH
