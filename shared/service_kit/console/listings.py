"""What the address of a long table says: where its page begins, and numbers to filter by."""

from service_kit.console.pages import Page

LARGEST = 2**31


def whole_number(page: Page, name: str) -> int | None:
    """The number of a filter; None where it is empty or no whole number, so that a slip filters nothing.

    Grouped digits are read as they are shown: 12,345 is 12345.
    """
    text = page.query.get(name, "").strip().replace(",", "").replace("\u202f", "")
    return min(int(text), LARGEST) if text.isascii() and text.isdigit() else None


def offset_of(page: Page) -> int:
    """How many items the page skips."""
    return whole_number(page, "offset") or 0
