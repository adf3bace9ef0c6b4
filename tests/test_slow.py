"""`make test` leaves out costly tests, each of which has a sibling that stays; `make test-slow` has them."""

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slow import select

TESTS = Path(__file__).parent
SIBLING = re.compile(r'^@pytest\.mark\.slow\(\s*sibling="(?:(?P<file>\w+\.py)::)?(?P<name>\w+)"\s*\)$', re.MULTILINE)


@dataclass(eq=False)
class Item:
    """What ``select`` takes of a collected test."""

    nodeid: str
    mark: pytest.Mark | None

    def get_closest_marker(self, name):
        return self.mark if name == "slow" else None


class Config:
    """What ``select`` takes of pytest's configuration."""

    def __init__(self, option):
        self.option, self.hook, self.deselected = option, self, []

    def getoption(self, name, default):
        return self.option if name == "--slow" else default

    def pytest_deselected(self, items):
        self.deselected += items


def collected(**kwargs):
    marks = {
        "quick": (None, [""]),
        "whole": (pytest.mark.slow(**kwargs).mark, ["[1]", "[2]"]),
        "cases": (pytest.mark.slow(every=3).mark, [f"[{n}]" for n in range(7)]),
        "few": (pytest.mark.slow(every=3).mark, ["[1]", "[2]"]),
    }
    return [Item(f"tests/a.py::{name}{case}", mark) for name, (mark, cases) in marks.items() for case in cases]


def test_each_case_is_in_one_of_the_two_and_one_of_each_test_stays():
    names, everything = {}, collected(sibling="quick")
    for option in ("no", "only", "too"):
        items, config = list(everything), Config(option)
        select(config, items)
        names[option] = [item.nodeid.partition("::")[2] for item in items]
        assert set(config.deselected) == set(everything) - set(items)
    assert names["no"] == ["quick", "cases[2]", "cases[5]", "few[2]"]
    assert sorted(names["no"] + names["only"]) == sorted(names["too"])
    assert len(names["too"]) == len(everything) == 12


def test_each_sibling_is_there_and_stays():
    texts = defaultdict(str)
    for path in TESTS.rglob("test_*.py"):
        if path != Path(__file__):
            texts[path.name] += (text := path.read_text(encoding="utf-8"))
            assert len(SIBLING.findall(text)) == text.count("sibling="), f"{path}: a sibling is not named as looked for"
    marks = [
        (file, mark["file"] or file, mark["name"]) for file, text in texts.items() for mark in SIBLING.finditer(text)
    ]
    assert marks
    for marked, file, name in marks:
        before, definition, _ = texts[file].partition(f"\ndef {name}(")
        assert definition, f"{marked}: no {file}::{name}"
        decorators = before.rpartition("\n\n")[2]
        assert "sibling=" not in decorators, f"{marked}: {file}::{name} is slow itself"
