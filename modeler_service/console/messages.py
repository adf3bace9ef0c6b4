"""What a run sends the owner of its study: its recommendation, and requests for more budget."""

from typing import Any

from starlette.responses import Response

from blindopt import wire
from service_kit.console import ApiProblem, Form, Page, Pages

pages = Pages()


async def messages_of(page: Page, run_id: str) -> list[wire.RunMessage]:
    listed = await page.api.read(f"/v1/runs/{run_id}/messages", wire.RunMessagePage, page_size=200)
    return listed.messages[::-1]


@pages.post("/runs/{run_id}/messages", roles=("vendor",))
async def send(page: Page, form: Form) -> Response:
    """Hand over the recommendation, or request more budget."""
    body: dict[str, Any] = {"kind": form.get("kind"), "note": form.get("note") or None}
    if body["kind"] == "recommendation":
        body["over"] = form.get("over", "asked")
    else:
        body["more"] = {
            "queries": form.integer("queries", needed=False),
            "epsilon_per_row": form.get("epsilon_per_row") or None,
            "epsilon_total": form.get("epsilon_total") or None,
        }
        if not any(body["more"].values()):
            return _back(page, "Nothing was sent. Enter how much more you need, such as 50.", mood="bad")
    return await _post(page, form, "", body, "Sent: the owner sees it. Look here for the decision.")


@pages.post("/runs/{run_id}/messages/{number}:update", roles=("vendor",))
async def update(page: Page, form: Form) -> Response:
    """Send a message again, or read the owner's decision."""
    return await _post(page, form, f"/{page.path['number']}:update", None, "This is what the owner's service says now.")


async def _post(page: Page, form: Form, path: str, body: object, done: str) -> Response:
    try:
        await page.api.post(f"/v1/runs/{page.path['run_id']}/messages{path}", body, key=form.key)
    except ApiProblem as problem:
        return _back(page, problem.in_words, mood="bad")
    return _back(page, done)


def _back(page: Page, said: str, **mood: Any) -> Response:
    return page.go(f"/runs/{page.path['run_id']}", said, **mood)
