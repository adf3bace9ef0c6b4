"""The documents are in plain English: the words of the glossary, one fact a sentence, and no more words than needed."""

import re

from tests.docs.ceilings import CONTRIBUTORS, DOCS_WORDS, MAIN_PATH, MAIN_PATH_WORDS, USERS, WORDS, counts
from tests.docs.prose import passages, sentences
from tests.docs.snippets import DOCUMENTS, ROOT
from tests.house_words import HOUSE_WORDS

PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in (*DOCUMENTS, "CONTRIBUTING.md", "CHANGELOG.md")}
RUN = 7
LINE = 130
SHARED_RUNS = 5


def test_no_page_has_more_of_what_is_hard_to_read_than_it_may():
    excess = {
        page: {
            name: (number, allowed.get(name, 0)) for name, number in numbers.items() if number > allowed.get(name, 0)
        }
        for page, text in PAGES.items()
        for allowed in [(USERS | CONTRIBUTORS).get(page, {})]
        for numbers in [counts(text)]
    }
    assert {page: more for page, more in excess.items() if more} == {}


def test_the_patterns_find_what_they_are_about():
    page = """# What is a heading? Nothing counts here; not a row

What was sent stays. Nothing is left of y; the vendor wants once more a row, and spent what it lost.
What is epsilon? Ask the owner. `row; y` is code. No, never.

| Nothing | a row; y |
"""
    assert counts(page) == {"row": 1, "y": 1, "spent": 1, "lost": 1, "semicolon": 1, "translated": 1, "inverted": 2}
    assert counts("The vendor asks again, and was asked. He asks for more.") == {"ask": 2}


def test_no_page_has_more_words_than_it_may():
    assert WORDS.keys() >= {page for page in PAGES if page.startswith("docs/")} | {"README.md", "CHANGELOG.md"}
    lengths = {page: len(text.split()) for page, text in PAGES.items()}
    assert {page: words for page, words in lengths.items() if words > WORDS.get(page, words)} == {}
    assert sum(lengths[page] for page in MAIN_PATH) <= MAIN_PATH_WORDS
    assert sum(words for page, words in lengths.items() if page.startswith(("docs/", "README"))) <= DOCS_WORDS


def test_users_pages_do_not_say_the_same_in_the_same_words():
    users = [page for page in PAGES if page.startswith(("README", "docs/")) and "/developers/" not in page]
    runs = {page: runs_of(PAGES[page]) for page in users}
    shared = {
        (page, other): sorted(runs[page] & runs[other])
        for i, page in enumerate(users)
        for other in users[:i]
        if len(runs[page] & runs[other]) > SHARED_RUNS
    }
    assert shared == {}
    assert (
        len(runs_of("One two three four five six seven eight.") & runs_of("two three four five six seven eight")) == 1
    )


def runs_of(page: str) -> set[str]:
    """Every run of seven words in the prose of a page."""
    texts = [re.findall(r"[\w'-]+", text.lower()) for text in passages(page)]
    return {" ".join(words[i : i + RUN]) for words in texts for i in range(len(words) - RUN + 1)}


def test_lines_of_prose_fit_a_window():
    assert {page: wide for page, text in PAGES.items() if (wide := wide_lines(text))} == {}
    assert len(wide_lines("word " * 40 + "\n\n```text\n" + "word " * 40 + "\n```\n\n| " + "word " * 40 + "|\n")) == 1


def wide_lines(page: str) -> list[str]:
    """Lines of more than 130 characters: not in code, tables, formulas or pictures."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    return [line for line in prose.splitlines() if len(line) > LINE and not line.lstrip().startswith(("|", "![", "$$"))]


def test_words_are_those_of_the_glossary():
    used = {
        document: [match[0] for text in passages(PAGES[document]) for match in HOUSE_WORDS.finditer(text)]
        for document in DOCUMENTS
    }
    assert {document: words for document, words in used.items() if words} == {}
    assert HOUSE_WORDS.search("as the owner told you")


def test_the_glossary_has_one_entry_for_each_term():
    terms = re.findall(r"^\*\*(.+)\*\*$", PAGES["docs/glossary.md"], re.MULTILINE)
    assert len(terms) > 30
    assert len(set(terms)) == len(terms)


SAMPLE = """# A heading of many words that nobody counts at all

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
    assert sentences(SAMPLE) == [
        "One two three.",
        "Four five six seven, e.g. eight code nine; ten: eleven twelve!",
        "A long item without a stop counts as a sentence all the same",
        '"Yes, they do."',
    ]
