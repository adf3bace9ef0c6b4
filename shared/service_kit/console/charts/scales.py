"""Linear and logarithmic axes: positions of values, and ticks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

LARGEST = 1e300
"""Values beyond it are drawn at it, so that differences of two values do not overflow."""
_TICKS, _TICKS_LEAST = 5, 4


def finite(value: object) -> float | None:
    """A value as a number that can be drawn; None for None, for NaN, and for what is no number."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        number = LARGEST if value > 0 else -LARGEST  # an integer of more than 300 digits
    if math.isnan(number):
        return None
    return max(-LARGEST, min(LARGEST, number))


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from ``low`` to ``high``, drawn from ``start`` to ``end`` in the picture."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def position(self, value: float | None) -> float | None:
        """The position of a value; None if it cannot be shown, such as 0 on a logarithmic axis.

        >>> Scale(0, 10, 100, 200).position(5), Scale(1, 100, 0, 10, is_log=True).position(10)
        (150.0, 5.0)
        """
        if value is None or (self.is_log and value <= 0):
            return None
        if self.is_log:
            fraction = (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        else:
            fraction = (value - self.low) / (self.high - self.low)
        fraction = max(0.0, min(1.0, fraction))
        return round(self.start + fraction * (self.end - self.start), 2)

    @property
    def ticks(self) -> list[float]:
        """Round values on the axis.

        >>> Scale(0, 10, 0, 1).ticks, Scale(0.1, 1000, 0, 1, is_log=True).ticks
        ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [0.1, 1.0, 10.0, 100.0, 1000.0])
        """
        return _decades(self.low, self.high) if self.is_log else _round(self.low, self.high)


def scale_of(
    values: Iterable[float | None],
    start: float,
    end: float,
    *,
    is_log: bool = False,
    zero: bool = False,
    close: bool = False,
    tight: bool = False,
) -> Scale:
    """A scale that contains all of ``values``, up to the next tick.

    With ``zero`` it also contains 0. With ``close`` it ends a little beyond the values instead of at a tick, and with
    ``tight`` at them.
    """
    shown = [value for value in values if value is not None and (value > 0 or not is_log)]
    if not shown:
        return Scale(1.0, 10.0, start, end, is_log) if is_log else Scale(0.0, 1.0, start, end)
    low, high = min(shown), max(shown)
    if is_log:
        return _log_scale(low, high, start, end)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    least = max(1e-9 * max(abs(low), abs(high)), 1e-300)
    if high - low < least:
        room = 0.5 * max(abs(low), 1e-3)
        low, high = low - room, high + room
    if close or tight:
        room = 0.0 if tight else 0.04 * (high - low)
        return Scale(max(low - room, -LARGEST), min(high + room, LARGEST), start, end)
    step = _step(low, high)
    # The axis begins and ends at a tick.
    down, up = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return Scale(max(down, -LARGEST), min(up, LARGEST), start, end)


def _log_scale(low: float, high: float, start: float, end: float) -> Scale:
    low, high = max(low, 1e-300), max(high, 1e-300)
    if high / low < 1.0 + 1e-9:
        low, high = low / 2, high * 2
    if math.log10(high / low) > 1:
        low, high = 10.0 ** math.floor(math.log10(low) + 1e-9), 10.0 ** math.ceil(math.log10(high) - 1e-9)
    return Scale(low, high, start, end, is_log=True)


def _step(low: float, high: float) -> float:
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step for m in (1, 2, 5, 10) if (step := m * power) >= rough * (1 - 1e-9))


def _round(low: float, high: float) -> list[float]:
    step = _step(low, high)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, 2 - math.floor(math.log10(step))) if step < 1e15 else 0
    return [round(i * step, min(digits, 320)) + 0.0 for i in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    every = max(1, math.ceil((last - first) / 7))
    shown: list[float] = []
    for parts in ((1,), (1, 2, 5), (1, 2, 3, 4, 5, 7)) if last - first <= 2 else ((1,),):
        candidates = [float(f"{m}e{power}") for power in range(first, last + 1, every) for m in parts]
        shown = [value for value in candidates if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(shown) >= _TICKS_LEAST:
            break
    return shown if len(shown) > 1 else [low, high]


def thinned(count: int, most: int) -> list[int]:
    """At most ``most`` indices of a sequence of ``count``, evenly spaced, with the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
