"""A pause of the garbage collector ends with what it pauses, and changes nothing where it was off."""

import gc

import pytest

from service_kit import collector


@collector.paused()
def while_paused(function):
    return function()


@pytest.mark.parametrize("collects", [True, False])
def test_it_is_as_before_after_a_pause_also_after_an_error(collects):
    (gc.enable if collects else gc.disable)()
    try:
        assert not while_paused(gc.isenabled)
        with pytest.raises(ZeroDivisionError):
            while_paused(lambda: 1 / 0)
        assert gc.isenabled() == collects
    finally:
        gc.enable()


def test_what_is_imported_is_never_looked_at_again():
    gc.unfreeze()
    try:
        with collector.importing():
            assert not gc.isenabled()
            made = []
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
        assert not any(each is made for generation in range(3) for each in gc.get_objects(generation))
    finally:
        gc.freeze()  # as it was: the tests themselves are not looked through
