"""The documents are in plain English: short sentences, and the words of the glossary."""

import re

import pytest

from tests.docs.prose import mean_words, passages, sentences
from tests.docs.snippets import DOCUMENTS, ROOT
from tests.house_words import HOUSE_WORDS

WORDS_MAX = 22


def test_sentences_are_short():
    pages = {
        name: (ROOT / name).read_text(encoding="utf-8") for name in (*DOCUMENTS, "CONTRIBUTING.md", "CHANGELOG.md")
    }
    assert [name for name, page in pages.items() if len(sentences(page)) < 3] == []
    means = {name: mean_words(page) for name, page in pages.items()}
    assert {name: mean for name, mean in means.items() if mean >= WORDS_MAX} == {}


def test_words_are_those_of_the_glossary():
    used = {
        document: [match[0] for text in passages((ROOT / document).read_text()) for match in HOUSE_WORDS.finditer(text)]
        for document in DOCUMENTS
    }
    assert {document: words for document, words in used.items() if words} == {}
    assert HOUSE_WORDS.search("as the owner told you")


def test_the_glossary_has_one_entry_for_each_term():
    terms = re.findall(r"^\*\*(.+)\*\*$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(terms) > 30
    assert len(set(terms)) == len(terms)


PAGE = """# A heading of many words that nobody counts at all

One two three. Four five six [seven](a.md), e.g. eight `and code` nine; ten: eleven twelve!

| a table | is not read |
|---|---|

- An item of three
- A long item without a stop counts as a sentence all the same
1. Numbers too. "Yes, they do."

```bash
code is not prose. At all.
```
![A picture](of.png)
"""


def test_what_a_sentence_is():
    assert sentences(PAGE) == [
        "One two three.",
        "Four five six seven, e.g. eight code nine; ten: eleven twelve!",
        "A long item without a stop counts as a sentence all the same",
        '"Yes, they do."',
    ]
    assert mean_words(PAGE) == pytest.approx((3 + 11 + 13 + 3) / 4)
