"""Values compare and hash by what they hold, and have no room for more."""

from dataclasses import replace

import pytest

from blindopt.values import value


@value
class Point:
    x: int
    y: int = 0


def test_a_value_is_what_it_holds():
    assert Point(1) == Point(1, 0) != Point(1, 2)
    assert {Point(1): "a"}[Point(1)] == "a"
    assert replace(Point(1), y=2) == Point(1, 2)
    assert repr(Point(1)) == "Point(x=1, y=0)"
    with pytest.raises(AttributeError):
        Point(1).z = 3
