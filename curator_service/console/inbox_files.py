"""The inbox as a spreadsheet: export open measurements, import a file that was filled in."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.responses import Response

from curator_service.console.inbox import REASONS
from service_kit.console import ApiProblem, Form, Page, Pages

pages = Pages()
_TRAIL = [("Inbox", "/inbox")]
_FILE_MAX = 32 << 20
_SHEET_MAX = 700_000
"""Bytes of a file that a page keeps for the press that imports it: in base64, a field of a form holds them."""
_COUNTS = {
    "answered": "new",
    "declined": "declined",
    "unchanged": "unchanged",
    "corrected": "corrected",
    "withheld": "skipped because the record is withheld",
    "blank": "left open",
}


@pages.get("/inbox/open.csv", roles=("owner", "measurer"))
async def export(page: Page) -> Response:
    return page.stream("/v1/inbox.csv", study_id=page.query.get("study"))


@pages.get("/inbox/import", roles=("owner", "measurer"))
async def form_for_file(page: Page) -> Response:
    return _shown(page, Form.blank())


@pages.post("/inbox/import", roles=("owner", "measurer"))
async def import_(page: Page, form: Form) -> Response:
    """Check a file, or import it: all of it, or nothing if a line is wrong, or corrects a value without a press."""
    go, file = form.get("go"), form.files.get("file")
    try:
        body = b64decode(form.get("sheet")) if file is None else await file.read(_FILE_MAX)
    except ValueError:
        body = b""
    if not body:
        form.wrong("file", "Choose the file that you filled in")
        return _shown(page, form.again(), 422)
    query: dict[str, Any] = {"commas": form.get("commas") or "ask", "corrections": "apply" if go == "apply" else "ask"}
    query |= {"consent": "true"} if form.has("consent") else {}
    send = partial(page.api.send, "POST", "/v1/inbox:import", body=body, headers={"content-type": "text/csv"})
    try:
        result = (await send(query={"dry_run": True, **query}, key=form.key)).json
        if go == "check" or (result["corrected"] and go != "apply"):
            sheet = b64encode(body).decode() if len(body) <= _SHEET_MAX else None
            return _shown(page, form.again(), result=result, sheet=sheet)
        result = (await send(query={"dry_run": False, **query}, key=form.key)).json
    except ApiProblem as problem:
        failed = form.failed(problem)
        failed.errors.pop("", None)  # lines of the file: a table of its own shows them
        return _shown(page, failed, problem.status)
    charged = f" It used epsilon {result['charged']}." if result["charged"] else ""
    return page.go("/inbox", f"Imported: {counted(result)}.{charged}")


def counted(result: Mapping[str, int]) -> str:
    """The lines of a file by what an import does with them.

    >>> counted({"answered": 3, "declined": 0, "unchanged": 12, "corrected": 1, "withheld": 0, "blank": 0})
    '3 new, 12 unchanged, 1 corrected'
    """
    counts = [(result[name], word) for name, word in _COUNTS.items()]
    return ", ".join(f"{count:,} {word}" for count, word in counts if count) or "no line is filled in"


def _shown(
    page: Page, form: Form, status: int = 200, result: Mapping[str, Any] | None = None, sheet: str | None = None
) -> Response:
    """``result`` of a dry run; ``sheet``: its file, for the press that imports it."""
    context = {"form": form, "result": result, "sheet": sheet, "reasons": REASONS, "counted": counted}
    return page.show("inbox_import.html", title="Work in a spreadsheet", trail=_TRAIL, status=status, **context)
