"""Studies of groups: their part of the forms of a new study, and the page of a group.

The form has one epsilon, for everything about a record. A share of it is for the numbers of records by group, and the
rest for so many answers about one group.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal, InvalidOperation
from math import ceil, isfinite, log, prod
from typing import Any

from starlette.responses import Response

from blindopt import wire
from blindopt.formats.numbers import DecimalSigns, either, number_of
from service_kit.console import ApiProblem, Form, Page, Pages, downloads
from service_kit.console.forms import Body, filled_in

pages = Pages()
MECHANISM = "groups"
SHARE = Decimal("0.5")
"""The share of epsilon for the numbers of records: half, or anything near it (measured: benchmarks/papers/results)."""
RECORDS_PER_GROUP = 50
"""So many records a group has, on average, with the parts that the form suggests."""
PARTS_MAX = 20
"""The most parts of a feature that the form suggests."""
CENTRE_SHARE = Decimal("0.4")
"""The share of the release's epsilon for centres that are drawn from the records."""
EPSILON_END = 1_000_000
"""The API takes no cap from here on."""
DERIVED = {
    **dict.fromkeys(("release.epsilon", "answers.epsilon", "budget.epsilon_per_row"), "groups.epsilon"),
    **dict.fromkeys(("release.mechanism", "answers.mechanism", "privacy_unit"), "find"),
    "release.cells.epsilon": "groups.centre_share",
}
"""The inputs of what follows from them, by the path in the body."""
_PLACES = Decimal("1e-6")


def is_chosen(form: Form) -> bool:
    """Whether the form is of a study of groups: y has to be a column."""
    return form.get("find") == MECHANISM and (form.get("measurement.source") or "column") == "column"


def whole(form: Form) -> Decimal | None:
    """The epsilon of a record in all; None where it is not a number above 0, or larger than any cap."""
    try:
        epsilon = Decimal(form.get("groups.epsilon"))
    except InvalidOperation:
        return None
    return epsilon if epsilon.is_finite() and 0 < epsilon < EPSILON_END else None


def split(form: Form) -> tuple[str, str]:
    """Epsilon of the numbers of records and of an answer; faults are added to ``form.errors``."""
    epsilon, again = whole(form), form.integer("groups.again", needed=False) or 1
    share = _share(form, "groups.share", SHARE)
    if again < 1:
        form.wrong("groups.again", "Enter 1 or more")
    if epsilon is None:
        form.wrong("groups.epsilon", "Enter a number above 0, such as 1")
    if epsilon is None or again < 1 or share is None:
        return "", ""
    counts = epsilon * share
    each = ((epsilon - counts) / again).quantize(_PLACES, ROUND_FLOOR).normalize()
    return _plain(counts), _plain(each)


def body_of(form: Form, dataset: wire.DatasetView, columns: Sequence[int], *, is_priced: bool) -> Body:
    """Release and answers of a study of groups, whose features have these numbers.

    The range of answers is read with their step, ``is_priced``: until then it is any.
    """
    counts, each = split(form)
    answers: Body = {"mechanism": "laplace", "epsilon": each, "value_bound": 1.0}
    if is_priced:
        without = ("answers.epsilon", "answers.plays", "answers.centre", "answers.value_bound")
        answers = {"epsilon": each} | form.read(wire.LaplaceAnswers, without, within="answers") | answer_range(form)
    cells, number, epsilon = _cells(form, columns, counts)
    if (least := form.integer("release.min_count", needed=False)) is None:
        least = suggested_count(epsilon, number, dataset.rows_per_person or 1)
    release = {"mechanism": MECHANISM, "epsilon": counts, "cells": cells, "min_count": least}
    return {"release": release, "answers": answers, "privacy_unit": "row"}


def answer_range(form: Form) -> Body:
    """Middle and half-width of the expected outcomes; faults are added to ``form.errors``."""
    lower, upper = form.interval("outcomes.lower", "outcomes.upper", "the smallest one")
    if lower is None or upper is None or not lower < upper:
        return {"centre": 0.0, "value_bound": 1.0}
    return {"centre": _rounded((lower + upper) / 2), "value_bound": _rounded((upper - lower) / 2)}


def ends(answers: Mapping[str, Any]) -> Body:
    """The inputs of the range of private ``answers``: ``answer_range`` makes the same answers of them again."""
    centre, bound = answers["centre"], answers["value_bound"]
    return {"lower": _rounded(centre - bound), "upper": _rounded(centre + bound)}


def _rounded(number: float) -> float:
    """Without the error of a sum in doubles."""
    return float(f"{number:.12g}")


def _cells(form: Form, columns: Sequence[int], counts: str) -> tuple[Body, int, str]:
    """Where the groups come from, how many they are, and the epsilon of their numbers of records."""
    name, kind = "release.cells", form.get("release.cells.kind") or "grid"
    if kind == "private":
        number, share = form.integer(f"{name}.number") or 2, _share(form, "groups.centre_share", CENTRE_SHARE)
        whole_release = Decimal(counts or 0)
        centres = (whole_release * (share or 0)).quantize(_PLACES, ROUND_FLOOR)
        return {"kind": kind, "number": number, "epsilon": _plain(centres)}, number, _plain(whole_release - centres)
    if kind == "centres":
        centres_typed = _centres(form)
        return {"kind": kind, "centres": centres_typed}, len(centres_typed), counts
    parts = {i: form.integer(f"{name}.parts.{i}") for i in columns}
    return {"kind": kind, "parts": parts}, prod(part or 1 for part in parts.values()), counts


def _plain(amount: Decimal) -> str:
    return format(amount.normalize(), "f")


def _share(form: Form, name: str, default: Decimal) -> Decimal | None:
    """A share between 0 and 1; a fault is added to ``form.errors``."""
    try:
        share = Decimal(form.get(name) or default)
    except InvalidOperation:
        share = Decimal(0)
    if share.is_finite() and 0 < share < 1:
        return share
    form.wrong(name, f"Enter a number between 0 and 1, such as {default}")
    return None


def cap(form: Form) -> Body:
    """The cap on a record, which is the guarantee of a study of groups; none for another study."""
    epsilon = whole(form) if is_chosen(form) else None
    return {} if epsilon is None else {"epsilon_per_row": _plain(epsilon)}


def suggested_count(epsilon: str, number: int, rows: int) -> int:
    """The least noisy number of records that an empty group reaches seldom: one of all groups in two studies.

    ``rows``: records of one person. Discrete Laplace noise of scale s = 2 rows / epsilon is t or more with a
    probability below e^(-t / s) / 2.
    """
    try:
        return max(1, ceil(2 * rows / float(epsilon) * log(max(number, 2))))
    except (ValueError, OverflowError, ZeroDivisionError):
        return 1  # epsilon has an error already


def _centres(form: Form) -> list[list[float]]:
    typed, centres = form.get("release.cells.centres").replace("\t", ";"), list[list[float]]()
    signs = DecimalSigns(re.split("[;\n]", typed))
    if (sign := signs.of_file(";")) is None:
        form.wrong("release.cells.centres", either(signs.unsure[0]))
        return []
    for number, line in enumerate(typed.splitlines(), start=1):
        if not line.strip():
            continue
        centre = [number_of(cell, sign) for cell in line.split(";")]
        if not all(value is not None and isfinite(value) for value in centre):
            form.wrong(
                "release.cells.centres", f"Line {number}: a number of each feature, with semicolons between them"
            )
            return []
        centres.append([value for value in centre if value is not None])
    return centres


def suggest(form: Form, dataset_rows: int) -> None:
    if not (chosen := form.items("features", "column")):
        return
    each = max(2, min(PARTS_MAX, int((dataset_rows / RECORDS_PER_GROUP) ** (1 / len(chosen)))))
    number = max(2, min(wire.CENTRES_MAX, dataset_rows // (4 * RECORDS_PER_GROUP)))
    cells = {"kind": "grid", "number": number, "parts": dict.fromkeys(chosen, each)}
    suggested = Form.blank(groups={"epsilon": 1, "again": 1}, release={"cells": cells})
    form.values.update(suggested.values | form.values)


def epsilon_of(spec: Mapping[str, Any]) -> Decimal:
    """Epsilon of a record of a study of groups, in all: its cap, or else the release and one answer."""
    least, cap = (
        Decimal(spec["release"]["epsilon"]) + Decimal(spec["answers"]["epsilon"]),
        spec["budget"]["epsilon_per_row"],
    )
    return least if cap is None else max(Decimal(cap), least)


def shown(spec: Mapping[str, Any], columns: Sequence[int]) -> Body:
    """What the form shows of a study of groups in place of its spec, features by number; none of another study."""
    if spec["release"]["mechanism"] != MECHANISM:
        return {}
    epsilon, counts, cells = epsilon_of(spec), Decimal(spec["release"]["epsilon"]), dict(spec["release"]["cells"])
    again = max(1, int((epsilon - counts) / Decimal(spec["answers"]["epsilon"])))
    groups: Body = {"epsilon": _plain(epsilon), "again": again, "share": _plain((counts / epsilon).quantize(_PLACES))}
    if cells["kind"] == "private":
        groups["centre_share"] = _plain((Decimal(cells["epsilon"]) / counts).quantize(_PLACES))
    elif cells["kind"] == "grid":
        cells["parts"] = dict(zip(columns, cells["parts"], strict=True))
    else:
        order = sorted(range(len(columns)), key=columns.__getitem__)
        lines = (";".join(filled_in(float(centre[j])) for j in order) for centre in cells["centres"])
        cells["centres"] = "\n".join(lines)
    release = {"epsilon": spec["release"]["epsilon"], "cells": cells, "min_count": spec["release"]["min_count"]}
    return {"find": MECHANISM, "groups": groups, "release": release}


@pages.get("/studies/{study_id}/groups", roles=("owner",))
async def listed(page: Page) -> Response:
    """The groups of a study: where each is, its noisy number of records, and what its answers cost."""
    where = f"/studies/{page.path['study_id']}"
    if page.query.get("as"):
        return await downloads.listing(page, f"/v1{where}/groups", "groups", "groups", wire.GroupEntry)
    study = await page.api.read(f"/v1{where}", wire.StudyOwnerView)
    listing, best = wire.GroupPage(groups=[], next_page_token=None), None
    if study.report is not None and study.report.counts:
        token = page.query.get("page_token")
        listing = await page.api.read(f"/v1{where}/groups", wire.GroupPage, page_token=token)
        if listing.groups and listing.groups[0].y is not None:
            first = await page.api.read(f"/v1{where}/groups", wire.GroupPage, page_size=1_000)
            best = next((group for group in first.groups if group.recommended), None)
    trail = [("Studies", "/studies"), (study.spec.name, where)]
    return page.show("groups.html", title="Groups", trail=trail, listing=listing, study=study, best=best)


@pages.post("/studies/{study_id}:answer_all", roles=("owner",))
async def answer_all(page: Page, form: Form) -> Response:
    where = f"/studies/{page.path['study_id']}"
    try:
        await page.api.post(f"/v1{where}:answer_all", key=form.key)
    except ApiProblem as problem:
        return page.go(f"{where}/groups", f"No group was answered: {problem.in_words}", mood="bad")
    return page.go(f"{where}/groups", "Every group is answered. Each grant of the study reads the same answers.")


@pages.post("/studies/{study_id}:open_group", roles=("owner",))
async def open_group(page: Page, form: Form) -> Response:
    """The group behind a candidate, with its records: an act in the log."""
    where = f"/studies/{page.path['study_id']}"
    row = form.integer("row")
    if row is None:
        return page.go(where, "Enter the number of a candidate, such as 12, without separators.", mood="bad")
    try:
        group = await page.api.ask(f"/v1{where}:open_group", wire.GroupView, {"row": row})
    except ApiProblem as problem:
        return page.go(where, f"No group was opened: {problem.in_words}", mood="bad")
    study = await page.api.read(f"/v1{where}", wire.StudyOwnerView)
    trail = [("Studies", "/studies"), (study.spec.name, where)]
    bounds = (group.lower, group.upper) if group.lower is not None and group.upper is not None else ()
    columns = [feature.column for feature in study.spec.features]
    where_it_is = list(zip(columns, group.centre, *bounds, strict=True))
    return page.show("group.html", title=f"Group {row}", trail=trail, group=group, study=study, where_it_is=where_it_is)
