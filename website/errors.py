"""The list of error codes, from the classes of errors."""

import re

from blindopt import errors


def known_codes() -> dict[str, tuple[int, str, bool]]:
    """Every code of a problem document: its status, its title, and whether a retry can help."""
    from http import HTTPStatus

    from service_kit.web.problems import HTTP_CODES

    codes = {code: (status, HTTPStatus(status).phrase, False) for status, code in HTTP_CODES.items()}
    kinds = [errors.BlindoptError]
    for kind in kinds:
        kinds += [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
        codes[kind.code] = (kind.status, kind.title, kind.retryable)
    codes["internal"] = (500, errors.BlindoptError.title, False)  # that of Remote is another party's code
    return codes


def with_statuses(page: str) -> str:
    """The page on errors, with the status and title of each code under its heading."""

    def line(match: re.Match[str]) -> str:
        status, title, retryable = known_codes()[match[1]]
        retry = "A retry can help." if retryable else "A retry does not help."
        return f"{match[0]}\n\n*{status}: {title}. {retry}*"

    return re.sub(r"^### `([a-z_]+)`$", line, page, flags=re.MULTILINE)
