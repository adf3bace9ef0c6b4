"""Two pages of docs/developers name files that exist; architecture.md leaves out no folder of the product."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/developers/architecture.md").read_text()
TOPS = ("shared/", "curator_service/", "modeler_service/", "tests/", "demo/", "docs/")


def tree():
    """The paths of the drawn tree: two spaces of indentation a level, several folders on a line."""
    block = TEXT.partition("```\n")[2].partition("```")[0]
    trail = []
    for line in block.splitlines():
        level = (len(line) - len(line.lstrip())) // 2
        names = [word for word in re.split(r" {2,}", line.strip())[:-1] if word.endswith(("/", ".py"))]
        del trail[level:]
        for name in names:
            yield "".join([*trail, name])
        trail.append(names[0])


def test_every_path_in_the_text_exists():
    prose = TEXT.partition("```\n")[2].partition("```")[2]
    named = [path for path in re.findall(r"`([\w./]+)`", prose) if path.startswith(TOPS)]
    assert len(named) > 40
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_what_is_said_of_tests_names_files_and_verbs_that_exist():
    testing, makefile = (ROOT / "docs/developers/testing.md").read_text(), (ROOT / "Makefile").read_text()
    named = [path for path in re.findall(r"`([\w./]+)`", testing) if path.startswith(TOPS)]
    assert len(named) > 25
    assert [path for path in named if not (ROOT / path).exists()] == []
    verbs = set(re.findall(r"`make ([\w-]+)`", testing))
    assert len(verbs) >= 8
    assert verbs <= set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))


def test_the_tree_is_the_tree():
    paths = list(tree())
    assert len(paths) > 35
    assert [path for path in paths if not (ROOT / path).exists()] == []
    for top in ("shared/blindopt", "shared/service_kit", "curator_service", "modeler_service"):
        folders = {path.parent for path in (ROOT / top).rglob("__init__.py")} - {ROOT / top}
        rooms = {path.relative_to(ROOT).as_posix() for path in folders if path.parent == ROOT / top}
        assert rooms - {path.rstrip("/") for path in paths} == set()
