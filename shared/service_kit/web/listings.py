"""Pages of a listing: `page_size` and `page_token` of a request, `next_page_token` of its reply."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeVar

from fastapi import Depends, Query
from pydantic import AfterValidator, AwareDatetime, BeforeValidator

from service_kit.store.labels import ListFilter

T = TypeVar("T")
PageSize = Annotated[int, Query(ge=1, le=1_000, description="Most items of one page.")]
Order = Annotated[Literal["oldest", "newest"], Query(description="Which come first: the same for each page.")]
PageToken = Annotated[str | None, Query(pattern=r"^[0-9]{1,15}$", description="next_page_token of the page before.")]


def _dated(date_text: str) -> str:
    if not re.match(r"\d{4}-\d\d-\d\d[Tt ]", date_text):
        raise ValueError("must be a time such as 2026-11-22T10:00:00Z")
    return date_text


def _in_utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("must be within the years 1 to 9999 in UTC") from None


Time = Annotated[AwareDatetime, BeforeValidator(_dated), AfterValidator(_in_utc)]


@dataclass(frozen=True, slots=True)
class Paging:
    """The page that a request asks for: ``size`` items after the position ``token``, or the first ones."""

    size: int
    token: int | None

    @property
    def after(self) -> int:
        """The position of the last item of the page before; 0 for the first page."""
        return self.token or 0

    @property
    def limit(self) -> int:
        """How many items to read: one more than the page has shows whether there is a next page."""
        return self.size + 1

    def cut(self, items: list[T], position: Callable[[T], int]) -> tuple[list[T], str | None]:
        """The items of the page out of at most ``limit``, and the token of the next page."""
        has_more = len(items) > self.size
        return items[: self.size], str(position(items[self.size - 1])) if has_more else None

    def read(self, page: Callable[[int, int], list[tuple[int, T]]]) -> tuple[list[T], str | None]:
        """The items of the page and the token of the next; ``page(after, limit)`` returns positions and items."""
        numbered, token = self.cut(page(self.after, self.limit), lambda pair: pair[0])
        return [item for _, item in numbered], token


async def _paging(page_size: PageSize = 50, page_token: PageToken = None) -> Paging:
    return Paging(page_size, None if page_token is None else int(page_token))


PagingDep = Annotated[Paging, Depends(_paging)]
Archived = Annotated[bool | None, Query(description="Only archived ones, or only others; default: both.")]


async def _listed(
    archived: Archived = None,
    tag: Annotated[str | None, Query(max_length=30, description="Only those with this tag.")] = None,
) -> ListFilter:
    return ListFilter(archived, tag)


ListFilterDep = Annotated[ListFilter, Depends(_listed)]
