"""The ground of both web consoles: pages rendered here, forms, charts, sessions. They read the API as anybody does.

How to write a page (in ``curator_service/console`` or ``modeler_service/console``)::

    pages = Pages()

    @pages.get("/studies", roles=("owner",), nav="Studies")       # path below /console; nav: its place in the menu
    async def studies(page: Page) -> Response:
        found = await page.api.read("/v1/studies", wire.StudyPage, page_token=page.query.get("page_token"))
        return page.show("studies.html", title="Studies", found=found, trail=[("Home", "/")])

    @pages.post("/studies/{study_id}:close", roles=("owner",))     # session, role, origin and CSRF are checked before
    async def close(page: Page, form: Form) -> Response:
        await page.api.post(f"/v1/studies/{page.path['study_id']}:close", key=form.key)   # form.key: hidden, fresh
        return page.go("/studies", "The study is closed.")         # 303, with a flash message on the next page

    # studies.html:
    {% extends "base.html" %}{% block main %}
    {% call(study) ui.table(page, "Studies", ["Name", "State"], found.studies, found.next_page_token) %}
    <td>{{ study.name }}</td><td>{{ ui.badge(study.state) }}</td>{% endcall %}
    {% call ui.form(page, "/studies/" ~ id ~ ":close") %}{{ ui.button("Close the study", danger=true) }}{% endcall %}
    {{ ui.figure(page, chart) }}{% endblock %}

What a link or a form says is an id goes into a path of the API as ``id_of("std", text)``.

An ``ApiProblem`` that a page lets pass becomes an error page. To show it beside the fields of a form, catch it:
``return page.show(..., status=422, form=form.failed(problem))``, with ``Form.blank(name="default", ...)`` where the
form is first shown, and ``{{ ui.text(form, "name", "Name", help="...") }}`` for each field (all components:
templates/ui.html). A file goes on by ``page.api.upload(path, fields, {"file": file}, key=form.key)``, with ``file =
form.file("file")``; the page that takes it needs a place in the service's ``limit_of``. A chart is made by
``charts.line``, ``charts.scatter`` or ``charts.bars`` and given to ``page.show`` by itself, in a list or in a dict;
its numbers are a table beside it, and CSV and JSON by ``?chart=KEY&as=csv`` of the same page: nothing more to write.
Whatever is large or endless is passed through: ``return page.stream("/v1/runs/.../events")``. A live part: ``{% call
ui.live(page, events, fragment, "Name") %}``, where ``events`` is a page that streams and ``fragment`` one that ends
in ``page.fragment("part.html", ...)``; it ends once the fragment holds an element with ``data-ended``. Never write
markup in Python, ``|safe``, ``style=`` or ``on...=``: the policy forbids them, and tests look for them. Text of
people and of files goes into ``<bdi>``.
"""

from service_kit.console.api import Api, ApiProblem, Reply, Upload, id_of
from service_kit.console.forms import Form
from service_kit.console.pages import Page, Pages
from service_kit.console.site import Console

__all__ = ["Api", "ApiProblem", "Console", "Form", "Page", "Pages", "Reply", "Upload", "id_of"]
