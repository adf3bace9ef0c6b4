"""Read the built site as a browser would: its pages, anchors, links, and what each page loads. What notebooks show."""

import ast
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


class Page(HTMLParser):
    """The anchors of a page, the addresses that it links to, and those that it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors |= {value for name, value in attrs if name in ("id", "name") and value}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        elif tag == "link" and attributes.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(attributes["href"])
        self.loads += [attributes[name] for name in ("src", "data-src") if attributes.get(name)]


def faults(site: Path) -> list[str]:
    """Every link that leads nowhere, and everything that a page loads from outside or that does not exist."""
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    listed = []
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        for address in page.loads:
            parts = urlsplit(address)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                listed.append(f"{name} loads {address} from outside")
            elif not (path.parent / unquote(parts.path)).resolve().is_file():
                listed.append(f"{name} loads {address}, which does not exist")
        for address in page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                listed.append(f"{name} links to {address}, which does not exist")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                listed.append(f"{name} links to {address}: no such anchor")
    for path in site.rglob("*.css"):
        if "url(http" in path.read_text().replace('"', "").replace("'", ""):
            listed.append(f"{path.name} loads something from outside")
    return listed


def sources(path):
    """The sources of a notebook's code cells."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def unshown(path, text):
    """The code cells that print, end in a value or plot, and whose page does not show it."""
    missing = []
    for source in sources(path):
        shown = text.partition(f"```python\n{source}\n```\n")[2].partition("\n```python\n")[0]
        ends_in_value = isinstance(ast.parse(source).body[-1], ast.Expr) and not source.endswith(";")
        if (ends_in_value or "print(" in source) and not re.match(r'\n(```text\n.|<div class="outputs">.)', shown):
            missing.append(source)
        if re.search(r"\.plot\(|new_axes\(", source) and not re.search(r"\n!\[.+\]\(\S+\.svg\)", shown):
            missing.append(source)
    return missing
