"""Read the built site as a browser would: its pages, anchors, links, and what each page loads."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


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
