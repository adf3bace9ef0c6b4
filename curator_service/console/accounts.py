"""Accounts of studies and datasets: ledger, exposure, accounting, uses and caps; and privacy reports."""

import base64
import json
from hashlib import sha256
from typing import Any

from starlette.responses import Response

from blindopt import wire
from curator_service.console import figures
from curator_service.console.reading import file_line, shares
from service_kit.console import ApiProblem, Form, Page, Pages, downloads
from service_kit.console.exports import file_name
from service_kit.console.listings import days, turned, whole_number

pages = Pages()

_TRAIL = [("Budget", "/accounts")]
_LEDGER = (
    *("seq", "created_at", "kind", "query_id", "row", "plays", "epsilon"),
    *("row_epsilon", "total_epsilon", "total_plays", "cap"),
)
_LEDGER_KINDS = (
    ("", "all"),
    ("release", "release"),
    ("answers", "answers"),
    ("correction", "corrections"),
    ("refused", "refused"),
)
_EXPOSURE = ("row", "record", "queries", "plays", "epsilon", "spent")
_USES = (
    *("seq", "created_at", "kind", "study_id", "tuning_id", "bounds_id", "epsilon", "delta", "release_epsilon"),
    *("answers_epsilon", "unbounded", "cap", "act", "old_cap_epsilon", "old_cap_delta", "cap_epsilon", "cap_delta"),
    "reason",
    "guarantee_kind",
)


@pages.get("/accounts", roles=("owner", "auditor"), nav="Budget")
async def listed(page: Page) -> Response:
    if page.query.get("as"):
        return await downloads.listing(page, "/v1/accounts", "accounts", "accounts", wire.StudyAccount)
    listing = await page.api.get("/v1/accounts", page_token=page.query.get("page_token"))
    rows = [(account, shares(account)) for account in listing["accounts"]]
    files: dict[str, Any] = {}
    for dataset_id in dict.fromkeys(account["dataset_id"] for account in listing["accounts"]):
        account = await page.api.get(f"/v1/datasets/{dataset_id}/account", page_size=1)
        studies = [each for each in listing["accounts"] if each["dataset_id"] == dataset_id]
        files.setdefault(account["account"], file_line(account, studies))
    context = {"rows": rows, "files": list(files.values()), "next": listing["next_page_token"]}
    return page.show("accounts.html", title="Budget", **context)


@pages.get("/accounts/{study_id}", roles=("owner", "auditor"))
async def account(page: Page) -> Response:
    where = f"/v1/studies/{page.path['study_id']}"
    study = await page.api.get(f"{where}/account")
    curve = await page.api.get(f"{where}/ledger/curve")
    histogram = await page.api.get(f"{where}/exposure/histogram")
    chosen: dict[str, Any] = {"row": whole_number(page, "row"), "kind": page.query.get("kind") or None, **days(page)}
    order = {"order": "oldest", "back": "newest"}
    ledger, newer, older = await turned(page, f"{where}/ledger", "entries", "seq", **order, **chosen)
    charts = [*figures.spent(study, curve), figures.exposure(histogram)]
    context = {"account": study, "shares": shares(study), "curve": curve, "ledger": ledger, "charts": charts}
    context |= {"newer": newer, "older": older, "kinds": _LEDGER_KINDS}
    return page.show("account.html", title=study["name"], trail=_TRAIL, **context)


@pages.get("/accounts/{study_id}/ledger", roles=("owner", "auditor"))
async def ledger_file(page: Page) -> Response:
    where = f"/v1/studies/{page.path['study_id']}/ledger"
    return await downloads.listing(page, where, "entries", f"ledger-{page.path['study_id']}", _LEDGER)


@pages.get("/accounts/{study_id}/exposure", roles=("owner", "auditor"))
async def exposure(page: Page) -> Response:
    """Candidate by candidate: how often it was queried, and its epsilon. ``?row=N`` jumps to a number."""
    if (row := whole_number(page, "row")) is not None:
        return page.go(f"/accounts/{page.path['study_id']}/exposure", page_token=row - 1 if row else None)
    where = f"/v1/studies/{page.path['study_id']}"
    study = await page.api.get(f"{where}/account")
    order = {"order": "smallest", "back": "largest"}
    listing, newer, older = await turned(page, f"{where}/exposure", "rows", "row", **order)
    trail = [*_TRAIL, (study["name"], f"/accounts/{page.path['study_id']}")]
    return page.show(
        "exposure.html",
        title="Epsilon by candidate",
        trail=trail,
        account=study,
        listing=listing,
        newer=newer,
        older=older,
    )


@pages.get("/accounts/{study_id}/exposure/file", roles=("owner", "auditor"))
async def exposure_file(page: Page) -> Response:
    where = f"/v1/studies/{page.path['study_id']}/exposure"
    return await downloads.listing(page, where, "rows", f"exposure-{page.path['study_id']}", _EXPOSURE)


@pages.get("/accounts/{study_id}/accounting", roles=("owner", "auditor"))
async def accounting(page: Page) -> Response:
    """The epsilon used so far, by two accountants. Takes seconds for thousands of answers."""
    where = f"/v1/studies/{page.path['study_id']}"
    study = await page.api.get(f"{where}/account")
    report = await page.api.get(f"{where}/accounting")
    trail = [*_TRAIL, (study["name"], f"/accounts/{page.path['study_id']}")]
    if page.query.get("as") == "csv":
        rows = [[r["answers"], r["rows"], r["epsilon"], r["tight_epsilon"]] for r in report["rows"]]
        return page.csv(f"accounting-{study['study_id']}", ("answers", "rows", "epsilon", "tight_epsilon"), rows)
    return page.show("accounting.html", title="Accounting", trail=trail, account=study, accounting=report)


@pages.get("/datasets/{dataset_id}/account", roles=("owner", "auditor"))
async def dataset_account(page: Page) -> Response:
    if page.query.get("as"):
        where = f"/v1/datasets/{page.path['dataset_id']}/account"
        return await downloads.listing(page, where, "uses", f"account-{page.path['dataset_id']}", _USES)
    return await _dataset_account(page, None)


async def _dataset_account(page: Page, form: Form | None, status: int = 200) -> Response:
    dataset_id = page.path["dataset_id"]
    account = await page.api.get(f"/v1/datasets/{dataset_id}/account", page_token=page.query.get("page_token"))
    if form is None:
        form = Form.blank(epsilon=account["cap_epsilon"], delta=account["cap_delta"])
    trail = [("Datasets", "/datasets"), ("Dataset", f"/datasets/{dataset_id}")] if page.may("owner") else _TRAIL
    context = {"account": account, "dataset_id": dataset_id, "form": form}
    return page.show("dataset_account.html", title="Account of the dataset", trail=trail, status=status, **context)


@pages.post("/datasets/{dataset_id}/account", roles=("owner",))
async def change_caps(page: Page, form: Form) -> Response:
    where = f"/datasets/{page.path['dataset_id']}/account"
    body = {
        "epsilon": form.get("epsilon") or None,
        "delta": form.real("delta", needed=False),
        "raise_caps": form.has("raise_caps"),
        "reason": form.get("reason") or None,
    }
    if body["raise_caps"] and not body["reason"]:
        form.wrong("reason", "Say why: everybody who can see the account reads it")
    if not form.ok:
        return await _dataset_account(page, form.again(), 422)
    try:
        await page.api.put(f"/v1{where}/caps", body, key=form.key)
    except ApiProblem as problem:
        return await _dataset_account(page, form.failed(problem), problem.status)
    return page.go(where, "The caps are stored. Everybody who can see this account sees the change.")


@pages.post("/studies/{study_id}:report", roles=("owner",))
async def report_of_study(page: Page, form: Form) -> Response:
    return await _signed(page, f"/studies/{page.path['study_id']}", "report")


@pages.post("/datasets/{dataset_id}:report", roles=("owner",))
async def report_of_dataset(page: Page, form: Form) -> Response:
    return await _signed(page, f"/datasets/{page.path['dataset_id']}", "report")


@pages.post("/datasets/{dataset_id}:letter", roles=("owner",))
async def letter(page: Page, form: Form) -> Response:
    return await _signed(page, f"/datasets/{page.path['dataset_id']}", "letter", {"record": form.integer("record")})


_TITLES = {"report": "Privacy report", "letter": "Letter to a person"}


async def _signed(page: Page, where: str, kind: str, body: dict[str, Any] | None = None) -> Response:
    """The page and the file of one document: another request would make another one."""
    signed = await page.api.post(f"/v1{where}:{kind}", body)
    content, title, listing = json.dumps(signed, indent=2).encode(), _TITLES[kind], where.split("/")[1]
    return page.show(
        f"{title.lower().replace(' ', '_')}.html",
        title=title,
        trail=[(listing.capitalize(), f"/{listing}")],
        signed=signed,
        name=file_name(f"{title.lower().replace(' ', '-')}-{where.rpartition('/')[2]}") + ".json",
        digest=sha256(content).hexdigest(),
        download="data:application/json;base64," + base64.b64encode(content).decode(),
    )
