"""Formulas of pages, `$...$` in a line and `$$...$$` on lines of their own, as MathML, which browsers typeset."""

import re
from collections.abc import Iterator
from html import escape
from html.entities import html5

LETTERS = (
    *("alpha", "beta", "gamma", "delta", "epsilon", "eta", "theta", "kappa", "lambda", "mu", "nu", "xi", "pi", "rho"),
    *("sigma", "tau", "phi", "omega", "Gamma", "Delta", "Lambda", "Sigma", "Phi"),
)
OPERATORS = {
    name: name for name in ("leq", "geq", "in", "sim", "pm", "times", "sum", "lfloor", "rfloor", "cup", "vert")
} | {
    "neq": "ne",
    "notin": "notin",
    "cdot": "middot",
    "to": "rarr",
    "approx": "asymp",
    "-": "minus",
    "*": "lowast",
}
"""The name in HTML of each operator: Markdown would read a star between two formulas as emphasis."""
NAMES = ("log", "ln", "exp", "max", "min", "sup", "cos", "sinh", "tanh", "Pr", "det")
SPACES = {",": "0.17em", ";": "0.28em", "quad": "1em", "qquad": "2em", "!": "-0.17em"}
TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9]+(?:\.[0-9]+)?|\S")
FORMULA = re.compile(r"(^```.*?^```$|`[^`\n]*`)|\$\$(.+?)\$\$|\$([^$\n]+(?:\n[^$\n]+)?)\$", re.DOTALL | re.MULTILINE)


def typeset(page: str) -> str:
    """A page with each formula as MathML; code is left as it is. Raises ValueError for a command that is not known."""

    def replaced(match: re.Match[str]) -> str:
        code, display, inline = match.groups()
        if code is not None:
            return code
        return mathml(display, block=True) if display else f"<span>{mathml(inline)}</span>"

    return FORMULA.sub(replaced, page)


def mathml(formula: str, *, block: bool = False) -> str:
    """A formula as one element."""
    tokens = iter(TOKEN.findall(formula))
    how = ' display="block"' if block else ""
    return f"<math{how}><mrow>{''.join(_items(tokens, ''))}</mrow></math>"


def _items(tokens: Iterator[str], end: str) -> list[str]:
    """The elements up to ``end``, each with its index and exponent."""
    items: list[dict[str, str]] = []
    for part in tokens:
        if part == end:
            break
        if part == "'":
            items[-1]["^"] = f"<mo>{html5['prime;']}</mo>"
        elif part in ("^", "_"):
            items[-1][part] = _argument(tokens)
        else:
            items.append({"": _element(part, tokens)})
    else:
        if end:
            raise ValueError(f"a formula lacks {end}")
    return [_scripted(item) for item in items]


def _scripted(item: dict[str, str]) -> str:
    """An element with its index and exponent."""
    match sorted(item):
        case [_]:
            return item[""]
        case [_, "^"]:
            return f"<msup>{item['']}{item['^']}</msup>"
        case [_, "_"]:
            return f"<msub>{item['']}{item['_']}</msub>"
    return f"<msubsup>{item['']}{item['_']}{item['^']}</msubsup>"


def _argument(tokens: Iterator[str]) -> str:
    return _element(next(tokens), tokens)


def _element(part: str, tokens: Iterator[str]) -> str:
    if part[0].isdigit():
        return f"<mn>{part}</mn>"
    if part == "{":
        return f"<mrow>{''.join(_items(tokens, '}'))}</mrow>"
    if part.isalpha():
        return f"<mi>{part}</mi>"
    name = part.removeprefix("\\")
    if name in OPERATORS:
        return f"<mo>{html5[OPERATORS[name] + ';']}</mo>"
    if part == name or not name.isalpha():
        space = SPACES.get(name) if part != name else None
        return f"<mspace width='{space}'></mspace>" if space else f"<mo stretchy='false'>{escape(name)}</mo>"
    match name:
        case "frac":
            return f"<mfrac>{_argument(tokens)}{_argument(tokens)}</mfrac>"
        case "sqrt":
            return f"<msqrt>{_argument(tokens)}</msqrt>"
        case "mathrm":
            return f"<mi mathvariant='normal'>{re.sub('<.*?>', '', _argument(tokens))}</mi>"
        case "left" | "right":
            return f"<mo>{escape(next(tokens))}</mo>"
    if name in SPACES:
        return f"<mspace width='{SPACES[name]}'></mspace>"
    if name in NAMES:
        return f"<mi mathvariant='normal'>{name}</mi>"
    letter = name.removeprefix("var")
    if letter in LETTERS:
        return f"<mi>{html5[letter + ';']}</mi>"
    raise ValueError(f"formulas have no {part}")
