"""Values as people read them: filters of the templates."""

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

from markupsafe import Markup
from pydantic import BaseModel

from blindopt import wire

NONE = "—"
_MECHANISMS = {"auto": "chosen by the service", "planar_laplace": "Laplace", "laplace": "Laplace"}
_MECHANISMS |= {"gaussian": "Gaussian", "gaussian_projection": "Gaussian after a projection", "po_gp_ucb": "PO-GP-UCB"}
_FIELDS = {
    name
    for model in vars(wire).values()
    if isinstance(model, type) and issubclass(model, BaseModel)
    for name in model.model_fields
}
_SNAKE = re.compile(r"(?<![`\"'\w])[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?![`\"'\w])")


def number(value: object, digits: int = 4, *, up: bool = False, down: bool = False) -> str:
    """A number with ``digits`` significant digits; a dash for none.

    A count, which is whole, is grouped from 1,000 on; a value never is. ``up``: a loss is rounded up, so that it is
    never understated. ``down``: what is protected is rounded down, so that it is never overstated.

    >>> number(0.123456), number(1234567.0), number(1161), number(None), number(1e-9), number("0.5")
    ('0.1235', '1234567', '1,161', '—', '1e-9', '0.5')
    >>> number(1.23412, up=True), number(0.2, up=True), number(1.0986, 3, down=True)
    ('1.235', '0.2', '1.09')
    """
    if value is None:
        return NONE
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**15 else f"{value:.4g}" if abs(value) < 10**300 else "over 1e300"
    if not math.isfinite(value):
        return NONE
    if up or down:
        rounding = ROUND_CEILING if up else ROUND_FLOOR
        value = float(Context(prec=digits, rounding=rounding).create_decimal(repr(value)))
    if value == 0 or 1e-4 <= abs(value) < 1e9:
        decimals = digits - 1 - math.floor(math.log10(abs(value))) if value else 0
        text = f"{value:.{max(0, decimals)}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"


def numbers(values: Sequence[int]) -> str:
    """Rising whole numbers, with consecutive ones as a range.

    >>> numbers([1, 2, 3, 5, 8, 9]), numbers([])
    ('1 to 3, 5, 8, 9', 'none')
    """
    spans: list[list[int]] = []
    for value in values:
        if spans and spans[-1][-1] == value - 1:
            spans[-1].append(value)
        else:
            spans.append([value])
    return ", ".join(f"{s[0]} to {s[-1]}" if len(s) > 2 else ", ".join(map(str, s)) for s in spans) or "none"


def when(value: datetime | str | None) -> Markup | str:
    """A time in UTC, which the browser shows in local time, with the zone."""
    if value is None:
        return NONE
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    moment = moment.astimezone(UTC)
    machine = moment.isoformat(timespec="seconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}">{}</time>').format(machine, moment.strftime("%Y-%m-%d %H:%M UTC"))


def share(value: float | None) -> str:
    return NONE if value is None or not math.isfinite(value) else f"{100 * value:.3g} %"


def size(value: int | None) -> str:
    """A number of bytes.

    >>> size(512), size(3_500_000)
    ('512 B', '3.5 MB')
    """
    if value is None:
        return NONE
    scaled, unit = float(value), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if scaled < 1000 or unit == "TB":
            break
        scaled /= 1000
    return f"{scaled:.3g} {unit}"


def words(value: object) -> str:
    """An internal name, such as a state, in words.

    >>> words("waiting_for_people"), words("planar_laplace")
    ('waiting for people', 'Laplace')
    """
    return _MECHANISMS.get(str(value)) or str(value).replace("_", " ")


def plain(message: str) -> str:
    """A message of the API about a field as a page shows it: without the names of choices and of fields.

    >>> plain('must be one of "a" or "b"'), plain("give signal_variance too")
    ('choose one of the options', 'give signal variance too')
    """
    if message.startswith("must be one of "):
        return "choose one of the options"
    return _SNAKE.sub(lambda m: m[0].replace("_", " ") if m[0] in _FIELDS else m[0], message)


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "numbers": numbers,
    "when": when,
    "share": share,
    "size": size,
    "words": words,
    "plain": plain,
}
