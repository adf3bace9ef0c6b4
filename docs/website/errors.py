"""The list of error codes, from the classes of errors."""

import re
from typing import NamedTuple

from blindopt import errors


class Code(NamedTuple):
    """An error code: its HTTP status, its title, whether a retry can help, and what to do."""

    status: int
    title: str
    retryable: bool
    advice: str


def known_codes() -> dict[str, Code]:
    """Every code that the programs use, by name."""
    return {
        code: Code(kind.status, kind.title, kind.retryable, kind.what_to_do) for code, kind in errors.BY_CODE.items()
    }


def with_statuses(page: str) -> str:
    """The page on errors, with the status and title of each code under its heading; codes that it lacks at its end."""
    codes = known_codes()
    written = re.findall(r"^### `([a-z_]+)`$", page, flags=re.MULTILINE)
    missing = sorted(codes.keys() - set(written))
    page += "".join(f"\n### `{code}`\n\n{codes[code].advice}\n" for code in missing)

    def line(match: re.Match[str]) -> str:
        code = codes[match[1]]
        retry = "A retry can help." if code.retryable else "A retry does not help."
        return f"{match[0]}\n\n*{code.status}: {code.title}. {retry}*"

    return re.sub(r"^### `([a-z_]+)`$", line, page, flags=re.MULTILINE)
