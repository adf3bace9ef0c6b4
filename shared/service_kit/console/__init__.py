"""What both web consoles are built on: pages, forms, charts, sessions. Pages read the API as any client does.

How to write a page (in ``curator_service/console`` or ``modeler_service/console``)::

    pages = Pages()

    @pages.get("/studies", roles=("owner",), nav="Studies")       # path below /console; nav: its name in the menu
    async def studies(page: Page) -> Response:
        listing = await page.api.read("/v1/studies", wire.StudyPage, page_token=page.query.get("page_token"))
        return page.show("studies.html", title="Studies", listing=listing, trail=[("Home", "/")])

    @pages.post("/studies/{study_id}:close", roles=("owner",))     # session, role, origin and CSRF are checked before
    async def close(page: Page, form: Form) -> Response:
        await page.api.post(f"/v1/studies/{page.path['study_id']}:close", key=form.key)   # form.key: hidden, fresh
        return page.go("/studies", "The study is closed.")         # 303, with a flash message on the next page

    # studies.html:
    {% extends "base.html" %}{% block main %}
    {% call(study) ui.table(page, "Studies", ["Name", "State"], listing.studies, listing.next_page_token) %}
    <td>{{ study.name }}</td><td>{{ ui.badge(study.state) }}</td>{% endcall %}
    {% call ui.form(page, "/studies/" ~ id ~ ":close") %}{{ ui.button("Close the study", danger=true) }}{% endcall %}
    {{ ui.figure(page, chart) }}{% endblock %}

Check an id of a link or a form with ``id_of("std", text)`` before you put it in a path of the API.

An ``ApiProblem`` that a page does not catch becomes an error page. To show it beside the fields of a form, catch it:
``return page.show(..., status=422, form=form.failed(problem))``, with ``Form.blank(name="default", ...)`` when the
form is first shown, and ``{{ ui.text(form, "name", "Name", help="...") }}`` for each field, by its path in the body,
such as ``release.epsilon``, which ``form.read(model)`` makes (all components: templates/ui.html). Upload a file with
``page.api.upload(path, fields, {"file": file}, key=form.key)``, where ``file = form.file("file")``; the service's
``limit_of`` must allow its size. A chart of ``charts.line``, ``charts.scatter`` or ``charts.bars`` is an argument of
``page.show``, or in a list or dict; the page shows its numbers as a table, and as CSV and JSON with
``?chart=KEY&as=csv``. Large or endless replies are relayed: ``return page.stream("/v1/runs/.../events")``. A live part
is ``{% call ui.live(page, events, path, "Name", state) %}``, where ``events`` is a page that streams and ``path`` the
page itself, from which its parts are drawn again; the whole page is where ``state`` differs. Never
write markup in Python, ``|safe``, ``style=`` or ``on...=``: the content policy forbids them, and tests look for them.
Text of people and of files belongs in ``<bdi>``.
"""

from service_kit.console.api import Api, ApiProblem, Reply, Upload, id_of
from service_kit.console.forms import Form
from service_kit.console.pages import Page, Pages
from service_kit.console.site import Console

__all__ = ["Api", "ApiProblem", "Console", "Form", "Page", "Pages", "Reply", "Upload", "id_of"]
