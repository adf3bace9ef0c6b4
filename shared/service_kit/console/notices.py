"""The page of notices, which a service sends by webhook; and certificates that the home page warns of."""

from collections.abc import Callable

from starlette.responses import Response

from blindopt import wire
from service_kit.console.api import ApiProblem
from service_kit.console.downloads import listing
from service_kit.console.forms import Form
from service_kit.console.pages import Page, Pages
from service_kit.identity.tokens import Role

About = Callable[[Page, wire.NoticeSubject], tuple[str, str] | None]
"""Returns the name and path below /console of the page about the subject of a notice, or None."""


def pages_of(about: About, *, readers: tuple[Role, ...], testers: tuple[Role, ...]) -> Pages:
    pages = Pages()

    @pages.get("/notices", roles=readers, nav="Notices", section="Settings")
    async def listed(page: Page) -> Response:
        if page.query.get("as"):
            return await listing(page, "/v1/notices", "notices", "notices", wire.NoticeView)
        reply = await page.api.read("/v1/notices", wire.NoticePage, page_token=page.query.get("page_token"))
        rows = [(view, about(page, view.notice.subject)) for view in reply.notices]
        may_test, token = page.may(*testers), reply.next_page_token
        return page.show("notices.html", title="Notices", rows=rows, next=token, may_test=may_test)

    @pages.post("/notices:test", roles=testers)
    async def test(page: Page, form: Form) -> Response:
        """Send a test notice now, and show the receiver's problem if it has one."""
        try:
            result = await page.api.post("/v1/notices:test")
        except ApiProblem as problem:
            return page.go("/notices", problem.in_words, mood="bad")
        if result["delivered"]:
            return page.go("/notices", "The test notice arrived.")
        return page.go("/notices", f"The test notice did not arrive: {result['problem']}", mood="bad")

    return pages


async def certificate_problems(page: Page) -> list[str]:
    """What is wrong with the service's certificates, or soon will be; one sentence or two for each."""
    listed = await page.api.read("/v1/certificates", wire.CertificateList)
    return [view.problem for view in listed.certificates if view.problem is not None]
