"""Studies of groups: their part of the forms of a new study, and the page of a group.

The form has one epsilon, for everything about a record. A share of it is for the numbers of records by group, and the
rest for so many answers about one group.
"""

from collections.abc import Mapping, Sequence
from decimal import ROUND_FLOOR, Decimal, InvalidOperation
from math import ceil, log, prod
from typing import Any

from starlette.responses import Response

from blindopt import wire
from blindopt.formats.numbers import readings
from service_kit.console import ApiProblem, Form, Page, Pages, downloads

Body = dict[str, Any]
pages = Pages()
MECHANISM = "groups"
SHARE = Decimal("0.5")
"""The share of epsilon for the numbers of records: half, or anything near it (docs/results.md, "Groups of records")."""
RECORDS_PER_GROUP = 50
"""So many records a group has, on average, with the parts that the form suggests."""
PARTS_MAX = 20
"""The most parts of a feature that the form suggests."""
CENTRE_SHARE = Decimal("0.4")
"""The share of the release's epsilon for centres that are drawn from the records."""
EPSILON_END = 1_000_000
"""The API takes no cap from here on."""
_PLACES = Decimal("1e-6")


def is_chosen(form: Form) -> bool:
    """Whether the form is of a study of groups: y has to be a column."""
    return form.get("find") == MECHANISM and (form.get("source") or "column") == "column"


def whole(form: Form) -> Decimal | None:
    """The epsilon of a record in all; None where it is not a number above 0, or larger than any cap."""
    try:
        epsilon = Decimal(form.get("groups_epsilon"))
    except InvalidOperation:
        return None
    return epsilon if epsilon.is_finite() and 0 < epsilon < EPSILON_END else None


def split(form: Form) -> tuple[str, str]:
    """Epsilon of the numbers of records and of an answer; faults are added to ``form.errors``."""
    epsilon, again = whole(form), form.integer("groups_again", needed=False) or 1
    share = _share(form, "groups_share", SHARE)
    if again < 1:
        form.wrong("groups_again", "Enter 1 or more")
    if epsilon is None:
        form.wrong("groups_epsilon", "Enter a number above 0, such as 1")
    if epsilon is None or again < 1 or share is None:
        return "", ""
    counts = epsilon * share
    each = ((epsilon - counts) / again).quantize(_PLACES, ROUND_FLOOR).normalize()
    return format(counts.normalize(), "f"), format(each, "f")


def release(form: Form, dataset: Mapping[str, Any]) -> Body:
    """The release of a study of groups, with what follows from it: the price of an answer, whatever its range."""
    counts, each = split(form)
    columns = [i for i in range(len(dataset["columns"])) if form.has(f"use_{i}")]
    kind = kind_of(form)
    if kind == "private":
        number = form.integer("groups_number") or 2
        cells: Body = {"kind": kind, "number": number, "epsilon": of_centres(form, counts)}
    elif kind == "centres":
        centres = _centres(form)
        cells = {"kind": kind, "centres": centres}
        number = len(centres)
    else:
        parts = [form.integer(f"parts_{i}") for i in columns]
        cells, number = {"kind": kind, "parts": parts}, prod(part or 1 for part in parts)
    if (least := form.integer("release_min_count", needed=False)) is None:
        of_numbers = counts if kind != "private" else format(Decimal(counts or 0) - Decimal(cells["epsilon"] or 0), "f")
        least = suggested_count(of_numbers, number, dataset["rows_per_person"] if dataset["person_column"] else 1)
    return {
        "release": {"mechanism": MECHANISM, "epsilon": counts, "cells": cells, "min_count": least},
        "answers": {"mechanism": "laplace", "epsilon": each, "value_bound": 1.0},
        "budget": cap(form),
    }


def kind_of(form: Form) -> str:
    """Where the groups come from: the kind of their cells."""
    return form.get("groups_kind") or "grid"


def of_centres(form: Form, whole_release: str) -> str:
    """Epsilon of private centres: a share of the release's; faults are added to ``form.errors``."""
    if (share := _share(form, "groups_centre_share", CENTRE_SHARE)) is None:
        return ""
    return format((Decimal(whole_release or 0) * share).quantize(_PLACES, ROUND_FLOOR).normalize(), "f")


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
    return {} if epsilon is None else {"epsilon_per_row": format(epsilon.normalize(), "f")}


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
    centres: list[list[float]] = []
    for number, line in enumerate(form.get("groups_centres").splitlines(), start=1):
        if not line.strip():
            continue
        meanings = [readings(text.strip()) for text in line.replace("\t", ";").split(";")]
        if not all(len(values) == 1 for values in meanings):
            form.wrong("groups_centres", f"Line {number}: a number of each feature, with semicolons between them")
            return []
        centres.append([values[0] for values in meanings])
    return centres


def answers(form: Form) -> Body:
    """The answers of a study of groups."""
    return {
        "mechanism": "laplace",
        "epsilon": split(form)[1],
        "value_bound": form.real("answers_value_bound"),
        "noise_bound": form.real("answers_noise_bound", needed=False) or 0.0,
        "centre": form.real("answers_centre", needed=False) or 0.0,
    }


def suggest(form: Form, dataset_rows: int, columns: int) -> None:
    """Fill in what the release step suggests for groups, from public values alone."""
    chosen = [i for i in range(columns) if form.has(f"use_{i}")]
    if not chosen:
        return
    each = max(2, min(PARTS_MAX, int((dataset_rows / RECORDS_PER_GROUP) ** (1 / len(chosen)))))
    number = max(2, min(wire.CENTRES_MAX, dataset_rows // (4 * RECORDS_PER_GROUP)))
    values = [("groups_epsilon", 1), ("groups_again", 1), ("groups_kind", "grid"), ("groups_number", number)]
    for name, value in [*values, *((f"parts_{i}", each) for i in chosen)]:
        form.values.setdefault(name, [str(value)])


def epsilon_of(spec: Mapping[str, Any]) -> Decimal:
    """Epsilon of a record of a study of groups, in all: its cap, or else the release and one answer."""
    least, cap = (
        Decimal(spec["release"]["epsilon"]) + Decimal(spec["answers"]["epsilon"]),
        spec["budget"]["epsilon_per_row"],
    )
    return least if cap is None else max(Decimal(cap), least)


def like(spec: Mapping[str, Any], columns: Sequence[int]) -> dict[str, object]:
    """The values of a form that makes the same study of groups again; none for another study."""
    if spec["release"]["mechanism"] != MECHANISM:
        return {}
    made, epsilon = spec["release"], epsilon_of(spec)
    counts, each = Decimal(made["epsilon"]), Decimal(spec["answers"]["epsilon"])
    values: dict[str, object] = {
        "find": MECHANISM,
        "release": None,
        "groups_epsilon": format(epsilon.normalize(), "f"),
        "groups_again": max(1, int((epsilon - counts) / each)),
        "groups_share": format((counts / epsilon).quantize(_PLACES).normalize(), "f"),
        "release_min_count": made["min_count"],
    }
    values["groups_kind"] = kind = made["cells"]["kind"]
    if kind == "private":
        share = Decimal(made["cells"]["epsilon"]) / counts
        shown = format(share.quantize(_PLACES).normalize(), "f")
        return values | {"groups_number": made["cells"]["number"], "groups_centre_share": shown}
    if kind == "grid":
        return values | {f"parts_{i}": part for i, part in zip(columns, made["cells"]["parts"], strict=True)}
    lines = [";".join(format(value, ".15g") for value in centre) for centre in made["cells"]["centres"]]
    return values | {"groups_centres": "\n".join(lines)}


def field_of(where: str, form: Form, columns: Sequence[int]) -> str | None:
    """The form's field for a field of the API, where groups have fields of their own; else None."""
    parts = where.split(".")
    last = parts[-1]
    if "cells" in parts:
        if (kind := kind_of(form)) == "private":
            return "groups_number" if last == "number" else "groups_centre_share"
        return "groups_centres" if kind == "centres" else f"parts_{columns[0]}" if columns else None
    if (where.startswith(("release.", "answers.")) and last == "epsilon") or last == "epsilon_per_row":
        return "groups_epsilon"
    return "find" if where in ("release.mechanism", "answers.mechanism", "privacy_unit") else None


@pages.get("/studies/{study_id}/groups", roles=("owner",))
async def listed(page: Page) -> Response:
    """The groups of a study: where each is, its noisy number of records, and what its answers cost."""
    where = f"/studies/{page.path['study_id']}"
    if page.query.get("as"):
        return await downloads.listing(page, f"/v1{where}/groups", "groups", "groups", wire.GroupEntry)
    study = await page.api.get(f"/v1{where}")
    listing: dict[str, Any] = {"groups": [], "next_page_token": None}
    if study["report"] is not None and study["report"]["counts"]:
        listing = await page.api.get(f"/v1{where}/groups", page_token=page.query.get("page_token"))
    trail = [("Studies", "/studies"), (study["spec"]["name"], where)]
    return page.show("groups.html", title="Groups", trail=trail, listing=listing, study=study)


@pages.post("/studies/{study_id}:open_group", roles=("owner",))
async def open_group(page: Page, form: Form) -> Response:
    """The group behind a candidate, with its records: an act in the log."""
    where = f"/studies/{page.path['study_id']}"
    row = form.integer("row")
    if row is None:
        return page.go(where, "Enter the number of a candidate, such as 12, without separators.", mood="bad")
    try:
        group = await page.api.post(f"/v1{where}:open_group", {"row": row})
    except ApiProblem as problem:
        return page.go(where, f"No group was opened: {problem.in_words}", mood="bad")
    study = await page.api.get(f"/v1{where}")
    trail = [("Studies", "/studies"), (study["spec"]["name"], where)]
    bounds = (group["lower"], group["upper"]) if group["lower"] is not None else ()
    columns = [feature["column"] for feature in study["spec"]["features"]]
    where_it_is = list(zip(columns, group["centre"], *bounds, strict=True))
    return page.show("group.html", title=f"Group {row}", trail=trail, group=group, study=study, where_it_is=where_it_is)
