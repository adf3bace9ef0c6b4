"""The steps of a tutorial as its reader in a browser sees them: the text, the names in italics, the table of fields."""

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
TAB = re.compile(r"^/// tab \| (.+?)\n(.*?)^///$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """A section of a tutorial."""

    title: str
    text: str

    @property
    def labels(self) -> list[str]:
        """The names in italics: of buttons, links, fields, headings and notices on the pages of this step."""
        return [" ".join(name.split()) for name in re.findall(r"(?<![*\w])\*([^*]+)\*(?![*\w])", self.text)]

    @property
    def fields(self) -> list[tuple[str, str, str]]:
        """Lines of the table: the wizard's step, the field, and what is entered."""
        rows = re.findall(r"^\| \*(.+?)\* \| \*(.+?)\* \| (.+?) \|$", self.text, re.MULTILINE)
        return [(page, field, value.strip("`")) for page, field, value in rows]


def steps(document: str) -> dict[int, Step]:
    """The numbered sections of a tutorial by number, without its tabs for REST and its boxes."""
    page = (DOCS / document).read_text(encoding="utf-8")
    page = re.sub(r"^>.*\n", "", page, flags=re.MULTILINE)  # a counter-example, which nobody follows
    page = TAB.sub(lambda tab: tab[2] if tab[1] == "In a browser" else "", page)
    sections = re.findall(r"^## (\d+)\. (.+?)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return {int(number): Step(title, text) for number, title, text in sections}
