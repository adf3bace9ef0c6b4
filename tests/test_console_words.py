"""What people read of both services uses the words of the glossary: pages, their messages, and descriptions of REST."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from blindopt import wire
from blindopt.wire.base import description_of
from tests.house_words import CONSOLE_WORDS

ROOT = Path(__file__).parents[1]
CONSOLES = ("curator_service/console", "modeler_service/console", "shared/service_kit/console")
ALLOWED = {
    "Ask me: import nothing",  # the choice of a form
    "row",  # a line of a file with a fault
    "Row",  # of the file, by its number
    "used epsilon {epsilon} of {study_id} for {rows} of its candidates",  # the name of a field
    "; the first is in row",
    " (first in row ",
    "in a row failed. The last time:",
    r"queries: \d+ requested with \d+ of (\d+) (?:spent|used)",  # what curators of before reply
}
"""Where a word of the list is right."""
DESCRIPTIONS_MAX = 37
"""How many descriptions of fields still have such a word: this only falls."""


def test_no_page_has_a_word_that_the_glossary_replaces():
    faults = {
        f"{path.relative_to(ROOT)}: {said[:120]}"
        for folder in CONSOLES
        for path in (ROOT / folder / "templates").glob("*.html")
        for said in shown_by(path.read_text(encoding="utf-8"))
        if CONSOLE_WORDS.search(said) and said.strip() not in {each.strip() for each in ALLOWED}
    }
    assert faults == set()


def test_no_message_of_a_console_has_a_word_that_the_glossary_replaces():
    faults = {
        f"{path.relative_to(ROOT)}: {said}"
        for folder in CONSOLES
        for path in (ROOT / folder).glob("*.py")
        for said in sentences_of(path.read_text(encoding="utf-8"))
        if CONSOLE_WORDS.search(said) and said.strip() not in {each.strip() for each in ALLOWED}
    }
    assert faults == set()


def test_descriptions_of_fields_lose_words_that_the_glossary_replaces():
    said = {
        f"{model.__name__}.{name}": description_of(model, name) or ""
        for model in vars(wire).values()
        if isinstance(model, type) and issubclass(model, BaseModel)
        for name in model.model_fields
    }
    faults = {name: text for name, text in said.items() if CONSOLE_WORDS.search(text)}
    assert len(said) > 500
    assert len(set(faults.values())) <= DESCRIPTIONS_MAX, "\n".join(f"{name}: {text}" for name, text in faults.items())


def test_the_words_are_found_where_they_are_written():
    page = '<p title="x">{% if a.row %}A row of Z{% endif %} {{ ui.text("row", "What y is lost") }}</p>{# a row #}'
    assert {each for each in shown_by(page) if CONSOLE_WORDS.search(each)} == {"A row of Z", "What y is lost"}
    assert list(sentences_of('"""A row."""\nx = "row"\ny = f"{x} rows spent"\n')) == [" rows spent"]


def shown_by(template: str) -> Iterator[str]:
    """The texts of a template: what stands between its tags, and strings of words that its expressions pass on."""
    text = re.sub(r"\{#.*?#\}", " ", template, flags=re.DOTALL)
    for expression in re.findall(r"\{[{%].*?[%}]\}", text, flags=re.DOTALL):
        yield from (each for each in re.findall(r'"([^"]*)"', expression) if " " in each.strip())
    text = re.sub(r"\{[{%].*?[%}]\}|<code>.*?</code>", "\n", text, flags=re.DOTALL)
    yield from (each.strip() for each in re.split(r"<[^>]*>|\n", text) if each.strip())


def sentences_of(program: str) -> Iterator[str]:
    """The strings of words of a program that are no docstrings."""
    tree = ast.parse(program)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_string = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        if is_string and " " in node.value:
            yield node.value
