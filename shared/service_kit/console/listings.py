"""What the address of a long table says: where its page begins, and numbers to filter by."""

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from service_kit.console.pages import Page

LARGEST = 2**31


def whole_number(page: Page, name: str) -> int | None:
    """The number of a filter; None where it is empty or no whole number, so that a slip filters nothing.

    Grouped digits are read as they are shown: 12,345 is 12345.
    """
    digits = page.query.get(name, "").strip().replace(",", "").replace("\u202f", "")
    return min(int(digits), LARGEST) if digits.isascii() and digits.isdigit() else None


def offset_of(page: Page) -> int:
    return whole_number(page, "offset") or 0


def days(page: Page) -> dict[str, str | None]:
    """``since`` and ``until`` of the days in the address, in UTC. What is no date filters nothing."""
    first, last = (_day(page.query.get(name, "")) for name in ("first_day", "last_day"))
    return {
        "since": None if first is None else first.isoformat(),
        "until": None if last is None else (last + timedelta(days=1)).isoformat(),
    }


def _day(written: str) -> datetime | None:
    try:
        return datetime.combine(date.fromisoformat(written), time(), UTC)
    except ValueError:
        return None


async def turned(
    page: Page, path: str, member: str, key: str, *, order: str, back: str, **query: object
) -> tuple[dict[str, Any], object, object]:
    """A page of a listing in the API's ``order``, and the positions (values of ``key``) to turn to.

    The second value is where the page before ends, the third where the next one begins; None if there is none. To turn
    back, the address has ``newer``: the listing is read in the order ``back``, and shown the right way round.
    """
    if (start := page.query.get("newer")) is not None:
        listing: dict[str, Any] = await page.api.get(path, order=back, page_token=start, **query)
        items = listing[member][::-1]
        newer, older = listing["next_page_token"], items[-1][key] if items else None
    else:
        token = page.query.get("page_token")
        listing = await page.api.get(path, order=order, page_token=token, **query)
        items, newer, older = listing[member], token, listing["next_page_token"]
    return listing | {member: items}, items[0][key] if newer is not None and items else None, older
