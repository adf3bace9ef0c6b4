"""Pages that archive, label and delete: the same commands for runs, studies and datasets."""

import re
from collections.abc import Mapping

from starlette.responses import Response

from service_kit.console.api import ApiProblem
from service_kit.console.forms import Form
from service_kit.console.pages import Page, Pages
from service_kit.console.words import plain
from service_kit.identity.tokens import Role

_ID = re.compile(r" \([a-z]{2,3}_[0-9a-f]{16}\)")
"""An id beside a name: a page shows the name alone."""


def chosen(page: Page) -> dict[str, object]:
    """The filter of a listing in the address, as the API takes it: what is not archived, unless it says otherwise."""
    return {"archived": page.query.get("archived") == "yes", "tag": page.query.get("tag") or None}


def without_ids(problem: ApiProblem) -> str:
    """Why an act is not possible, with the names of things and without their ids."""
    return _ID.sub("", plain(problem.problem.detail))


def add_housekeeping(pages: Pages, listing: str, name: str, role: Role, done: Mapping[str, str]) -> None:
    """Add the commands ``archive``, ``unarchive``, ``delete`` and ``label`` of each item of a listing.

    ``name`` is that of its id in a path.
    ``done`` has the message of each command that there is.
    """
    where = f"{listing}/{{{name}}}"

    async def act(page: Page, form: Form, command: str) -> Response:
        item = f"{listing}/{page.path[name]}"
        try:
            await page.api.post(f"/v1{item}:{command}", key=form.key)
        except ApiProblem as problem:
            return page.go(item, without_ids(problem), mood="bad")
        return page.go(listing if command == "delete" else item, done[command])

    def add(command: str) -> None:
        @pages.post(f"{where}:{command}", roles=(role,))
        async def handler(page: Page, form: Form) -> Response:
            return await act(page, form, command)

    for command in done:
        if command != "label":
            add(command)
    if "label" not in done:
        return

    @pages.post(f"{where}:label", roles=(role,))
    async def label(page: Page, form: Form) -> Response:
        """Replace note and tags."""
        item = f"{listing}/{page.path[name]}"
        tags = list(dict.fromkeys(tag for each in form.get("tags").split(",") if (tag := " ".join(each.split()))))
        note = form.get("own_note").replace("\r\n", "\n")
        try:
            await page.api.put(f"/v1{item}/labels", {"note": note or None, "tags": tags}, key=form.key)
        except ApiProblem:
            limits = "Not saved: a note has 2,000 characters at most, and there are 10 tags of 30 characters at most."
            return page.go(item, limits, mood="bad")
        return page.go(item, done["label"])
