"""The sentences of a page: its paragraphs and list items, without code, tables, headings and pictures."""

import re

_NO_END = r"(?<!et al\.)(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)(?<!cf\.)(?<!Fig\.)(?<!Eq\.)(?<!No\.)"


def passages(page: str) -> list[str]:
    """Each paragraph and each list item, as one line without links' addresses. Code in a line is the word ``code``."""
    page = re.sub(r"^```.*?^```$", "\n", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    lines = [line for line in page.splitlines() if not re.match(r"\s*(#|\||!\[)", line)]
    items = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.|:) )", "\n".join(lines))
    texts = (re.sub(r"^\s*(?:[-*]|\d+\.|:) +", "", item.strip()) for item in items)
    texts = (re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text) for text in texts)
    return [" ".join(re.sub(r"`[^`]*`", "code", text).split()) for text in texts if text]


def sentences(page: str) -> list[str]:
    """What ends with a full stop, a question or exclamation mark, or with its passage.

    Commas, colons and semicolons end nothing. A passage without such an end counts from eight words on, so that a
    list of names does not make a page look easy.
    """
    ends = []
    for passage in passages(page):
        for sentence in re.split(rf"{_NO_END}(?<=[.!?])[\"')*_]*\s+", passage):
            words = len(sentence.split())
            if words >= (3 if sentence.rstrip("\"')*_").endswith((".", "!", "?", ":")) else 8):
                ends.append(sentence)
    return ends
