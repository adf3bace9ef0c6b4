"""Tables of Markdown."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; empty where there are no rows. Cells are Markdown, each on a line of its own."""
    lines = ["| " + " | ".join(cell.replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *lines, ""]) if lines else ""


def plain(text: str) -> str:
    """Text in a cell or a paragraph: nothing in it is HTML, an end of a cell, or emphasis."""
    text = text.replace("``", "`")
    parts = text.split("`")  # those at odd positions are code
    for i in range(0, len(parts), 2):
        for character in ("\\", "*", "_", "[", "]"):
            parts[i] = parts[i].replace(character, "\\" + character)
        parts[i] = parts[i].replace("&", "&amp;").replace("<", "&lt;")
    return "`".join(parts).replace("|", "\\|")


def code(text: str) -> str:
    """Text as code in a cell."""
    return f"`{text.replace('|', chr(92) + '|')}`"
