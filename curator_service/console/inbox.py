"""The inbox: open measurements one by one, as a table or a spreadsheet; declines, corrections; the owner's system."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.responses import Response

from blindopt import wire
from blindopt.formats.numbers import grouped
from curator_service.console.reading import row_of, whose
from service_kit.console import ApiProblem, Form, Page, Pages, downloads, id_of

pages = Pages()

REASONS = (
    ("unavailable", "The person or the thing cannot be reached"),
    ("impossible", "It cannot be measured"),
    ("consent", "The person does not agree"),
    ("record", "The record is wrong"),
    ("other", "Something else"),
)
STATES = ("open", "overdue", "answered", "declined")
_TRAIL = [("Inbox", "/inbox")]
_BATCH = 50
_NEXT = 10
_SHOWN = 50
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
_COLUMNS = ("id", "query_id", "study", "record", "play", "asked_at", "system")


@pages.get("/inbox", roles=("owner", "measurer"), nav="Inbox")
async def inbox(page: Page) -> Response:
    return await _next(page, Form.blank())


async def _next(page: Page, form: Form, item: dict[str, Any] | None = None, status: int = 200) -> Response:
    context = await _queue(page)
    item = item or (context["items"][0] if context["items"] else None)
    return page.show("inbox.html", title="Inbox", status=status, form=form, item=item, reasons=REASONS, **context)


async def _queue(page: Page) -> dict[str, Any]:
    """Open measurements after the last one that was saved or skipped, or from the start if none follows."""
    study, after = page.query.get("study"), page.query.get("after")
    query = {"study_id": study, "page_size": _NEXT}
    listing = await page.api.get("/v1/inbox", page_token=after, **query)
    began_again = bool(after) and not listing["items"] and listing["open"] > 0
    if began_again:
        listing = await page.api.get("/v1/inbox", **query)
    return {
        "items": listing["items"],
        "open": listing["open"],
        "more": listing["next_page_token"] is not None,
        "study": study,
        "began_again": began_again,
        "has_system": (await page.api.get("/v1/inbox/system"))["state"] != "none",
    }


@pages.get("/inbox/events", roles=("owner", "measurer"))
async def events(page: Page) -> Response:
    return page.stream("/v1/inbox/events")


# --- several at once --------------------------------------------------------------------------------


@pages.get("/inbox/table", roles=("owner", "measurer"))
async def table(page: Page) -> Response:
    return await _table(page, Form.blank())


async def _table(page: Page, form: Form, status: int = 200) -> Response:
    token = page.query.get("page_token")
    listing = await page.api.get("/v1/inbox", study_id=page.query.get("study"), page_size=_BATCH, page_token=token)
    columns = list(dict.fromkeys(cell["column"] for item in listing["items"] for cell in item["in_words"]))
    context = {"form": form, "listing": listing, "columns": columns, "reasons": REASONS, "status": status}
    return page.show("inbox_table.html", title="Several at once", trail=_TRAIL, **context)


@pages.post("/inbox/table", roles=("owner", "measurer"))
async def save(page: Page, form: Form) -> Response:
    """Save the rows that were filled in, query by query; empty rows stay open."""
    measurement_ids = [name.partition("_")[2] for name in form.values if name.startswith("query_")]
    answers: dict[str, list[dict[str, Any]]] = {}
    declines: dict[tuple[str, str], list[str]] = {}
    for measurement_id in measurement_ids:
        query = id_of("qry", form.get(f"query_{measurement_id}"))
        reason = form.get(f"reason_{measurement_id}")
        form.label(f"value_{measurement_id}", f"Value of {form.get(f'record_{measurement_id}')}")
        form.label(f"reason_{measurement_id}", f"Reason for {form.get(f'record_{measurement_id}')}")
        if form.get(f"value_{measurement_id}"):
            if reason:
                form.wrong(f"reason_{measurement_id}", "Give a value or a reason, not both")
            value = form.real(f"value_{measurement_id}")
            answers.setdefault(query, []).append({"measurement_id": measurement_id, "value": value})
        elif reason:
            declines.setdefault((query, reason), []).append(measurement_id)
    if not (answers or declines):
        form.wrong("", "Nothing was filled in")
    if not form.ok:
        return await _table(page, form.again(), 422)
    done = 0
    try:
        for query, values in answers.items():
            body = {"values": values, **({"consent": True} if form.has("consent") else {})}
            await page.api.post(f"/v1/queries/{query}:answer", body, key=f"{form.key}:a:{query}")
            done += len(values)
        for (query, reason), declined in declines.items():
            body = {"measurement_ids": declined, "reason": reason}
            await page.api.post(f"/v1/queries/{query}:decline", body, key=f"{form.key}:d:{reason}:{query}")
            done += len(declined)
    except ApiProblem as problem:
        return await _table(page, _in_rows(form, problem, answers.get(query, []), done), problem.status)
    return page.go(
        "/inbox/table",
        f"Saved {done:,} {'measurement' if done == 1 else 'measurements'}.",
        study=page.query.get("study"),
    )


def _in_rows(form: Form, problem: ApiProblem, values: list[dict[str, Any]], done: int) -> Form:
    """The form with each fault beside its row; rows that were saved before stay saved."""
    names = {}
    for error in problem.problem.errors or []:
        path = (error.field or "").split(".")
        if len(path) > 1 and path[0] == "values" and path[1].isdecimal() and int(path[1]) < len(values):
            names[error.field or ""] = f"value_{values[int(path[1])]['measurement_id']}"
    failed = form.failed(problem, names)
    if done:
        failed.errors[""] = f"{done:,} were saved before this"
    return failed


# --- a spreadsheet ---------------------------------------------------------------------------------


@pages.get("/inbox/open.csv", roles=("owner", "measurer"))
async def export(page: Page) -> Response:
    return page.stream("/v1/inbox.csv", study_id=page.query.get("study"))


@pages.get("/inbox/import", roles=("owner", "measurer"))
async def form_for_file(page: Page) -> Response:
    return _file_form(page, Form.blank())


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
        return _file_form(page, form.again(), 422)
    query: dict[str, Any] = {"commas": form.get("commas") or "ask", "corrections": "apply" if go == "apply" else "ask"}
    query |= {"consent": "true"} if form.has("consent") else {}
    send = partial(page.api.send, "POST", "/v1/inbox:import", body=body, headers={"content-type": "text/csv"})
    try:
        result = (await send(query={"dry_run": True, **query}, key=form.key)).json
        if go == "check" or (result["corrected"] and go != "apply"):
            sheet = b64encode(body).decode() if len(body) <= _SHEET_MAX else None
            return _file_form(page, form.again(), result=result, sheet=sheet)
        result = (await send(query={"dry_run": False, **query}, key=form.key)).json
    except ApiProblem as problem:
        failed = form.failed(problem)
        failed.errors.pop("", None)  # lines of the file: a table of its own shows them
        return _file_form(page, failed, problem.status)
    charged = f" It used epsilon {result['charged']}." if result["charged"] else ""
    return page.go("/inbox", f"Imported: {counted(result)}.{charged}")


def counted(result: Mapping[str, int]) -> str:
    """The lines of a file by what an import does with them.

    >>> counted({"answered": 3, "declined": 0, "unchanged": 12, "corrected": 1, "withheld": 0, "blank": 0})
    '3 new, 12 unchanged, 1 corrected'
    """
    counts = [(result[name], word) for name, word in _COUNTS.items()]
    return ", ".join(f"{count:,} {word}" for count, word in counts if count) or "no line is filled in"


def _file_form(
    page: Page, form: Form, status: int = 200, result: Mapping[str, Any] | None = None, sheet: str | None = None
) -> Response:
    """``result`` of a dry run; ``sheet``: its file, for the press that imports it."""
    context = {"form": form, "result": result, "sheet": sheet, "reasons": REASONS, "counted": counted}
    return page.show("inbox_import.html", title="Work in a spreadsheet", trail=_TRAIL, status=status, **context)


# --- entered measurements ---------------------------------------------------------------------------


@pages.get("/inbox/told", roles=("owner", "measurer"))
async def entered(page: Page) -> Response:
    """Measurements that are answered, declined or overdue; each can be opened and corrected."""
    state = page.query.get("state", "answered")
    query = {"state": state if state in (*STATES, "all") else "answered", "study_id": page.query.get("study")}
    listing = await page.api.get("/v1/inbox", **query, page_token=page.query.get("page_token"))
    if page.query.get("as"):
        return await downloads.listing(page, "/v1/inbox", "items", f"measurements-{query['state']}", _HEAD, **query)
    context = {"listing": listing, "state": query["state"], "states": STATES}
    return page.show("inbox_entered.html", title="Answers so far", trail=_TRAIL, reasons=dict(REASONS), **context)


_HEAD = (
    *("id", "study", "record", "file_row", "play", "state", "value", "version"),
    *("reason", "note", "asked_at", "changed_at", "changed_by"),
)


# --- one measurement --------------------------------------------------------------------------------


@pages.get("/inbox/system", roles=("owner", "measurer"))
async def system(page: Page) -> Response:
    """The state of the system, with the measurements that were given up, or else those that wait for it."""
    view = await page.api.read("/v1/inbox/system", wire.MeasuringSystem)
    state = "given_up" if view.given_up and page.query.get("list") != "waiting" else "waiting"
    if page.query.get("as"):
        return await downloads.listing(page, "/v1/inbox", "items", f"measurements-{state}", _COLUMNS, system=state)
    token = page.query.get("page_token")
    items = await page.api.read("/v1/inbox", wire.InboxPage, system=state, page_size=_SHOWN, page_token=token)
    context: dict[str, Any] = {"system": view, "listing": items, "list": state}
    return page.show("system.html", title="The system that measures", trail=_TRAIL, **context)


@pages.post("/inbox/system:try_again", roles=("owner", "measurer"))
async def try_all_again(page: Page, form: Form) -> Response:
    try:
        tried = await page.api.post("/v1/inbox/system:try_again", key=form.key)
    except ApiProblem as problem:
        return page.go("/inbox/system", problem.in_words, mood="bad")
    return page.go("/inbox/system", f"Your system is called now. Brought forward: {tried['measurements']:,}.")


@pages.post("/inbox/{measurement_id}:try_again", roles=("owner", "measurer"))
async def try_again(page: Page, form: Form) -> Response:
    path = f"/inbox/{page.path['measurement_id']}"
    try:
        await page.api.post(f"/v1/inbox/measurements/{page.path['measurement_id']}:try_again", key=form.key)
    except ApiProblem as problem:
        if problem.status == 404:
            raise
        return page.go(path, problem.in_words, mood="bad")
    return page.go(path, "Your system is called for it now. Look again in a moment.")


@pages.get("/inbox/{measurement_id}", roles=("owner", "measurer"))
async def measurement(page: Page) -> Response:
    return await _measurement(page, Form.blank())


async def _measurement(page: Page, form: Form, status: int = 200) -> Response:
    item = await page.api.get(f"/v1/inbox/measurements/{page.path['measurement_id']}")
    context = {"form": form, "item": item, "reasons": REASONS, "status": status, "study": page.query.get("study")}
    return page.show("measurement.html", title=row_of(item).capitalize(), trail=_TRAIL, **context)


@pages.post("/inbox/{measurement_id}:answer", roles=("owner", "measurer"))
async def answer(page: Page, form: Form) -> Response:
    """Save a value and show the next measurement, or correct an earlier value if the form was for that."""
    item = await page.api.get(f"/v1/inbox/measurements/{page.path['measurement_id']}")
    value, version = form.real("value"), form.integer("version", needed=False)
    if not form.ok:
        return await _refused(page, form.again(), item, 422)
    verb = "correct" if form.get("act") == "correct" else "answer"
    values = [{"measurement_id": item["id"], "value": value, "expected_version": version}]
    body: dict[str, Any] = {"values": values, "note": form.get("note") or None}
    body |= {"consent": True} if form.has("consent") and verb == "answer" else {}
    try:
        entered = await page.api.post(f"/v1/queries/{item['query_id']}:{verb}", body, key=form.key)
    except ApiProblem as problem:
        if problem.status == 409:
            failed = form.failed(problem)  # as it was typed, beside the newer answer
            failed.errors[""] = "Another user answered this measurement: check the newer value first"
            return await _measurement(page, failed, 409)
        return await _refused(page, _beside(form, problem, _shown(item, value)), item, problem.status)
    done = "Corrected to" if verb == "correct" else "Saved"
    message = f"{done} {_shown(item, value)} for {whose(item)}.{_charged(entered)}"
    undo = "" if verb == "correct" else f"/inbox/{item['id']}:undo?version={item['version'] + 1}"
    return _onward(page, form, item, message, undo)


@pages.post("/inbox/{measurement_id}:undo", roles=("owner", "measurer"))
async def undo(page: Page, form: Form) -> Response:
    """Take back the value that was just saved, unless entering it again would be charged or it has changed since."""
    item = await page.api.get(f"/v1/inbox/measurements/{page.path['measurement_id']}")
    where = f"/inbox/{item['id']}"
    typed = page.query.get("version", "")
    version = int(typed) if typed.isdecimal() and len(typed) < 10 else 0
    body = {"void": [item["id"]], "reason": "other", "note": "undone", "undo_version": version}
    try:  # the curator decides: the vendor may get the answer, or another person correct it, at this very moment
        await page.api.post(f"/v1/queries/{item['query_id']}:correct", body, key=form.key)
    except ApiProblem as problem:
        if problem.status != 409:
            raise
        current = await page.api.get(f"/v1/inbox/measurements/{item['id']}")
        why = "the measurement has changed since."
        if current["costs_again"] and current["version"] == version:
            why = "the vendor has received a private answer. Correct it here, which uses epsilon again."
        return page.go(where, f"Nothing was undone: {why}", mood="note")
    return page.go(where, f"Undone: {_shown(item, item['value'])} is taken back. Enter the right value.")


@pages.post("/inbox/{measurement_id}:decline", roles=("owner", "measurer"))
async def decline(page: Page, form: Form) -> Response:
    return await _without_value(page, form, "decline", "measurement_ids", "Declined {}.")


@pages.post("/inbox/{measurement_id}:void", roles=("owner", "measurer"))
async def void(page: Page, form: Form) -> Response:
    return await _without_value(page, form, "correct", "void", "Taken back: {} counts as declined.")


async def _without_value(page: Page, form: Form, verb: str, field: str, done: str) -> Response:
    """Leave a measurement without a value: its id goes to the API in ``field``, with the reason of the form."""
    item = await page.api.get(f"/v1/inbox/measurements/{page.path['measurement_id']}")
    body = {field: [item["id"]], "reason": form.text("reason", "A reason"), "note": form.get("decline_note") or None}
    if not form.ok:
        return await _refused(page, form.again(), item, 422)
    try:
        entered = await page.api.post(f"/v1/queries/{item['query_id']}:{verb}", body, key=form.key)
    except ApiProblem as problem:
        return await _refused(page, form.failed(problem, {"note": "decline_note"}), item, problem.status)
    message = f"{done.format(whose(item))} The modeler learns that there is no answer."
    return _onward(page, form, item, message + _charged(entered))


def _charged(entered: dict[str, Any]) -> str:
    return f" It used epsilon {entered['charged']}." if entered["charged"] else ""


@pages.post("/inbox/{measurement_id}:release_mean", roles=("owner",))
async def release_mean(page: Page, form: Form) -> Response:
    item = await page.api.get(f"/v1/inbox/measurements/{page.path['measurement_id']}")
    body = {"measurement_ids": [item["id"]]}
    try:
        entered = await page.api.post(f"/v1/queries/{item['query_id']}:release_mean", body, key=form.key)
    except ApiProblem as problem:
        return await _measurement(page, form.failed(problem), problem.status)
    return page.go(f"/inbox/{item['id']}", f"Released the mean of the others. It used epsilon {entered['charged']}.")


async def _refused(page: Page, form: Form, item: dict[str, Any], status: int) -> Response:
    if form.get("back") == "one":
        return await _measurement(page, form, status)
    return await _next(page, form, item, status)


def _onward(page: Page, form: Form, item: dict[str, Any], message: str, undo: str = "") -> Response:
    if form.get("back") == "one":
        return page.go(f"/inbox/{item['id']}", message, undo=undo)
    return page.go("/inbox", message, undo=undo, after=item["seq"], study=form.get("study") or None)


def _shown(item: dict[str, Any], value: float | None) -> str:
    return f"{grouped(value or 0.0)} {item['unit'] or ''}".strip()


def _beside(form: Form, problem: ApiProblem, shown: str) -> Form:
    """The form with the faults of its value beside the field, in full sentences."""
    errors = problem.problem.errors or []
    failed = form.failed(problem, {e.field: "note" if e.field == "note" else "value" for e in errors if e.field})
    if "value" in failed.errors:
        failed.errors["value"] = f"{shown} {failed.errors['value']}. Not saved."
    return failed
