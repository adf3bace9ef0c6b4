"""Accounts of studies and tunings: ledger, exposure, accounting."""

from starlette.responses import Response

from blindopt import wire
from curator_service.console import figures
from curator_service.console.reading import shares
from service_kit.console import Page, Pages, downloads

pages = Pages()

_TRAIL = [("Accounts", "/accounts")]
_LEDGER = (
    *("seq", "created_at", "kind", "query_id", "row", "plays", "epsilon"),
    *("row_epsilon", "total_epsilon", "total_plays", "cap"),
)
_EXPOSURE = ("row", "record", "queries", "plays", "epsilon", "spent")
_CHARGES = (
    *("seq", "created_at", "kind", "tuning_id", "epsilon", "delta"),
    *("cap", "cap_epsilon", "cap_delta", "total_epsilon", "total_delta"),
)


@pages.get("/accounts", roles=("owner", "auditor"), nav="Accounts")
async def listed(page: Page) -> Response:
    """All studies, with their spending and caps."""
    if page.query.get("as"):
        return await downloads.listing(page, "/v1/accounts", "accounts", "accounts", wire.StudyAccount)
    listing = await page.api.get("/v1/accounts", page_token=page.query.get("page_token"))
    rows = [(account, shares(account)) for account in listing["accounts"]]
    return page.show("accounts.html", title="Accounts", rows=rows, next=listing["next_page_token"])


@pages.get("/accounts/{study_id}", roles=("owner", "auditor"))
async def account(page: Page) -> Response:
    """The account of one study: charts and the ledger."""
    where = f"/v1/studies/{page.path['study_id']}"
    study = await page.api.get(f"{where}/account")
    curve = await page.api.get(f"{where}/ledger/curve")
    histogram = await page.api.get(f"{where}/exposure/histogram")
    ledger = await page.api.get(f"{where}/ledger", page_token=page.query.get("page_token"))
    charts = [*figures.spent(study, curve), figures.exposure(histogram)]
    context = {"account": study, "shares": shares(study), "curve": curve, "ledger": ledger, "charts": charts}
    return page.show("account.html", title=study["name"], trail=_TRAIL, **context)


@pages.get("/accounts/{study_id}/ledger", roles=("owner", "auditor"))
async def ledger_file(page: Page) -> Response:
    """The whole ledger as a file."""
    where = f"/v1/studies/{page.path['study_id']}/ledger"
    return await downloads.listing(page, where, "entries", f"ledger-{page.path['study_id']}", _LEDGER)


@pages.get("/accounts/{study_id}/exposure", roles=("owner", "auditor"))
async def exposure(page: Page) -> Response:
    """Row by row: how often it was queried, and the cost."""
    where = f"/v1/studies/{page.path['study_id']}"
    study = await page.api.get(f"{where}/account")
    listing = await page.api.get(f"{where}/exposure", page_token=page.query.get("page_token"))
    trail = [*_TRAIL, (study["name"], f"/accounts/{page.path['study_id']}")]
    return page.show("exposure.html", title="Exposure by row", trail=trail, account=study, listing=listing)


@pages.get("/accounts/{study_id}/exposure/file", roles=("owner", "auditor"))
async def exposure_file(page: Page) -> Response:
    """All rows that were queried, as a file."""
    where = f"/v1/studies/{page.path['study_id']}/exposure"
    return await downloads.listing(page, where, "rows", f"exposure-{page.path['study_id']}", _EXPOSURE)


@pages.get("/accounts/{study_id}/accounting", roles=("owner", "auditor"))
async def accounting(page: Page) -> Response:
    """The privacy cost so far, by two accountants. Takes seconds for thousands of answers."""
    where = f"/v1/studies/{page.path['study_id']}"
    study = await page.api.get(f"{where}/account")
    report = await page.api.get(f"{where}/accounting")
    trail = [*_TRAIL, (study["name"], f"/accounts/{page.path['study_id']}")]
    if page.query.get("as") == "csv":
        rows = [[r["answers"], r["rows"], r["epsilon"], r["tight_epsilon"]] for r in report["rows"]]
        return page.csv(f"accounting-{study['study_id']}", ("answers", "rows", "epsilon", "tight_epsilon"), rows)
    return page.show("accounting.html", title="Accounting", trail=trail, account=study, accounting=report)


@pages.get("/datasets/{dataset_id}/spent", roles=("owner", "auditor"))
async def spent(page: Page) -> Response:
    """The ledger of tunings on a dataset's file."""
    where = f"/v1/datasets/{page.path['dataset_id']}/ledger"
    if page.query.get("as"):
        return await downloads.listing(page, where, "charges", f"tunings-{page.path['dataset_id']}", _CHARGES)
    ledger = await page.api.get(where, page_token=page.query.get("page_token"))
    trail = (
        [("Datasets", "/datasets"), ("Dataset", f"/datasets/{page.path['dataset_id']}")]
        if page.may("owner")
        else _TRAIL
    )
    return page.show("spent.html", title="What tunings spent", trail=trail, ledger=ledger)
