"""Words that neither a page of the consoles nor a document uses: docs/glossary.md has the words to write instead."""

import re

HOUSE_WORDS = re.compile(
    r".{0,40}\b(?:told|likelier|what was understood|of it|by itself|passports?|rows? of Z|mended|walked|whoever)\b"
    r".{0,40}",
    re.IGNORECASE,
)
CONSOLE_WORDS = re.compile(
    r"\b[Rr]ows?\b(?! of (?:the|a) file)"
    r"|(?<![\w^.'-])y(?![\w.'=-])|\bZ\b|\b[Aa]sk(?:s|ed|ing)?\b(?! (?:the|your|them|an)\b)"
    r"|\b[Ss]pen(?:t|d|ds|ding)\b|\b[Ll]os(?:t|es|ing|e)\b|\b[Cc]osts?\b|\b(?:in all|besides|meanwhile|once more)\b"
    r"|\bplays?\b|\btold\b"
)
"""Of pages, their messages and REST, where field names keep them: say record or candidate, outcome, query, used.
The row of a file is the one that a spreadsheet shows."""
