"""Listings, read page by page."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from blindopt import wire

P = TypeVar("P", bound=wire.Page)


def paged(get: Callable[[str | None], P]) -> Iterator[P]:
    """Every page: ``get`` takes the token of one, null for the first."""
    token: str | None = None
    while True:
        page = get(token)
        yield page
        if (token := page.next_page_token) is None:
            return


def audit_entries(get: Callable[..., wire.AuditPage], grant_id: str | None) -> Iterator[wire.AuditEntry]:
    """Every entry of the whole log, or of the shared log of a grant."""
    path = "/v1/audit/entries"
    for page in paged(lambda t: get(path, wire.AuditPage, page_token=t, page_size=1_000, grant_id=grant_id)):
        yield from page.entries


def notices_of(get: Callable[..., wire.NoticePage]) -> list[wire.NoticeView]:
    """Every notice that was to be sent."""
    pages = paged(lambda token: get("/v1/notices", wire.NoticePage, page_token=token, page_size=1_000))
    return [notice for page in pages for notice in page.notices]
