"""The inbox as a spreadsheet: export open measurements, import a file that was filled in."""

from starlette.responses import Response

from curator_service.console.inbox import REASONS
from service_kit.console import ApiProblem, Form, Page, Pages

pages = Pages()
_TRAIL = [("Inbox", "/inbox")]
_FILE_MAX = 32 << 20


@pages.get("/inbox/open.csv", roles=("owner", "measurer"))
async def export(page: Page) -> Response:
    return page.stream("/v1/inbox.csv", study_id=page.query.get("study"))


@pages.get("/inbox/import", roles=("owner", "measurer"))
async def form_for_file(page: Page) -> Response:
    return _shown(page, Form.blank())


@pages.post("/inbox/import", roles=("owner", "measurer"))
async def import_(page: Page, form: Form) -> Response:
    """Check a file, or import it: all of it, or nothing if a line is wrong."""
    dry = form.get("go") == "check"
    file = form.files.get("file")
    if file is None:
        form.wrong("file", "Choose the file that you filled in")
        return _shown(page, form.again(), 422)
    body = await file.read(_FILE_MAX)
    try:
        reply = await page.api.send(
            "POST",
            "/v1/inbox:import",
            query={"dry_run": dry, "commas": form.get("commas") or "ask"},
            body=body,
            key=form.key,
            headers={"content-type": "text/csv"},
        )
    except ApiProblem as problem:
        failed = form.failed(problem)
        failed.errors.pop("", None)  # lines of the file: a table of its own shows them
        return _shown(page, failed, problem.status)
    result = reply.json
    if dry:
        return _shown(page, form.again(), result=counted(result))
    return page.go("/inbox", f"{counted(result)}.")


def counted(result: dict[str, int]) -> str:
    """What an import has done.

    >>> counted({"answered": 1, "declined": 0, "blank": 0})
    '1 value imported. Nothing declined, nothing left open'
    """
    values = f"{result['answered']:,} {'value' if result['answered'] == 1 else 'values'} imported"
    declined = f"{result['declined']:,} declined" if result["declined"] else "Nothing declined"
    return f"{values}. {declined}, {result['blank'] or 'nothing'} left open"


def _shown(page: Page, form: Form, status: int = 200, result: str | None = None) -> Response:
    context = {"form": form, "result": result, "reasons": REASONS}
    return page.show("inbox_import.html", title="Work in a spreadsheet", trail=_TRAIL, status=status, **context)
