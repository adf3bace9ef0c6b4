"""CSV for people: texts that no spreadsheet runs as formulas."""

import re

from blindopt.formats.numbers import number_of

_UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Control, invisible and bidirectional characters."""
_RUN = r"[=+\-@\uff1d\uff0b\uff0d\uff20|%"
_SPACE = r"[^\S\t\r\n]"
_STARTS = re.compile(rf"{_SPACE}*+{_RUN}\t\r\n]")
# After a character that another reader takes for the end of a cell, where quotes may have another meaning. Not after a
# comma: within a cell it is inside our quotes, and a reader with another separator does not split at commas.
_PARTS = re.compile(rf"[;|\t\r\n](?=(?:{_SPACE}|\")*+{_RUN}])")


def plain(text: str) -> str:
    """Escape a text so that no spreadsheet runs it or reverses its direction, whatever its separator.

    Source: OWASP, CSV injection.

    >>> plain("=1+1"), plain("half = 0.5"), plain("a;=1+1")
    ("'=1+1", 'half = 0.5', "a;'=1+1")
    """
    escaped = _PARTS.sub(r"\g<0>'", _UNSEEN.sub("", text))
    return f"'{escaped}" if _STARTS.match(escaped) else escaped


def harmless(cell: object) -> object:
    """Make any value safe as a cell: numbers stay, also as text; None is empty; other text is escaped."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return plain(cell) if isinstance(cell, str) and number_of(cell) is None else cell
