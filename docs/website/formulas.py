"""Formulas of pages, `$...$` in a line and `$$...$$` on lines of their own, as MathML, which browsers typeset."""

import re
from collections.abc import Iterator
from html import escape

SYMBOLS = {
    "alpha": "α", "delta": "δ", "epsilon": "ε", "varepsilon": "ε", "eta": "η", "omega": "ω", "phi": "ϕ", "pi": "π",
    "sigma": "σ", "tau": "τ", "Delta": "Δ", "Phi": "Φ", "infty": "∞", "ell": "ℓ", "lambda": "λ", "mu": "μ", "kappa": "κ",
    "gamma": "γ", "beta": "β", "theta": "θ", "rho": "ρ", "nu": "ν", "xi": "ξ", "Lambda": "Λ", "Sigma": "Σ", "top": "⊤",
}  # fmt: skip
OPERATORS = {
    "leq": "≤", "geq": "≥", "neq": "≠", "in": "∈", "sim": "∼", "pm": "±", "times": "×", "cdot": "·", "sum": "∑",
    "to": "→", "lfloor": "⌊", "rfloor": "⌋", "{": "{", "}": "}", "#": "#", "|": "‖", "approx": "≈", "cup": "∪", "ll": "≪",
}  # fmt: skip
NAMES = ("log", "ln", "exp", "max", "min", "sup", "cos", "sinh", "tanh", "Pr", "det")
SPACES = {",": "0.17em", ";": "0.28em", "quad": "1em", "qquad": "2em", "!": "-0.17em"}
TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9]+(?:[.,][0-9]+)*|\S")
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
    for token in tokens:
        if token == end:
            break
        if token in "^_'":
            items[-1]["_" if token == "_" else "^"] = _argument(tokens) if token != "'" else "<mo>′</mo>"
        else:
            items.append({"": _element(token, tokens)})
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
    token = next(tokens)
    return f"<mrow>{''.join(_items(tokens, '}'))}</mrow>" if token == "{" else _element(token, tokens)


def _text(tokens: Iterator[str]) -> str:
    """The letters of ``\\mathrm{...}``."""
    letters = []
    for token in tokens:
        if token == "}":
            break
        letters.append(token.strip("{"))
    return "".join(letters)


def _element(token: str, tokens: Iterator[str]) -> str:
    name = token.removeprefix("\\")
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    if token == "{":
        return f"<mrow>{''.join(_items(tokens, '}'))}</mrow>"
    if token.isalpha():
        return f"<mi>{token}</mi>"
    if not token.startswith("\\"):
        return f"<mo stretchy='false'>{escape({'-': '−', '*': '∗'}.get(token, token))}</mo>"
    match name:
        case "frac":
            return f"<mfrac>{_argument(tokens)}{_argument(tokens)}</mfrac>"
        case "sqrt":
            return f"<msqrt>{_argument(tokens)}</msqrt>"
        case "mathrm":
            return f"<mi mathvariant='normal'>{_text(tokens)}</mi>"
        case "left" | "right":
            return f"<mo>{escape(next(tokens).removeprefix(chr(92)))}</mo>"
    if name in SPACES:
        return f"<mspace width='{SPACES[name]}'></mspace>"
    if name in NAMES:
        return f"<mi mathvariant='normal'>{name}</mi>"
    if name in SYMBOLS:
        return f"<mi>{SYMBOLS[name]}</mi>"
    if name in OPERATORS:
        return f"<mo stretchy='false'>{escape(OPERATORS[name])}</mo>"
    raise ValueError(f"formulas have no \\{name}")
