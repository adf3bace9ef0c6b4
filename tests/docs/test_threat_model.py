"""Every row of the threat model names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "threat-model.md"


def named(text):
    """The tests that a text names."""
    return set(re.findall(r"`(test_\w+)`", text))


def there():
    """Every test of the repository, by name."""
    tests = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for text in tests for name in re.findall(r"^def (test_\w+)\(", text, re.MULTILINE)}


def test_every_test_that_the_threat_model_names_exists():
    assert named(PAGE.read_text()) - there() == set()
    assert named("shown by `test_that_nobody_wrote`") - there() == {"test_that_nobody_wrote"}  # the control


def test_every_row_names_a_test_or_says_that_nothing_stands_against_it():
    rows = [
        line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| who can")
    ]
    assert len(rows) > 20
    assert [row for row in rows if not named(row) and "| nothing" not in row] == []
