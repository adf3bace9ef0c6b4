"""Pages that archive, label and delete: the same commands for runs, studies and datasets."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from starlette.responses import Response

from service_kit.console.api import ApiProblem
from service_kit.console.forms import Form, fresh_key
from service_kit.console.pages import Page, Pages
from service_kit.identity.tokens import Role

_ID = re.compile(r" \([a-z]{2,3}_[0-9a-f]{16}\)")
"""An id beside a name: a page shows the name alone."""
_LIMITS = {
    "note": ("own_note", "Not saved: a note has 2,000 characters at most"),
    "tags": ("tags", "Not saved: there are 10 tags of 30 characters at most"),
}
"""By field of the API: the field of the form, and what is refused in it."""


def chosen(page: Page) -> dict[str, object]:
    """The filter of a listing in the address, as the API takes it: what is not archived, unless it says otherwise."""
    return {"archived": page.query.get("archived") == "yes", "tag": page.query.get("tag") or None}


def without_ids(problem: ApiProblem) -> str:
    """Why an act is not possible, with the names of things and without their ids."""
    return _ID.sub("", problem.in_words)


def add_housekeeping(
    pages: Pages,
    listing: str,
    name: str,
    role: Role,
    done: Mapping[str, str],
    shown: Callable[[Page, Form], Awaitable[Response]] | None = None,
) -> None:
    """Add the commands ``archive``, ``unarchive``, ``delete`` and ``label`` of each item of a listing.

    ``name`` is that of its id in a path.
    ``done`` has the message of each command that there is.
    ``shown`` shows the item's page with a refused note and tags in their form; without it there is no ``label``.
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
    if shown is None:
        return

    @pages.post(f"{where}:label", roles=(role,))
    async def label(page: Page, form: Form) -> Response:
        item = f"{listing}/{page.path[name]}"
        tags = list(dict.fromkeys(tag for each in form.get("tags").split(",") if (tag := " ".join(each.split()))))
        note = form.get("own_note").replace("\r\n", "\n")
        try:
            await page.api.put(f"/v1{item}/labels", {"note": note or None, "tags": tags}, key=form.key)
        except ApiProblem as problem:
            for fault in problem.problem.errors or []:
                form.wrong(*_LIMITS["note" if fault.field == "note" else "tags"])
            return await shown(page, replace(form, key=fresh_key(), problem=problem))
        return page.go(item, done["label"])
