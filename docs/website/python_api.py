"""The reference page of the Python library: what `import blindopt` offers, and the classes that its calls return."""

import ast
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import blindopt
from blindopt.wire.base import Reply, Request
from docs.website.tables import code, plain, table

_ORDER = (
    *("owner", "reports", "measurer", "vendor", "offers", "study", "auditing", "optimizer", "chooser", "posterior"),
    *("acquisition", "kernels", "errors", "base", "dataset", "tuning", "ledger", "query", "inbox", "message", "audit"),
    *("release", "run"),
)
"""Modules in the order of a reader's work: what owners use, then vendors, auditors and programs of their own."""
DEPTH = 2
"""How many calls away from a public name a class may be that the page describes."""
ABOUT = """After `import blindopt as bo` you can use each name that begins with `bo.`. Calls return objects of the other
classes. [Work from Python](../howto/from-python.md) tells the story."""
RECORDS = "These classes hold values. Their attributes have the names of the fields in REST."


def page(homes: Mapping[str, str]) -> str:
    """Every public name, and each class that a public call returns. ``homes``: pages of the types of REST, by name."""
    blocks = ["# Python", ABOUT]
    records = []
    for name, value in entries():
        if _is_record(value):
            records.append([code(name), _fields(value, homes), plain(_paragraphs(value)[0])])
            continue
        blocks += _entry(name, value, "##", homes)
        blocks += [
            line for item, member in members(value) for line in _entry(f"{name}.{item}", member, "###", homes, value)
        ]
        if inspect.isclass(value) and (base := next((item for item in value.__mro__[1:] if _is_record(item)), None)):
            blocks.append(f"Its attributes: {_fields(base, homes)}.")
    blocks += ["## Values", RECORDS, table(["Class", "Fields", "Meaning"], records)]
    return "\n\n".join(line for line in blocks if line) + "\n"


@cache
def entries() -> list[tuple[str, Any]]:
    """The name and value of each entry: public names first, then classes in the order in which calls reach them."""
    public = {name: getattr(blindopt, name) for name in sorted(blindopt.__all__)}
    matches: dict[type, None] = {}
    level = [value for value in public.values() if callable(value)]
    for _ in range(DEPTH):
        level = [kind for value in level for kind in returned(value) if kind not in matches]
        level = [kind for kind in dict.fromkeys(level) if kind not in public.values()]
        matches |= dict.fromkeys(level)
    names = [kind.__name__ for kind in matches] + list(public)
    named = {}
    for kind in matches:
        module = kind.__module__.split(".")
        prefix = "wire." if "wire" in module else f"{module[-1]}." if names.count(kind.__name__) > 1 else ""
        named[prefix + kind.__name__] = kind
    listed = [(f"bo.{name}", value) for name, value in public.items() if callable(value)] + list(named.items())
    return sorted(listed, key=lambda entry: _ORDER.index(entry[1].__module__.rpartition(".")[2]))


def returned(value: Any) -> Iterator[type]:
    """The classes of the library that a function, or the public members of a class, return."""
    calls = [member for _, member in members(value)] if inspect.isclass(value) else [value]
    for call in calls:
        function = call.fget if isinstance(call, property) else getattr(call, "__func__", call)
        function = getattr(function, "func", function)  # of a cached property
        waiting = list(_result_of(function).values())
        while waiting:
            kind = waiting.pop(0)
            waiting += typing.get_args(kind)
            if kind is typing.Self and isinstance(call, classmethod):
                yield value
            if inspect.isclass(kind) and kind.__module__.startswith("blindopt."):
                yield kind


OF_OTHERS = {"pd": types.SimpleNamespace(DataFrame=object), "Axes": object, "Figure": object}
"""Types of libraries that the library imports for type checkers alone: no page describes them."""


def _result_of(function: Any) -> dict[str, Any]:
    """The type that a function is annotated to return."""

    def result() -> None: ...

    result.__annotations__ = {k: v for k, v in getattr(function, "__annotations__", {}).items() if k == "return"}
    return typing.get_type_hints(result, getattr(inspect.unwrap(function), "__globals__", {}), OF_OTHERS)


def members(owner: Any) -> list[tuple[str, Any]]:
    """Public methods and properties with a docstring, those of the library's own base classes too."""
    if not inspect.isclass(owner) or issubclass(owner, Exception):
        return []
    bases = [base for base in owner.__mro__ if base.__module__.partition(".")[0] == "blindopt" and not _is_record(base)]
    names = dict.fromkeys(name for base in bases for name in vars(base) if not name.startswith("_"))
    listed = [(name, inspect.getattr_static(owner, name)) for name in names]
    return [
        (name, member)
        for name, member in listed
        if _is_member(member) and inspect.getdoc(member) and name != "model_post_init"
    ]


def _is_member(value: Any) -> bool:
    return isinstance(value, property) or hasattr(value, "func") or inspect.isroutine(getattr(value, "__func__", value))


def _is_record(value: Any) -> bool:
    """Whether a class is a type of the wire, whose fields REST describes."""
    return inspect.isclass(value) and issubclass(value, Request | Reply) and ".wire." in f"{value.__module__}."


def _fields(kind: type, homes: Mapping[str, str]) -> str:
    if kind.__name__ in homes:
        return f"[fields of {plain(kind.__name__)}]({homes[kind.__name__]}#{kind.__name__})"
    return ", ".join(code(name) for name in getattr(kind, "model_fields", {}))


def _entry(name: str, value: Any, mark: str, homes: Mapping[str, str], owner: Any = None) -> list[str]:
    blocks = [f"{mark} `{name}`"]
    function = function_of(value, owner)
    if function is not None:
        blocks.append(f"```python\n{name.rpartition('.')[2]}{signature(function)}\n```")
    table_of = described(value, owner, homes)
    for number, paragraph in enumerate(_paragraphs(value)):
        others = [
            item
            for position, item in enumerate(sentences(paragraph))
            if number == position == 0 or not any(item in words for words in table_of.values())
        ]
        blocks.append(paragraph if paragraph.startswith("```") else plain(" ".join(others)))
    rows = [[code(item), words if words.startswith("[") else plain(words)] for item, words in table_of.items()]
    blocks.append(table(["Parameter", "Meaning"], rows))
    return blocks


def function_of(value: Any, owner: Any = None) -> Any:
    """The function that a user calls; None for a property, and for a class whose objects calls return."""
    if inspect.isclass(value):
        is_made = owner is None and not issubclass(value, Exception) and value not in _made_by_calls()
        return value.__init__ if is_made and inspect.isfunction(value.__init__) else None
    if isinstance(value, property) or hasattr(value, "func"):
        return None
    return getattr(value, "__func__", value)


@cache
def _made_by_calls() -> set[type]:
    return {kind for _, value in entries() for kind in returned(value)}


def signature(function: Any) -> str:
    """The signature as the source has it, without ``self``; long ones have a parameter a line."""
    if function.__code__.co_filename.startswith("<"):  # of a dataclass, which has no source
        whole = inspect.signature(function)
        parameters = [item for name, item in whole.parameters.items() if name != "self"]
        return str(whole.replace(parameters=parameters, return_annotation=whole.empty))
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    node.args.args = [item for item in node.args.args if item.arg not in ("self", "cls")]
    result = ""
    if node.returns is not None and function.__name__ != "__init__":
        result = " -> " + ast.unparse(node.returns).replace("'", "")  # without the quotes of a class that comes later
    content = f"({ast.unparse(node.args)}){result}".replace("'", '"')
    if len(content) <= 90:
        return content
    defaults: list[ast.expr | None] = [None] * (len(node.args.args) - len(node.args.defaults)) + node.args.defaults
    pieces = [_parameter(item, default) for item, default in zip(node.args.args, defaults, strict=True)]
    starred = f"*{ast.unparse(node.args.vararg)}" if node.args.vararg else "*"
    pieces += [starred] if node.args.vararg or node.args.kwonlyargs else []
    pieces += [_parameter(*pair) for pair in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
    pieces += [f"**{ast.unparse(node.args.kwarg)}"] if node.args.kwarg else []
    return "(\n    " + ",\n    ".join(pieces).replace("'", '"') + f",\n){result}"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return ast.unparse(argument)
    return f"{ast.unparse(argument)}{' = ' if argument.annotation else '='}{ast.unparse(default)}"


def described(value: Any, owner: Any = None, homes: Mapping[str, str] = {}) -> dict[str, str]:
    """What each parameter means: the sentences of the docstring that name it, or of its class or of a base.

    A request is described by its fields.
    """
    function = function_of(value, owner)
    if function is None:
        return {}
    kinds = owner.__mro__ if owner is not None else value.__mro__ if inspect.isclass(value) else ()
    overridden = [vars(kind)[function.__name__] for kind in kinds if function.__name__ in vars(kind)]
    texts = [[s for content in _paragraphs(item) for s in sentences(content)] for item in (value, *overridden, *kinds)]
    hints = typing.get_type_hints(function, localns=OF_OTHERS)
    matches = {}
    for name in inspect.signature(function).parameters:
        if name in ("self", "cls"):
            continue
        saying = (" ".join(sentence for sentence in content if f"``{name}``" in sentence) for content in texts)
        records = [
            _fields(kind, homes) for kind in (hints.get(name), *typing.get_args(hints.get(name))) if _is_record(kind)
        ]
        matches[name] = next(filter(None, saying), " or ".join(records))
    return matches


def raised(value: Any) -> set[str]:
    """The errors that a docstring names."""
    content = " ".join((inspect.getdoc(value) or "").split())
    return {name for part in re.findall(r"[Rr]aises? ([^.]+)", content) for name in re.findall(r"\b[A-Z]\w+", part)}


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph."""
    return re.split(r"(?<=[.:]) (?=[A-Z`])", paragraph)


def _paragraphs(value: Any) -> list[str]:
    """The paragraphs of a docstring; examples are fenced."""
    blocks: list[str] = []
    for block in (inspect.getdoc(value) or "").split("\n\n"):
        if block.startswith(("    ", ">>>")):
            blocks.append(f"```python\n{inspect.cleandoc(block).replace('  # doctest: +SKIP', '')}\n```")
        else:
            blocks.append(" ".join(block.split()))
    return blocks or [""]
