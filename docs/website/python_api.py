"""The reference page of the Python library, from its docstrings."""

import inspect
import types
from typing import Any

from docs.website.tables import plain


def page() -> str:
    """Every name that `import blindopt as bo` offers."""
    import blindopt

    lines = ["# Python", "[Install](../install.md) it, then `import blindopt as bo`. Every public name:"]
    for name in sorted(blindopt.__all__):
        value = getattr(blindopt, name)
        if isinstance(value, types.ModuleType):
            continue
        lines += _entry(f"bo.{name}", value, "## ")
        if inspect.isclass(value) and not issubclass(value, Exception):
            for member_name, member in _members(value):
                lines += _entry(f"{name}.{member_name}", member, "### ")
    return "\n\n".join(line for line in lines if line) + "\n"


def _members(owner: type) -> list[tuple[str, Any]]:
    """Public methods and properties with a docstring, those of the library's own base classes too."""
    bases = [base for base in owner.__mro__ if base.__module__.partition(".")[0] == "blindopt"]
    names = dict.fromkeys(name for base in bases for name in vars(base) if not name.startswith("_"))
    members = ((name, inspect.getattr_static(owner, name)) for name in names)
    return [
        (name, member)
        for name, member in members
        if inspect.getdoc(member)
        and (isinstance(member, property) or inspect.isroutine(getattr(member, "__func__", member)))
    ]


def _entry(name: str, value: Any, mark: str) -> list[str]:
    function = getattr(value, "__func__", value)
    signature = ""
    if callable(function):
        try:
            signature = _signature(function)
        except ValueError:  # a class of C or an exception without an own signature
            signature = ""
    lines = [f"{mark}`{name}`"]
    if signature:
        lines.append(f"```text\n{name.rpartition('.')[2]}{signature}\n```")
    lines.append(_docstring(inspect.getdoc(value) or ""))
    return lines


def _signature(function: Any) -> str:
    """The signature without ``self``; long ones have a parameter a line."""
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    signature = signature.replace(parameters=parameters)
    text = str(signature).replace("'", "")
    if len(text) <= 90:
        return text
    inner = ",\n    ".join(str(each).replace("'", "") for each in parameters)
    result = text.rpartition(" -> ")[2] if " -> " in text else ""
    return f"(\n    {inner},\n)" + (f" -> {result}" if result else "")


def _docstring(text: str) -> str:
    """A docstring as Markdown: literal blocks and examples stay as they are."""
    blocks = []
    for block in text.split("\n\n"):
        if block.startswith(("    ", ">>>")):
            blocks.append("```text\n" + inspect.cleandoc(block) + "\n```")
        else:
            blocks.append(plain(block))
    return "\n\n".join(blocks)
