"""The documents are in plain English: short sentences, and the words of the glossary."""

import re

import pytest

from tests.docs.prose import mean_words, passages, sentences
from tests.docs.snippets import DOCUMENTS, ROOT
from tests.house_words import HOUSE_WORDS

WORDS_MAX = 22


@pytest.mark.parametrize("document", [*DOCUMENTS, "CHANGELOG.md"])
def test_sentences_are_short(document):
    page = (ROOT / document).read_text()
    assert len(sentences(page)) >= 3
    assert mean_words(page) < WORDS_MAX, sorted(sentences(page), key=lambda each: -len(each.split()))[:5]


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
