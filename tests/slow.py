"""What `make test` leaves to `make test-slow`: costly tests of which it runs a smaller sibling.

``@pytest.mark.slow(sibling="test_name")``: the whole test is slow, and ``sibling`` runs the same code with less of it.
``@pytest.mark.slow(every=3)``: of its cases, in their order, `make test` runs one in three, and at least one.

pytest by itself runs all of them; ``--slow=no`` leaves them out, and ``--slow=only`` leaves out all others.
"""

from collections import defaultdict

import pytest


def add_option(parser: pytest.Parser) -> None:
    """``--slow``."""
    text = "what is marked as slow: run with the rest, not at all, or alone"
    parser.addoption("--slow", choices=("too", "no", "only"), default="too", help=text)


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out of ``items`` what the option leaves out; a mark that is wrong ends the collection."""
    wanted = config.getoption("--slow", default="too")
    slow = _slow(items)
    if wanted == "too":
        return
    config.hook.pytest_deselected(items=[item for item in items if (item in slow) != (wanted == "only")])
    items[:] = [item for item in items if (item in slow) == (wanted == "only")]


def _slow(items: list[pytest.Item]) -> set[pytest.Item]:
    cases = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    slow: set[pytest.Item] = set()
    for each in cases.values():
        mark = each[0].get_closest_marker("slow")
        if mark is None:
            continue
        if mark.args or mark.kwargs.keys() not in ({"every"}, {"sibling"}):
            raise pytest.UsageError(f"{each[0].nodeid}: slow needs every=NUMBER or sibling=NAME")
        every = mark.kwargs.get("every", 0)
        slow.update(each if every == 0 else _left_out(each, every))
    return slow


def _left_out(cases: list[pytest.Item], every: int) -> list[pytest.Item]:
    """The last of each ``every`` stays: the cases that begin a file often hold what it sets up."""
    stays = min(every, len(cases)) - 1
    return [case for position, case in enumerate(cases) if position % every != stays]
