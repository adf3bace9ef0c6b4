"""What makes a page hard to read, and how much of it, and how many words, each page has at most."""

import re

from tests.docs.prose import passages, sentences

PATTERNS = {
    "row": re.compile(r"\brows?\b(?! groups?\b)", re.IGNORECASE),
    "y": re.compile(r"(?<![\w.'-])y(?![\w.'-])"),
    "ask": re.compile(r"\b(?:asks?|asked|asking)\b(?! (?:the (?:owner|person|administrator|vendor)|for|you|an optimization firm)\b)", re.IGNORECASE),
    "spent": re.compile(r"\b(?:spen[dt]s?|spending)\b", re.IGNORECASE),
    "lost": re.compile(r"\b(?:los[et]|loses|losing)\b", re.IGNORECASE),
    "semicolon": re.compile(r";"),
    "translated": re.compile(r"\b(?:in all|besides|at hand|as a whole|once more|of now|of then|meanwhile)\b", re.IGNORECASE),
}
"""Words that have a better one in the glossary, and joints that hold two sentences together."""
INVERTED = re.compile(r"(?:No(?![.:,])|Nothing|Nobody|None|Neither|Whoever|Such|Where|Who|What)\b(?!.*\?$)")
"""How a sentence begins whose reader waits for its subject. Questions may begin so."""


def counts(page: str) -> dict[str, int]:
    """How often each pattern is in the prose of a page: not in code, tables or headings."""
    prose = passages(page)
    found = {name: sum(len(pattern.findall(text)) for text in prose) for name, pattern in PATTERNS.items()}
    found["inverted"] = sum(bool(INVERTED.match(sentence)) for sentence in sentences(page))
    return {name: number for name, number in found.items() if number}
