"""Words that neither a page of the consoles nor a document uses: docs/glossary.md has the words to write instead."""

import re

HOUSE_WORDS = re.compile(
    r".{0,40}\b(?:told|likelier|what was understood|of it|by itself|passports?|rows? of Z|mended|walked|whoever)\b"
    r".{0,40}",
    re.IGNORECASE,
)
