"""Names say what they hold: words that fit anything are counted as identifiers, and their number only falls."""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("shared", "curator_service", "modeler_service", "demo", "benchmarks", "docs", "tests")
WIRE = ROOT / "shared" / "blindopt" / "wire"
WORDS = {"told", "found", "known", "asked", "one", "some", "here", "left", "things", "place"}
CEILING = 1
"""How many of these names there may be, all but ``told``: a field on the wire. Never raise it."""


def bound_names(tree):
    """Every name that a module binds: variables, parameters, functions, classes, attributes, imports."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                yield name, node.lineno
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from ((name, node.lineno) for name in names)


def vague(text):
    """The names of ``WORDS`` that a text binds, whatever their case and underscores, with their lines."""
    for name, line in bound_names(ast.parse(text)):
        word = name.strip("_").lower()
        if word in WORDS:
            yield word, line


def test_vague_names_only_become_fewer():
    places = [
        (word, f"{path.relative_to(ROOT)}:{line}")
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for word, line in vague(path.read_text())
        if word != "found" or not path.is_relative_to(WIRE)  # what a search for many found, and a rule that ends it
    ]
    counts = Counter(word for word, _ in places)
    assert counts.pop("told", 0) == 0, [at for word, at in places if word == "told"]
    assert counts.total() <= CEILING, places


def test_the_count_finds_every_way_to_bind_a_name():
    text = """
import told as found
from x import y as _known
class Told:
    asked: int
    def one(self, some, *here, **left): self.place = 1
async def things(): ...
for found in (): ...
with x as asked: ...
try: ...
except E as told: ...
if (one := 1): ...
[_ for some in ()]
lambda left: left
match x:
    case [*things]: ...
    case place: ...
"""
    words = Counter(word for word, _ in vague(text))
    assert words == Counter(told=2, found=2, known=1, asked=2, one=2, some=2, here=1, left=2, place=2, things=2)
    assert not list(vague("x.one()\nplace.y\nf(found=1)\nreturned = told"))
