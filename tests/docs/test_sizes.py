"""The documents stay small: short lines, few of them in all files together, no data, and ten lines for a version."""

import re

from tests.docs.snippets import DOCUMENTS, ROOT

LINES_MAX, PLOTS_MAX, PLOT_BYTES_MAX, HIGHLIGHTS_MAX = 9_500, 4, 50_000, 10
PROSE_MAX = 130
PAGES = (*DOCUMENTS, "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


def long_lines(page):
    """The lines of prose that are too long: code, tables and pictures may be longer."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    return [line for line in prose.splitlines() if len(line) > PROSE_MAX and not line.startswith(("|", "!["))]


def test_lines_of_prose_are_short():
    faults = {name: long_lines((ROOT / name).read_text(encoding="utf-8")) for name in PAGES}
    assert {name: lines for name, lines in faults.items() if lines} == {}
    assert long_lines("| a |\n" + "word " * 30 + "\n```text\n" + "x" * 200 + "\n```\n") == ["word " * 30]  # the control


def test_the_folder_of_documents_is_small():
    files = [path for path in (ROOT / "docs").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert len(files) > 60
    assert sum(path.read_bytes().count(b"\n") for path in files) <= LINES_MAX
    plots = [path for path in files if path.suffix == ".svg"]
    assert len(plots) <= PLOTS_MAX
    assert [path.name for path in plots if path.stat().st_size >= PLOT_BYTES_MAX] == []
    assert [path.name for path in files if path.suffix == ".json"] == []


def test_a_version_has_ten_highlights_then_what_breaks_and_how_to_upgrade():
    versions = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert len(versions) >= 3
    highlights = [re.findall(r"^- ", version.partition("**What breaks**")[0], re.MULTILINE) for version in versions]
    assert [len(each) for each in highlights if not 0 < len(each) <= HIGHLIGHTS_MAX] == []
    assert re.search(r"\*\*What breaks\*\*\n.*\*\*How to upgrade\*\*\n\n1\. Back up", versions[0], re.DOTALL)
