"""The documentation site as `make docs` builds it."""

import json
import os
import re
import tomllib
from pathlib import Path

import pytest

from curator_service.privacy.guarantees import GAPS
from docs.website import build, errors
from docs.website.tables import plain
from tests import processes
from tests.docs.site_checks import faults
from tests.docs.snippets import DOCUMENTS

ROOT = Path(__file__).parents[2]
PAGE_WIDTH = 688
"""Pixels of a page's text on a wide screen."""


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    done = processes.run("docs.website", str(folder), "--quick", env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_no_link_is_broken_and_nothing_comes_from_outside(out):
    assert faults(out / "site") == []


def test_the_check_finds_faults(tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id=there></p><a href="#there"></a><a href="#gone"></a><a href="b.html"></a><a href="https://example.org"></a>'
        '<img src="no.png"><script src="https://example.org/x.js"></script><link rel=stylesheet href="//example.org/x">'
    )
    (tmp_path / "x.css").write_text("@import url('https://example.org/font');")
    assert [fault.split()[-1] for fault in faults(tmp_path)] == [
        "exist",
        "outside",
        "outside",
        "anchor",
        "exist",
        "outside",
    ]


def entries(nav):
    """The pages of a navigation, in their order."""
    for item in nav:
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from entries(item.values())
        else:
            yield from entries(item)


def test_every_page_has_one_place_in_the_navigation(out):
    source = out / "site-source"
    listed = list(entries(tomllib.loads((source / "zensical.toml").read_text())["project"]["nav"]))
    written = sorted(path.relative_to(source / "pages").as_posix() for path in (source / "pages").rglob("*.md"))
    for_users = [page for page in written if not page.startswith("developers/")]
    assert sorted(listed) == sorted([*for_users, "developers/index.md"])


def test_the_site_has_no_data_but_the_contracts_and_the_search(out):
    data = {path.relative_to(out / "site").as_posix() for path in (out / "site").rglob("*.json")}
    assert data == {"search.json", "reference/curator.openapi.json", "reference/modeler.openapi.json"}


def test_the_search_has_every_page_for_users_and_no_other(out):
    index = json.loads((out / "site" / "search.json").read_text())
    searched = {item["location"].partition("#")[0] for item in index["items"]}
    pages = {path.relative_to(out / "site").as_posix() for path in (out / "site").rglob("*.html")} - {"404.html"}
    for_others = {page for page in pages if page.startswith("developers/")} | {"changelog.html"}
    assert len(for_others) > 5
    assert searched == pages - for_others


@pytest.fixture(params=["curator", "modeler"])
def contract(request, out):
    """The contract of a service in the site, and the pages of its reference with the contents of each."""
    folder = out / "site-source" / "pages" / "reference"
    document = json.loads((out / "site" / "reference" / f"{request.param}.openapi.json").read_text())
    pages = [folder / f"{request.param}.md", *sorted((folder / request.param).glob("*.md"))]
    return document, {page: page.read_text() for page in pages}


def operations_of(document):
    return [(path, method, each) for path, methods in document["paths"].items() for method, each in methods.items()]


def test_the_reference_has_every_operation_once_below_its_sentence(contract):
    document, pages = contract
    operations = operations_of(document)
    assert len(operations) > 35
    whole = "\n".join(pages.values())
    for path, method, operation in operations:
        heading = f"## {plain(operation['summary'])} {{ #{operation['operationId']} }}\n\n`{method.upper()} {path}`\n"
        assert whole.count(heading) == 1, heading
    assert "| `X-Request-ID` | " in whole


def test_each_type_stands_once_on_the_page_of_the_operation_that_uses_it_first(contract):
    document, pages = contract
    first, *others = pages
    for name, schema in document["components"]["schemas"].items():
        (page,) = [page for page, text in pages.items() if f"# {plain(name)} {{ #{name} }}\n" in text]
        section = re.split(r"\n##+ ", pages[page].partition(f"# {plain(name)} {{ #{name} }}\n")[2])[0]
        assert [field for field in schema.get("properties", {}) if f"| `{field}` |" not in section] == []
        used = [other for other in others if f"[{plain(name)}](#{name})" in pages[other]]
        assert page == first or page in used, f"{name} is not used on the page that explains it"


def test_each_success_has_a_sentence_of_its_own(contract):
    operations = operations_of(contract[0])
    sentences = []
    for _, _, operation in operations:
        success = min(status for status in operation["responses"] if status.startswith("2"))
        sentences.append(operation["responses"][success]["description"])
    assert [text for text in sentences if text.startswith("Successful")] == []
    assert [text for text in sentences if sentences.count(text) > 1] == []


def test_no_default_is_empty_and_each_whole_number_has_bounds(contract):
    document, pages = contract
    assert "Default: ." not in json.dumps(document)
    rows = [line for line in "\n".join(pages.values()).splitlines() if line.startswith("| `")]
    free = {row for row in rows if any(re.search(r"^whole number(?!, )", cell) for cell in row.split(" | ")[1:3])}
    assert len(rows) > 300
    assert free == set()


def test_every_error_code_is_explained_once(out):
    written = (ROOT / "docs" / "howto" / "troubleshooting.md").read_text()
    assert set(re.findall(r"^### `(\w+)`$", written, re.MULTILINE)) <= errors.known_codes().keys()
    built = (out / "site-source" / "pages" / "howto" / "troubleshooting.md").read_text()
    explained = re.findall(r"^### `(\w+)`\n\n\*\d{3}: .+\*\n\n\S+ \S+ ", built, re.MULTILINE)
    assert sorted(explained) == sorted(errors.known_codes())


def test_the_site_has_the_icon_and_the_colours_of_the_consoles_in_the_scheme_of_the_system(out):
    site, static = out / "site", ROOT / "shared/service_kit/console/static"
    assert (site / "assets/icon.svg").read_bytes() == (static / "icon.svg").read_bytes()
    page = (site / "index.html").read_text()
    assert len(re.findall(r'<link rel="icon" href="\./assets/icon\.svg">|<img src="\./assets/icon\.svg"', page)) >= 2
    schemes = re.findall(r'data-md-color-media="\(([^"]+)\)" data-md-color-scheme="(\w+)"', page)
    assert schemes == [
        ("prefers-color-scheme", "default"),  # the page's own script takes one of the two others by the system
        ("prefers-color-scheme: light", "default"),
        ("prefers-color-scheme: dark", "slate"),
    ]
    own = set(re.findall(r"#[0-9a-f]{6}", (site / "assets/site.css").read_text()))
    assert own
    assert own - set(re.findall(r"#[0-9a-f]{6}", (static / "console.css").read_text())) == set()


def test_the_page_of_gaps_has_every_gap_of_the_guarantees(out):
    page = (out / "site-source" / "pages" / "reference" / "not-protected.md").read_text(encoding="utf-8")
    assert [gap.heading for gap in GAPS if f"- **{gap.heading}**: {gap.whole}\n" not in page] == []
    assert len(GAPS) > 10


def test_text_of_figures_is_large_enough_to_read_and_seen_in_the_dark():
    """At the width of a page."""
    figures = sorted((ROOT / "docs").rglob("*.svg"))
    assert len(figures) >= 2
    for figure in figures:
        drawing = figure.read_text(encoding="utf-8")
        width = float(re.search(r'viewBox="0 0 ([0-9.]+) ', drawing)[1])
        sizes = [float(size) for size in re.findall(r'font(?:-size)?(?:="|: ?)([0-9.]+)', drawing)]
        assert sizes
        assert min(sizes) * min(1, PAGE_WIDTH / width) >= 11, figure.name
        assert "@media (prefers-color-scheme: dark)" in drawing, figure.name


def test_contents_of_every_page_have_no_entry_twice(out):
    twice = {}
    for path in (out / "site-source" / "pages").rglob("*.md"):
        prose = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        headings = re.findall(r"^##+ (.+?)(?: \{ #.*)?$", prose, re.MULTILINE)
        twice[path.name] = {heading for heading in headings if headings.count(heading) > 1}
    del twice["changelog.md"]  # each version has the same
    assert {name: headings for name, headings in twice.items() if headings} == {}


def test_a_rare_term_is_explained_where_it_stands(out):
    page = (out / "site" / "protocol.html").read_text()
    assert re.search('<abbr title="What the curator|<abbr title="The curator\'s signature under a reply', page)


def test_documents_that_the_readmes_and_the_code_name_exist():
    folders = ("shared", "curator_service", "modeler_service", "docs", "benchmarks")
    texts = [path for folder in folders for kind in ("*.py", "*.html") for path in (ROOT / folder).rglob(kind)]
    named = set()
    for path in (*ROOT.glob("*.md"), ROOT / "Makefile", *texts):
        named |= set(re.findall(r"(?<![\w/])docs/[\w/.-]+\.(?:md|py|png)", path.read_text()))
    assert len(named) > 12
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


REPOSITORY = r"https://github\.com/blindopt/blindopt/(?:blob|tree)/main/([^)#\s\"]+)(?:#([\w-]+))?"


def test_pages_link_to_files_and_headings_of_the_repository_that_exist():
    named = {link for name in DOCUMENTS for link in re.findall(REPOSITORY, (ROOT / name).read_text(encoding="utf-8"))}
    assert len(named) > 4
    assert {(path, anchor) for path, anchor in named if not _exists(path, anchor)} == set()
    assert not _exists("benchmarks/papers/results/README.md", "a-heading-that-is-not-there")  # the control


def _exists(path, anchor):
    """Whether the repository has this file and, in it, a heading with this anchor."""
    if not anchor or not (ROOT / path).is_file():
        return not anchor and (ROOT / path).exists()
    headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    return anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_relative_links_lead_to_files_of_the_repository_and_the_site_has_pages_of_its_own_for_some():
    """A reader of the folder has no site: a link to a page that only the site has would be dead."""
    pages = [ROOT / name for name in (*DOCUMENTS, "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
    assert {path.name: links for path in pages if (links := _dead(path, path.read_text(encoding="utf-8")))} == {}
    assert _dead(ROOT / "docs" / "faq.md", "[a](limits.md#b) [c](reference/settings.md)") == ["reference/settings.md"]
    assert [source for source in build.MADE_FROM if not (ROOT / source).exists()] == []
    link = "[Settings](../../shared/service_kit/settings.py)"
    assert build.in_site(link, "docs/howto") == "[Settings](../reference/settings.md)"


def _dead(page, text):
    prose = re.sub(r"^```.*?^```$|`[^`\n]+`", "", text, flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", prose)
    return [link for link in links if not (page.parent / link).exists()]
