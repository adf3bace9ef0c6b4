"""What the tutorials name in italics is in the sources of their console: tests/browser walks them, step by step."""

from tests.browser.tutorial_steps import Step, steps
from tests.docs.snippets import ROOT


def sources(service):
    """What the pages of a console are made from."""
    folders = [ROOT / f"{service}_service" / "console", ROOT / "shared" / "service_kit" / "console"]
    folders += [ROOT / f"{service}_service" / "routes", ROOT / "curator_service" / "releases"]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".html")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def made_up(step: Step, text: str) -> list[str]:
    """The names of a step that are not in a text; what stands before or after a column's name is looked for alone."""
    looked_for = {
        label: label.replace("long: ", "").replace("lat: ", "").partition(" of l")[0] for label in step.labels
    }
    return [label for label, part in looked_for.items() if part not in text]


def test_what_the_tutorials_name_is_on_a_page_of_their_console():
    for document, service in (("owner.md", "curator"), ("vendor.md", "modeler")):
        source = sources(service)
        named = [(step.title, made_up(step, source)) for step in steps(document).values()]
        assert len(named) > 3
        assert [pair for pair in named if pair[1]] == [], document
    assert made_up(Step("control", "*No such button* and *Next*"), sources("curator")) == ["No such button"]
