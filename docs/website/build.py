"""Assemble all pages in one folder and run the site generator over them."""

import posixpath
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from demo.parties import start_services
from docs.website import command_line, errors, formulas, notebooks, operating, python_api, rest, tour

ROOT = Path(__file__).parents[2]
COPIED = (".md", ".svg", ".png", ".py")
MADE_FROM = {
    "CHANGELOG.md": "changelog.md",
    "shared/blindopt/__init__.py": "reference/python.md",
    "shared/blindopt/wire/base.py": "reference/curator.md#Problem",
    "shared/blindopt/wire/run.py": "reference/modeler/runs.md#RunCreate",
    "shared/service_kit/settings.py": "reference/settings.md",
    "shared/service_kit/web/metrics.py": "reference/metrics.md",
    "curator_service/__main__.py": "reference/command-line.md",
    "curator_service/privacy/guarantees.py": "reference/not-protected.md",
}
"""Files outside docs/ that pages link to, and the page that the site has in place of each."""


def build(target: Path, *, quick: bool = False) -> Path:
    """Build the site into ``target``/site and return that folder. A broken link or anchor ends the build.

    ``quick`` leaves out all that needs running services: outputs of notebooks, and examples of REST.
    """
    source, site = target / "site-source", target / "site"
    for folder in (source, site):
        shutil.rmtree(folder, ignore_errors=True)
    pages = source / "pages"
    assemble(pages, quick=quick)
    config = (Path(__file__).parent / "zensical.toml").read_text()
    for pattern in re.findall(r'"(\S+/\*\.md)"', config):
        entries = (f'"{page.relative_to(pages).as_posix()}"' for page in sorted(pages.glob(pattern)))
        config = config.replace(f'"{pattern}"', ", ".join(entries))
    (source / "zensical.toml").write_text(config)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(source / "zensical.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr))
    (source / "site").rename(site)
    return site


def assemble(pages: Path, *, quick: bool) -> None:
    """Copy docs/ to ``pages``, and add the pages that are made from the code."""
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.suffix in COPIED and Path(__file__).parent not in path.parents:
            copy = pages / path.relative_to(ROOT / "docs")
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".md":
                page = in_site(path.read_text(encoding="utf-8"), path.parent.relative_to(ROOT).as_posix())
                copy.write_text(formulas.typeset(page), encoding="utf-8")
            else:
                shutil.copyfile(path, copy)
    (pages / "assets").mkdir(parents=True)
    shutil.copyfile(Path(__file__).with_name("site.css"), pages / "assets/site.css")
    shutil.copyfile(ROOT / "shared/service_kit/console/static/icon.svg", pages / "assets/icon.svg")
    _add_tooltips(pages)
    shutil.copyfile(ROOT / "CHANGELOG.md", pages / "changelog.md")
    troubleshooting = pages / "howto/troubleshooting.md"
    troubleshooting.write_text(errors.with_statuses(troubleshooting.read_text()))
    made = rest.pages({} if quick else tour.examples()) | {
        "settings.md": operating.settings_page(),
        "metrics.md": operating.metrics_page(),
        "not-protected.md": operating.not_protected_page(),
        "command-line.md": command_line.page(),
    }
    homes = {
        kind: page for page, text in made.items() for kind in re.findall(r"^##+ .+ \{ #([A-Z]\w+) \}$", text, re.M)
    }
    made["python.md"] = python_api.page(homes)
    for name, text in made.items():
        (pages / "reference" / name).parent.mkdir(parents=True, exist_ok=True)
        (pages / "reference" / name).write_text(text)
    add_notebooks(pages / "notebooks", executed=not quick)
    for path in (pages / "changelog.md", *(pages / "developers").rglob("*.md")):
        path.write_text(NOT_SEARCHED + path.read_text(encoding="utf-8"), encoding="utf-8")


def in_site(page: str, folder: str) -> str:
    """A page of a ``folder`` of docs/ whose links to notebooks and sources lead to the pages that the site has of them.

    >>> in_site("[Settings](../../shared/service_kit/settings.py), [loop](../notebooks/c-own-loop.ipynb)", "docs/howto")
    '[Settings](../reference/settings.md), [loop](../notebooks/c-own-loop.md)'
    """

    def replaced(match: re.Match[str]) -> str:
        source = posixpath.normpath(posixpath.join(folder, match[1]))
        if source in MADE_FROM:
            return f"]({posixpath.relpath('docs/' + MADE_FROM[source], folder)})"
        return re.sub(r"\.ipynb\)$", ".md)", match[0])

    return re.sub(r"\]\(([^)\s]+)\)", replaced, page)


def add_notebooks(pages: Path, *, executed: bool) -> None:
    """Write a page for each notebook. They run in the order of their names: one leaves grants and logs for the next."""
    pages.mkdir()
    paths = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        parties = stack.enter_context(start_services(folder / "services")) if executed else ()
        for path in paths:
            outputs = notebooks.execute(path, parties, folder, pages) if executed else None
            (pages / f"{path.stem}.md").write_text(notebooks.page(path, outputs), encoding="utf-8")


NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
"""What the generator reads at the top of a page that its search leaves out: developers' pages and the changelog."""

EXPLAINED = ("checkpoint", "countersignature", "noise description", "receipt", "shared log")
"""Terms of the glossary that few readers know: each page explains them where the pointer rests on them."""


def _add_tooltips(pages: Path) -> None:
    glossary = (pages / "glossary.md").read_text()
    meanings = dict(re.findall(r"^\*\*(.+)\*\*\n: (.+)$", glossary, re.MULTILINE))
    notes = "".join(f"\n*[{term}]: {meanings[term]}" for term in EXPLAINED)
    for path in pages.rglob("*.md"):
        if path.name != "glossary.md":
            path.write_text(f"{path.read_text()}\n{notes}\n")
