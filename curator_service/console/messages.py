"""What vendors send the owner, the record behind a candidate, and raises of a study's caps."""

from decimal import Decimal, InvalidOperation
from typing import Any

from starlette.responses import Response

from curator_service.console.reading import every, row_of
from service_kit.console import ApiProblem, Form, Page, Pages, id_of

pages = Pages()
_STUDIES = ("Studies", "/studies")
CAPS = {
    "queries": "Measurements in total",
    "epsilon_per_row": "Epsilon of one record",
    "epsilon_total": "Epsilon in total",
}
"""The caps of a study, as forms and pages name them."""


async def _study(page: Page, study_id: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    view = await page.api.get(f"/v1/studies/{study_id}")
    return view, [_STUDIES, (view["spec"]["name"], f"/studies/{study_id}")]


@pages.post("/studies/{study_id}:open_record", roles=("owner",))
async def open_record(page: Page, form: Form) -> Response:
    """The record behind a candidate: an act in the log."""
    where = f"/studies/{page.path['study_id']}"
    row = form.integer("row")
    if row is None:
        return page.go(where, "Enter the number of a candidate, such as 38964, without separators.", mood="bad")
    try:
        record = await page.api.post(f"/v1{where}:open_record", {"row": row})
    except ApiProblem as problem:
        return page.go(where, f"No record was opened: {problem.in_words}", mood="bad")
    view, trail = await _study(page, page.path["study_id"])
    measurement, said = view["spec"]["measurement"], await _recommended(page, form.get("message"))
    features = {feature["column"] for feature in view["spec"]["features"]}
    features |= {name.partition("=")[0] for name in features}  # a category column is a feature if one of its is
    context = {"record": record, "study": view, "measurement": measurement, "features": features} | said
    return page.show("record.html", title=row_of(record).capitalize(), trail=trail, **context)


async def _recommended(page: Page, message_id: str) -> dict[str, Any]:
    """The message that recommends an opened record, and the recommendations of its study before and after it."""
    if not message_id:
        return {"expected": None, "others": []}
    message = await page.api.get(f"/v1/messages/{id_of('msg', message_id)}")
    listed = await every(page.api, "/v1/messages", "messages", study_id=message["study_id"])
    single = [each for each in listed if each["message"]["kind"] == "recommendation"]
    at = [each["id"] for each in single].index(message_id) if message in single else len(single)
    beside = (("Previous recommendation", single[:at][-1:]), ("Next recommendation", single[at + 1 :][:1]))
    return {"expected": message["message"], "others": [(words, each) for words, listed in beside for each in listed]}


@pages.post("/messages/{message_id}:open_records", roles=("owner",))
async def open_records(page: Page, form: Form) -> Response:
    """The records behind the candidates of a message, as a table or, with ``as``, a CSV file: one act in the log."""
    where = f"/messages/{page.path['message_id']}"
    message = await page.api.get(f"/v1{where}")
    try:
        opened = await page.api.post(f"/v1{where}:open_records")
    except ApiProblem as problem:
        return page.go(where, f"No record was opened: {problem.in_words}", mood="bad")
    records = opened["records"]
    labels, columns = _columns(records, "labels"), _columns(records, "in_words")
    cells = [(_cells(record, "labels", labels), _cells(record, "in_words", columns)) for record in records]
    pairs = list(zip(message["message"]["rows"], records, cells, strict=True))
    if form.get("as") == "csv":
        head = [
            "candidate",
            "row of the file",
            "withheld",
            *labels,
            "measured",
            "prediction",
            "expected outcome",
            "probability",
            *columns,
        ]
        rows = [
            [good["row"], record["file_row"] or record["record"], "yes" if record["withheld"] else "no", *label_cells,
             record["plays"], "no" if good["queried"] else "yes", good["mean"], good["probability"], *words]
            for good, record, (label_cells, words) in pairs
        ]  # fmt: skip
        return page.csv(f"records-{page.path['message_id']}", head, rows)
    study, trail = await _study(page, message["study_id"])
    trail.append(("A recommendation", where))
    context = {"message": message, "study": study, "pairs": pairs, "labels": labels, "columns": columns}
    return page.show("records.html", title="The recommended records", trail=trail, **context)


def _columns(records: list[dict[str, Any]], member: str) -> list[str]:
    """The columns that any of the records has a text of: an empty label is left out of its record."""
    return list(dict.fromkeys(text["column"] for record in records for text in record[member]))


def _cells(record: dict[str, Any], member: str, columns: list[str]) -> list[str]:
    texts = {text["column"]: text["text"] for text in record[member]}
    return [texts.get(column, "") for column in columns]


@pages.get("/messages/{message_id}", roles=("owner",))
async def message(page: Page) -> Response:
    return await _message(page)


async def _message(page: Page, form: Form | None = None, status: int = 200) -> Response:
    view = await page.api.get(f"/v1/messages/{page.path['message_id']}")
    study, trail = await _study(page, view["study_id"])
    content, budget = view["message"], study["spec"]["budget"]
    wanted = content["more"] if content["kind"] == "budget" else {}
    more = [(cap, name, budget[cap], _sum(budget[cap], wanted[cap])) for cap, name in CAPS.items() if wanted.get(cap)]
    if form is None:
        form = Form.blank(budget={cap: total for cap, _, _, total in more})
    title = "A request for more budget" if content["kind"] == "budget" else "A recommendation"
    decidable = content["kind"] == "budget" and view["state"] == "open" and study["state"] == "open"
    context = {"message": view, "study": study, "more": more, "form": form}
    context["cautions"] = await _new_cautions(page, study, form) if decidable else []
    return page.show("message.html", title=title, trail=trail, status=status, **context)


def _sum(cap: str | int | None, more: str | int) -> str | None:
    return None if cap is None else f"{Decimal(cap) + Decimal(more):f}"


@pages.post("/messages/{message_id}:decide", roles=("owner",))
async def decide(page: Page, form: Form) -> Response:
    where = f"/messages/{page.path['message_id']}"
    decision = form.get("decision")
    body: dict[str, Any] = {"decision": decision, "word": form.get("word") or None}
    if not decision:
        form.wrong("decision", "Choose one")
    elif decision == "approved":
        view = await page.api.get(f"/v1{where}")
        study = await page.api.get(f"/v1/studies/{view['study_id']}")
        body["budget"] = _caps(form, study["spec"]["budget"])
        await _check_accepted(page, study, form)
    if not form.ok:
        return await _message(page, form.again(), 422)
    try:
        view = await page.api.post(f"/v1{where}:decide", body, key=form.key)
    except ApiProblem as problem:
        return await _message(page, form.failed(problem), problem.status)
    return page.go(f"/studies/{view['study_id']}", f"Saved: {decision}. The vendor can read it.")


@pages.get("/studies/{study_id}/caps", roles=("owner",))
async def caps(page: Page) -> Response:
    return await _caps_page(page)


async def _caps_page(page: Page, form: Form | None = None, status: int = 200) -> Response:
    view, trail = await _study(page, page.path["study_id"])
    budget = view["spec"]["budget"]
    fields = [(cap, name, budget[cap]) for cap, name in CAPS.items() if budget[cap] is not None]
    form = form or Form.blank(budget=budget)
    cautions = await _new_cautions(page, view, form) if view["state"] == "open" else []
    context = {"study": view, "fields": fields, "form": form, "cautions": cautions}
    return page.show("caps.html", title="Raise a cap", trail=trail, status=status, **context)


@pages.post("/studies/{study_id}/caps", roles=("owner",))
async def raise_caps(page: Page, form: Form) -> Response:
    where = f"/studies/{page.path['study_id']}"
    view = await page.api.get(f"/v1{where}")
    body = {"budget": _caps(form, view["spec"]["budget"]), "reason": form.text("reason", "A reason")}
    await _check_accepted(page, view, form)
    if not form.ok:
        return await _caps_page(page, form.again(), 422)
    try:
        await page.api.put(f"/v1{where}/budget", body, key=form.key)
    except ApiProblem as problem:
        return await _caps_page(page, form.failed(problem), problem.status)
    return page.go(where, "The cap is raised. Vendors and auditors can read why.")


async def _check_accepted(page: Page, study: dict[str, Any], form: Form) -> None:
    """Record an error of the form where its caps bring cautions that it does not accept."""
    if form.ok and study["state"] == "open":
        said = " ".join(caution["message"] for caution in await _new_cautions(page, study, form))
        if said and form.get("sure") != said:  # also where other caps were accepted than these
            form.values.pop("sure", None)
            form.wrong("sure", "Confirm this, or choose lower caps")


async def _new_cautions(page: Page, study: dict[str, Any], form: Form) -> list[dict[str, Any]]:
    """The cautions about the caps of a form that the study does not have yet."""
    probe = Form.blank(budget={cap: form.get(f"budget.{cap}") for cap in CAPS if f"budget.{cap}" in form.values})
    body = study["spec"] | {"budget": _caps(probe, study["spec"]["budget"])}
    if not probe.ok:
        return []
    try:
        checked = await page.api.post("/v1/studies:check", body)
    except ApiProblem as problem:
        if problem.status == 422:  # so will be the raise
            return []
        return [{"message": f"The cautions could not be computed: {problem.in_words}"}]
    accepted = {caution["message"] for caution in study["report"]["cautions"]}
    return [c for c in checked["cautions"] if c["field"].startswith("budget.") and c["message"] not in accepted]


def _caps(form: Form, budget: dict[str, Any]) -> dict[str, Any]:
    """All caps of a study: those of the form in place of those that there are."""
    caps = dict(budget)
    for cap in CAPS:
        name = f"budget.{cap}"
        if budget[cap] is None or name not in form.values:
            continue
        if cap == "queries":
            caps[cap] = form.integer(name)
            continue
        try:
            caps[cap] = f"{Decimal(form.get(name)):f}"
        except InvalidOperation:
            form.wrong(name, "Write a number, such as 2.5")
    return caps
