"""A newcomer finds who it is for, what it promises and when not to use it, and each promise has its tests."""

import re

from tests.docs.snippets import ROOT
from tests.docs.test_threat_model import named, there

README = (ROOT / "README.md").read_text(encoding="utf-8")
ANSWERS = {
    "what-is-blindopt": ("When not to use it", "anonymise", "contract", "publish data", "rare person", "20 features"),
    "data-protection": ("GDPR", "pseudonymi", "anonym", "controller", "processor", "purpose", "consent", "erasure",
                        "legal advice", "report"),
    "privacy-in-two-pages": ("To whom, against whom", "Epsilon as a belief", "What is not protected",
                             "What a vendor learns", "Caps", "Two logs"),
    "install": ("blindopt-env/bin/pip", "memory", "seconds"),
    "quickstart": ("make demo", "minute"),
    "how-good": ("random", "without privacy", "Where it does not help", "privacy-cost.svg"),
    "how-many-queries": ("50", "cap"),
    "faq": ("anonymous", "Excel", "password", "categorical"),
    "two-ideas": ("Bayesian optimization", "Differential privacy"),
}  # fmt: skip
"""What each page has to answer, by words that stand in it."""


def test_each_page_answers_what_it_is_for():
    pages = {page: (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").lower() for page in ANSWERS}
    assert {
        (page, word) for page, words in ANSWERS.items() for word in words if word.lower() not in pages[page]
    } == set()
    start = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    words = ("Bayesian optimization", "differential", "GDPR", "anonymisation", "when not to use it", "owner", "vendor")
    assert [word for word in words if word.lower() not in start.lower()] == []


def test_each_promise_of_the_readme_names_its_tests():
    promises = re.findall(r"^\d\. \*\*(.+?)\.\*\*", README, re.MULTILINE)
    assert len(promises) == 5
    page = (ROOT / "docs" / "developers" / "testing.md").read_text(encoding="utf-8")
    rows = {promise: re.findall(rf"^\| {promise} \|(.*)\|$", page, re.MULTILINE) for promise in promises}
    assert {promise: len(lines) for promise, lines in rows.items()} == dict.fromkeys(promises, 1)
    assert [promise for promise, (row,) in rows.items() if not named(row)] == []
    assert named(page) - there() == set()


def confirming(text: str) -> list[str]:
    """The lines of code in a text that release what a preview found to be of high risk."""
    code = re.findall(r"^```(?:bash|python|json)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [
        line for block in code for line in block.splitlines() if "confirm_high_risk" in line or "confirm-high" in line
    ]


def test_no_page_and_no_notebook_releases_what_has_a_high_risk():
    pages = [path for folder in ("docs/*.md", "docs/howto/*.md") for path in sorted(ROOT.glob(folder))]
    assert {
        path.name: confirming(path.read_text(encoding="utf-8")) for path in pages if confirming(path.read_text())
    } == {}
    notebooks = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    assert len(notebooks) > 4
    assert [path.name for path in notebooks if "confirm_high_risk" in path.read_text(encoding="utf-8")] == []
    assert confirming("```python\nstudy = draft.release(confirm_high_risk=True)\n```") != []
