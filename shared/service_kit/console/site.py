"""Builds a console: its routes, login and logout, the checks before each page, and error pages."""

import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from fastapi import FastAPI
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from blindopt.errors import BlindoptError, Forbidden, Invalid, NotFound, RateLimited, Unauthenticated
from service_kit.console.api import ApiProblem
from service_kit.console.forms import CSRF, Form, encodable, same
from service_kit.console.pages import COMPACT, ROOT, TABLES, Entry, Page, Pages
from service_kit.console.render import renderer
from service_kit.console.sessions import Flashes, Session, Sessions, delete_cookie, set_cookie
from service_kit.context.context import ServiceContext
from service_kit.identity.tokens import Principal
from service_kit.settings import ServiceSettings
from service_kit.web.problems import as_blindopt_error

FOLDER = Path(__file__).parent
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
LOGIN, LOGOUT, DENSITY = f"{ROOT}/login", f"{ROOT}/logout", f"{ROOT}/density"
_PART_MAX = 1 << 20
_YEAR_SECONDS = 365 * 86_400
_AUTOMATIC = {b"x-fragment": (b"1",), b"accept": (b"text/event-stream",)}
"""Headers of the requests that live.js sends without the user."""


class OtherSite(Forbidden):
    """A form that was sent from another site, or in another session than that in which it was shown."""

    title = "This form cannot be taken"


class Console:
    """The pages of one service. ``folder`` holds its own ``templates`` and ``static``."""

    paths = re.compile(rf"/|{ROOT}(/.*)?", re.DOTALL)
    headers = (
        (b"content-security-policy", CSP.encode()),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"x-content-type-options", b"nosniff"),
        # With "no-referrer" a browser would send forms with "Origin: null".
        (b"referrer-policy", b"same-origin"),
    )

    def __init__(self, title: str, pages: Sequence[Pages], folder: Path) -> None:
        self.title = title
        self.entries: list[Entry] = [entry for module in pages for entry in module.entries]
        self.renderer = renderer(title, (folder, FOLDER))
        self.flashes: Flashes
        self._sessions: Sessions
        self._tls = False

    def open(
        self,
        app: FastAPI,
        context: ServiceContext,
        settings: ServiceSettings,
        on_failed_login: Callable[[], None] = lambda: None,
    ) -> "Console":
        """Connect the console to its service, and return it. ``on_failed_login`` is called at each failed login."""
        self.app = app
        self.flashes = Flashes(context)
        self._sessions = Sessions(context, settings, on_failed_login)
        return self

    # --- called by the middleware------------------------------------------------------------------------

    async def admit(self, scope: Scope, cookies: str) -> Principal | None:
        """The user who is logged in, or None. Called before the body is read."""
        session = None
        if not scope["path"].startswith(f"{ROOT}/static/"):
            is_automatic = any(name in _AUTOMATIC and value in _AUTOMATIC[name] for name, value in scope["headers"])
            session = await self._sessions.of_cookie(cookies, is_use=not is_automatic)
        scope["state"]["session"] = session
        return None if session is None else session.principal

    def refusal(self, scope: Scope, error: BlindoptError) -> Response:
        session: Session | None = scope["state"].get("session")
        page = None if session is None else Page(Request(scope), self, session)
        headers = {k.lower(): v for k, v in error.headers.items()}
        request_id = scope["state"]["request_id"] if error.status >= 500 else None
        fields = {"title": error.title, "detail": str(error), "request_id": request_id}
        return self.renderer.error(page, error.status, headers, **fields)

    async def is_live(self, session: Session) -> bool:
        return await self._sessions.is_live(session)

    # --- routes -------------------------------------------------------------------------------------

    @property
    def routes(self) -> list[Route]:
        """All routes. The attribute ``roles`` of an endpoint says who may see it; None means everyone."""
        routes = [
            self._route("/", self._home, "GET"),
            self._route(ROOT, self._home, "GET"),
            self._route(f"{ROOT}/static/{{path:path}}", self._static, "GET"),
            self._route(LOGIN, self._login_form, "GET"),
            self._route(LOGIN, self._login, "POST"),
            self._route(LOGOUT, self._logout, "POST"),
            self._route(DENSITY, self._density, "POST"),
        ]
        for entry in self.entries:
            routes.append(self._route(ROOT + entry.path, self._page_of(entry), entry.method, entry.roles))
        routes.append(self._route(f"{ROOT}/{{rest:path}}", self._not_found, "GET"))
        return routes

    def _route(
        self, path: str, handler: Callable[[Request], Awaitable[Response]], method: str, roles: Any = None
    ) -> Route:
        async def endpoint(request: Request) -> Response:
            request.state.route = path  # for the access log
            try:
                return await handler(request)
            except (BlindoptError, HTTPException) as error:
                return self.refusal(request.scope, as_blindopt_error(error))

        endpoint.__dict__["roles"] = roles  # a test walks every route and reads this
        return Route(path, endpoint, methods=[method], include_in_schema=False)

    def _page_of(self, entry: Entry) -> Callable[[Request], Awaitable[Response]]:
        async def handler(request: Request) -> Response:
            session: Session | None = request.state.session
            if session is None:
                return self._to_login(request)
            page = Page(request, self, session)
            if session.principal.role not in entry.roles:
                raise Forbidden("this page is not for your role")
            try:
                if entry.method == "GET":
                    return await entry.handler(page)
                return await entry.handler(page, await self._form(request, session))
            except ApiProblem as problem:
                return page.show_problem(problem)

        return handler

    async def _form(self, request: Request, session: Session) -> Form:
        """The form, if a page of this console sent it in this session."""
        _same_origin(request)
        data = await _sent(request, max_files=10, max_fields=10_000, max_part_size=_PART_MAX)
        token = data.get(CSRF)
        if not isinstance(token, str) or not same(token, session.csrf):
            raise OtherSite("the form is of another session: load its page again, and send it again")
        form = Form.of(data)
        if not form.key:
            raise Invalid("the form has no key: load its page again")
        return form

    def _to_login(self, request: Request) -> Response:
        if request.headers.get("x-fragment"):
            return Response(status_code=401)
        if request.method == "POST":
            return self._login_page(request, "Your session has ended: nothing was changed. Log in again.", 401)
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        query = {} if target == f"{ROOT}/" else {"next": target}
        return RedirectResponse(Page.url("/login", **query), 303)

    # --- the pages that every console has -----------------------------------------------------------

    async def _home(self, request: Request) -> Response:
        return RedirectResponse(f"{ROOT}/", 307)

    async def _not_found(self, request: Request) -> Response:
        if request.state.session is None:
            return self._to_login(request)
        raise NotFound("there is no such page")

    async def _static(self, request: Request) -> Response:
        return self.renderer.static(request)

    async def _login_form(self, request: Request) -> Response:
        if request.state.session is not None:
            return RedirectResponse(f"{ROOT}/", 303)
        return self._login_page(request, idled=await self._sessions.idled(request.headers.get("cookie", "")))

    async def _login(self, request: Request) -> Response:
        _same_origin(request)
        data = await _sent(request, max_files=0, max_fields=10, max_part_size=4_096)
        name, password = (encodable(str(data.get(field) or "")) for field in ("name", "password"))
        address = (request.scope.get("client") or ("",))[0]
        try:
            value = await self._sessions.open(name.strip(), password, address)
        except Unauthenticated:
            return self._login_page(request, "The name or the password is wrong.", 401, name=name[:200])
        except RateLimited as error:
            wait = error.headers["Retry-After"]
            response = self._login_page(request, f"Too many tries: wait {wait} seconds.", 429, name=name[:200])
            response.headers["Retry-After"] = wait
            return response
        if request.state.session is not None:  # one session for each browser
            await self._sessions.end(request.state.session)
        response = RedirectResponse(_inside(str(data.get("next") or "")), 303)
        set_cookie(response, self._sessions.cookie, value)
        return response

    async def _logout(self, request: Request) -> Response:
        _same_origin(request)
        session: Session | None = request.state.session
        response = RedirectResponse(LOGIN, 303)
        if session is not None:  # a request from another site has no cookie, and must not delete it
            await self._form(request, session)
            await self._sessions.end(session)
            delete_cookie(response, self._sessions.cookie)
        return response

    async def _density(self, request: Request) -> Response:
        """Keep in a cookie whether tables are compact, and return to the page that the browser names."""
        session: Session | None = request.state.session
        if session is None:
            return self._to_login(request)
        form = await self._form(request, session)
        page = _split(request.headers.get("referer", ""))
        response = RedirectResponse(_inside(page.path + (f"?{page.query}" if page.query else "")), 303)
        tables = COMPACT if form.get("tables") == COMPACT else "roomy"
        set_cookie(response, TABLES, tables, path=ROOT, max_age=_YEAR_SECONDS)
        return response

    def _login_page(
        self, request: Request, error: str = "", status: int = 200, *, name: str = "", idled: int | None = None
    ) -> Response:
        host = (request.url.hostname or "").lower()
        local = host in ("localhost", "127.0.0.1", "::1", "[::1]") or host.endswith(".localhost")
        target = _inside(request.query_params.get("next", ""))
        # Browsers send Sec-Fetch-Site only over TLS and to the machine itself, so it also shows a proxy with TLS.
        insecure = request.url.scheme != "https" and not local and "sec-fetch-site" not in request.headers
        shown = {"error": error, "name": name, "next": target, "insecure": insecure, "idled": idled}
        return self.renderer.page(None, "login.html", status, title="Log in", **shown)


async def _sent(request: Request, **limits: int) -> FormData:
    """The fields of a form. Raises Invalid for a charset that decodes nothing, and what the framework does."""
    try:
        return await request.form(**limits)
    except UnicodeError:
        raise Invalid("the form is in a charset that cannot be read: send UTF-8") from None


def _split(address: str) -> SplitResult:
    """The parts of an address that a browser names; those of none for a text that is no address."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _same_origin(request: Request) -> None:
    """Raise OtherSite for a form from another site, or from a browser that does not name the site."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is None and origin is None:
        raise OtherSite("the browser does not say where the form comes from: use one of today")
    # The scheme is left out: behind a proxy that ends TLS it is not the browser's.
    is_own = origin is None or same(_split(origin).netloc.lower(), request.headers.get("host", "").lower())
    if site not in (None, "same-origin") or not is_own:
        raise OtherSite("the form was sent from another site: nothing was done")


def _inside(target: str) -> str:
    """The page of the console to show after the login; the first page for any other target."""
    safe = target.startswith(f"{ROOT}/") and "\\" not in target and "//" not in target and target.isprintable()
    return target if safe and not target.startswith(LOGIN) else f"{ROOT}/"
