"""What people do on the pages of both consoles, with scripts or without."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.browser.conftest import Visitor

Fields = Mapping[str, str | bool]
"""A field's label, and what is typed; True ticks a box or takes a choice."""


@dataclass(frozen=True)
class Access:
    """What an owner hands over to a modeler."""

    address: str
    study: str
    token: str
    file: bytes
    """grant.json"""


def fill(person: Visitor, fields: Fields) -> None:
    """Type what a form asks for."""
    for label, value in fields.items():
        field = person.page.get_by_label(re.compile(rf"^{re.escape(label)}( \(required\))?$"))
        if value is True:
            field.check()
        elif field.evaluate("e => e.tagName") == "SELECT":
            field.select_option(str(value))
        else:
            field.fill(str(value))


def last(person: Visitor, kind: str) -> str:
    """The id of what the page is about, from its address."""
    match = re.search(rf"{kind}_[0-9a-f]{{16}}", person.page.url)
    assert match is not None, person.page.url
    return match[0]


def upload(person: Visitor, name: str, csv: bytes) -> str:
    """Register a file; the dataset's id."""
    person.open("/console/datasets/new")
    person.page.get_by_label("File").set_input_files([{"name": f"{name}.csv", "mimeType": "text/csv", "buffer": csv}])
    person.press("Check and store")
    again = person.page.get_by_label("Register this file again")
    if again.count():
        again.check()
        person.press("Store these columns")
    return last(person, "ds")


def pending(person: Visitor, csv: bytes) -> str:
    """Upload a file whose columns need a decision; the upload's id."""
    person.open("/console/datasets/new")
    person.page.get_by_label("File").set_input_files([{"name": "text.csv", "mimeType": "text/csv", "buffer": csv}])
    person.press("Check and store")
    return last(person, "upl")


def draft(person: Visitor, dataset: str, steps: Mapping[str, Fields], look: Callable[[str], None]) -> str:
    """Make a draft step by step, each looked at once it is filled in; the study's id."""
    person.open(f"/console/studies/new?dataset={dataset}")
    for name, fields in steps.items():
        person.page.locator("[aria-current=step]", has_text=name).wait_for()
        if name == "Answers":
            person.page.get_by_text("More: ").click()
        fill(person, fields)
        look(name)
        person.press("Next")
    look("Review")
    person.press("Make the draft")
    return last(person, "std")


def release(person: Visitor) -> None:
    """Release the draft whose page is open, once it is checked."""
    person.again_until(person.page.url, "Check again")
    person.page.get_by_label("I have read what is promised and what is not").check()
    for more in ("The preview found a high risk, and I", "The answers or the forecast are no better than chance"):
        if (tick := person.page.get_by_label(more)).is_visible():
            tick.check()
    person.press("Release")
    person.page.get_by_text("Released: the study is open.").wait_for()


def grant(person: Visitor, study: str, name: str) -> Access:
    """Make a grant; what its page shows, once."""
    person.open(f"/console/studies/{study}/grants")
    fill(person, {"For whom": name})
    person.press("Make the grant")
    with person.page.expect_download() as downloading:
        person.page.get_by_role("link", name="Download grant.json").click()
    assert downloading.value.suggested_filename == "grant.json"
    file = downloading.value.path().read_bytes()
    assert file.decode() == person.page.get_by_label("The grant as text (it holds the secret token)").input_value()
    shown = json.loads(file)
    return Access(shown["curator_url"], shown["study_id"], shown["token"], file)


def start(
    person: Visitor, access: Access, fields: Fields, look: Callable[[], None] = lambda: None, *, pasted: bool = False
) -> str:
    """Start a run with the file that the owner handed over, or its text; its id."""
    if pasted:
        person.page.get_by_label("Or the grant as text").fill(access.file.decode())
    else:
        file = {"name": "grant.json", "mimeType": "application/json", "buffer": access.file}
        person.page.get_by_label("Grant file").set_input_files([file])
    fill(person, fields)
    look()
    person.press("Start the run")
    return last(person, "run")


def shown(person: Visitor) -> dict[str, float]:
    """What the inbox shows of the record that is to be measured."""
    facts = person.page.locator("main .measuring dl.facts > div").all()
    facts_shown = {fact.locator("dt").inner_text(): fact.locator("dd").inner_text() for fact in facts}
    return {k: float(v.replace(",", "")) for k, v in facts_shown.items() if re.fullmatch(r"-?[\d,.]+", v)}
