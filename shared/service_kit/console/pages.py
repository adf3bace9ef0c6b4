"""A page of a console: its roles, its request, and its responses."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from service_kit.console import exports
from service_kit.console.api import Api, ApiProblem, Relay, Reply, problem_of
from service_kit.console.charts import Chart
from service_kit.console.forms import Form, fresh_key
from service_kit.console.render import Renderer
from service_kit.console.sessions import Flashes, Session
from service_kit.identity.tokens import Role

ROOT = "/console"
TABLES, COMPACT = "tables", "compact"
"""The cookie that says how tables look, and its value for compact ones."""
Get = Callable[["Page"], Awaitable[Response]]
Post = Callable[["Page", Form], Awaitable[Response]]
Trail = Sequence[tuple[str, str]]
Mood = Literal["good", "bad", "note"]


@dataclass(frozen=True, slots=True)
class Entry:
    """The declaration of a page."""

    method: Literal["GET", "POST"]
    path: str
    """Below ``/console``."""
    roles: tuple[Role, ...]
    handler: Callable[..., Awaitable[Response]]
    nav: str | None
    """Its name in the menu, or None if only other pages link to it."""
    section: str | None = None
    """The entry of the menu that it shares with other pages, or None for an entry of its own."""


@dataclass(slots=True)
class Pages:
    """The pages of a module in the order of their declaration, which is that of the menu."""

    entries: list[Entry] = field(default_factory=list)

    def get(
        self, path: str, *, roles: tuple[Role, ...], nav: str | None = None, section: str | None = None
    ) -> Callable[[Get], Get]:
        def declare(handler: Get) -> Get:
            self.entries.append(Entry("GET", path, roles, handler, nav, section))
            return handler

        return declare

    def post(self, path: str, *, roles: tuple[Role, ...]) -> Callable[[Post], Post]:
        """Declare the target of a form. It ends in ``page.go``, or shows the form again."""

        def declare(handler: Post) -> Post:
            self.entries.append(Entry("POST", path, roles, handler, None))
            return handler

        return declare


class Site(Protocol):
    """What a page needs of its console, whose module imports this one."""

    entries: list[Entry]
    flashes: Flashes
    renderer: Renderer

    async def is_live(self, session: Session) -> bool: ...


class Page:
    """A request for a page by a user who may see it."""

    def __init__(self, request: Request, site: Site, session: Session) -> None:
        self.request = request
        self.site = site
        self.session = session
        self.user = session.principal
        self.csrf = session.csrf
        """The token that every form carries against cross-site requests."""
        self.path: Mapping[str, Any] = request.path_params
        self.query: Mapping[str, str] = request.query_params
        """The query string; the last value of a repeated name."""
        self.api = Api(request.app, request.scope, session.principal, request.state.request_id)

    fresh_key = staticmethod(fresh_key)

    @property
    def is_dense(self) -> bool:
        return self.request.cookies.get(TABLES) == COMPACT

    def may(self, *roles: Role) -> bool:
        """Whether the user has one of these roles, to show what only they can use."""
        return self.user.role in roles

    # --- addresses ----------------------------------------------------------------------------------

    @staticmethod
    def url(path: str, **query: object) -> str:
        """The address of a page. A query value of None is left out."""
        query_text = urlencode({k: v for k, v in query.items() if v is not None})
        return ROOT + path + (f"?{query_text}" if query_text else "")

    def this_url(self, **changed: object) -> str:
        """The address of this page with changed query values; None removes one."""
        unchanged = [(k, v) for k, v in self.request.query_params.multi_items() if k not in changed]
        pairs = [*unchanged, *((k, v) for k, v in changed.items() if v is not None)]
        return self.request.url.path + (f"?{urlencode(pairs)}" if pairs else "")

    @property
    def menu(self) -> list[tuple[str, str, bool]]:
        """The menu of the user: name, address, and whether this page belongs to the entry.

        Pages of one section share an entry, which leads to the first of them.
        """
        sections = self._sections()
        return [
            (name if len(pages) > 1 else pages[0][0], pages[0][1], any(is_current for *_, is_current in pages))
            for name, pages in sections.items()
        ]

    @property
    def submenu(self) -> list[tuple[str, str, bool]]:
        """The other pages of this page's section, as in ``menu``; none if it has only one."""
        current = [pages for pages in self._sections().values() if any(is_current for *_, is_current in pages)]
        return current[0] if current and len(current[0]) > 1 else []

    def _sections(self) -> dict[str, list[tuple[str, str, bool]]]:
        path = self.request.url.path.removeprefix(ROOT)
        sections: dict[str, list[tuple[str, str, bool]]] = {}
        for e in self.site.entries:
            if e.nav is not None and self.user.role in e.roles:
                entry = (e.nav, ROOT + e.path, _holds(e.path, path))
                sections.setdefault(e.section or e.nav, []).append(entry)
        return sections

    # --- responses ----------------------------------------------------------------------------------

    def show(self, template: str, *, title: str, status: int = 200, trail: Trail = (), **context: Any) -> Response:
        """A whole page, or with ``?chart=KEY&as=csv`` (or json) the numbers of one of its charts.

        ``trail`` are the names and paths below /console of the pages above it. The messages to show wait for a person,
        and not for a script that follows a page.
        """
        if (key := self.query.get("chart")) is not None:
            for chart in _charts(context.values()):
                if chart.key == key:
                    return exports.numbers(chart, self.query.get("as", "csv"))
        follows = self.request.headers.get("x-fragment")
        context["flashes"] = () if follows else self.site.flashes.take(self.request, self.session)
        response = self.site.renderer.page(self, template, status, title=title, trail=trail, **context)
        if context["flashes"]:
            self.site.flashes.clear(response)
        return response

    def show_problem(self, refused: ApiProblem) -> Response:
        problem = refused.problem
        headers = {k: v for k, v in refused.headers.items() if k == "retry-after"}
        fields = {"title": problem.title, "detail": refused.in_words, "request_id": problem.request_id}
        return self.site.renderer.error(self, problem.status, headers, **fields, problem=refused)

    def fragment(self, template: str, **context: Any) -> Response:
        """A part of a page, which replaces a live part."""
        return self.site.renderer.part(self, template, **context)

    def go(
        self, path: str, message: str | None = None, *, mood: Mood = "good", undo: str = "", **query: object
    ) -> Response:
        """Redirect to another page (303), which shows ``message`` once, with an Undo button that posts to ``undo``."""
        response = RedirectResponse(self.url(path, **query), 303)
        if message is not None:
            self.site.flashes.put(response, self.session, message, mood, undo)
        return response

    def stream(self, path: str, **query: object) -> Response:
        """Relay a reply of the API as it comes: an export, events. Last-Event-ID and Range are passed on.

        It ends within seconds of the session.
        """
        passed_on = {k: v for k in ("last-event-id", "range") if (v := self.request.headers.get(k)) is not None}
        scope = self.api.scope_of("GET", path, query, passed_on)

        def refusal_page(reply: Reply) -> Response:
            return self.show_problem(problem_of(reply, path, self.request.state.request_id))

        return Relay(self.request.app, scope, refusal_page, lambda: self.site.is_live(self.session))

    @staticmethod
    def csv(name: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> Response:
        """A table as CSV, in which no cell is a formula that a spreadsheet would run."""
        return exports.csv_file(name, head, rows)


def _charts(values: Iterable[object]) -> Iterable[Chart]:
    for value in values:
        if isinstance(value, Chart):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _charts(value)
        elif isinstance(value, dict):
            yield from _charts(value.values())


def _holds(entry: str, path: str) -> bool:
    """Whether the page at ``path`` belongs to the menu's entry at ``entry``."""
    return path == entry if entry == "/" else re.match(re.escape(entry) + r"($|[/:])", path) is not None
