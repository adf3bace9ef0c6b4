"""The page of notices: what a service told its people by webhook."""

from collections.abc import Callable

from starlette.responses import Response

from blindopt import wire
from service_kit.console.api import ApiProblem
from service_kit.console.downloads import listing
from service_kit.console.forms import Form
from service_kit.console.pages import Page, Pages
from service_kit.identity.tokens import Role

About = Callable[[Page, wire.NoticeSubject], tuple[str, str] | None]
"""What a notice is about, for who is logged in: the page's name and its path below /console, or None."""


def pages_of(about: About, *, readers: tuple[Role, ...], testers: tuple[Role, ...]) -> Pages:
    """The page for ``readers``, and the test of the receiver that ``testers`` may ask for."""
    pages = Pages()

    @pages.get("/notices", roles=readers, nav="Notices")
    async def listed(page: Page) -> Response:
        """All of them."""
        if page.query.get("as"):
            return await listing(page, "/v1/notices", "notices", "notices", wire.NoticeView)
        found = await page.api.read("/v1/notices", wire.NoticePage, page_token=page.query.get("page_token"))
        rows = [(one, about(page, one.notice.subject)) for one in found.notices]
        may_test, token = page.may(*testers), found.next_page_token
        return page.show("notices.html", title="Notices", rows=rows, next=token, may_test=may_test)

    @pages.post("/notices:test", roles=testers)
    async def test(page: Page, form: Form) -> Response:
        """Send one now, and say what is wrong with the receiver."""
        try:
            told = await page.api.post("/v1/notices:test")
        except ApiProblem as problem:
            return page.go("/notices", problem.problem.detail, mood="bad")
        if told["delivered"]:
            return page.go("/notices", "The test notice arrived.")
        return page.go("/notices", f"The test notice did not arrive: {told['problem']}", mood="bad")

    return pages
