"""What is printed is what a notebook shows, in at most 30 lines of 100 signs."""

import html
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt.display import LINES_MAX, WIDTH, Shown, Table, facts


class Pages(Shown):
    def __init__(self, *tables):
        self._shown = tables

    def _tables(self):
        return self._shown


SENTENCE = "Under these caps one record may use epsilon 20 in total, by the release and its answers."


@pytest.mark.parametrize("count", [1, 3, 40])
def test_print_and_notebook_have_the_same_words_until_there_is_no_room(count):
    tables = (
        Table(["Name", "Mean"], [[f"run {number}", number / 7] for number in range(count)], "Runs"),
        facts({"Price": SENTENCE, "Cautions": [SENTENCE] * 2, "None": None}),
    )
    shown, words = Pages(*tables), re.compile(r"[\w.]+")
    text = str(shown)
    page = html.unescape(re.sub("<[^>]*>", " ", shown._repr_html_()))
    if count < 10:
        assert sorted(words.findall(text)) == sorted(words.findall(page))
    else:
        assert f"... and {count - 20} more" in text
        assert SENTENCE in re.sub(r"\s+", " ", text)
    assert len(text.splitlines()) <= LINES_MAX


CELLS = st.one_of(st.none(), st.floats(), st.text(max_size=300), st.lists(st.text(max_size=200), max_size=12))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.builds(
            lambda rows, caption: Table(["a", "b", "c"], rows, caption),
            st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=30),
            st.text(max_size=300),
        ),
        max_size=4,
    )
)
def test_whatever_it_holds_a_print_has_thirty_lines_of_a_hundred_printable_signs(tables):
    lines = str(Pages(*tables)).split("\n")
    assert len(lines) <= LINES_MAX
    assert all(len(line) <= WIDTH and line.isprintable() for line in lines)
