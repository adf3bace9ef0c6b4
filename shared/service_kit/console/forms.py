"""A form that was sent: its texts and files, its idempotency key, and the errors in its fields."""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from starlette.datastructures import FormData, UploadFile

from blindopt.formats.numbers import readings
from service_kit.console.api import ApiProblem, Upload
from service_kit.console.words import plain

KEY = "_key"
CSRF = "_csrf"
READING = "reading_"
"""Begins the name of a button that says how the number in a field is meant."""
_KEY_LENGTH = 32


def fresh_key() -> str:
    """A new idempotency key for one rendering of a form."""
    return secrets.token_hex(_KEY_LENGTH // 2)


@dataclass(frozen=True, slots=True)
class Form:
    """Fields as they were sent or are to be shown. Readers collect errors by field in ``errors``.

    A page reads all the fields it needs, then checks ``ok``. If it is false, the page shows the form again.
    """

    key: str
    values: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, UploadFile] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    problem: ApiProblem | None = None
    unclear: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields whose number can be read in two ways, with both; a button sends the one that is meant."""
    labels: dict[str, str] = field(default_factory=dict)
    """The label of each field on the page, as the page was rendered: errors are listed by it."""

    @classmethod
    def blank(cls, **values: object) -> Self:
        """A form to show for the first time, with these defaults."""
        return cls(fresh_key(), {name: [_shown(v)] for name, v in values.items() if v is not None})

    @classmethod
    def of(cls, data: FormData) -> Self:
        """The form that was sent. Control characters are dropped, except line ends and tabs."""
        values: dict[str, list[str]] = {}
        files: dict[str, UploadFile] = {}
        for name, value in data.multi_items():
            if isinstance(value, UploadFile):
                if value.filename:
                    files[name] = value
            else:
                values.setdefault(name, []).append(_cleaned(value))
        (key,) = values.pop(KEY, [""])[:1]
        values.pop(CSRF, None)
        return cls(key if len(key) == _KEY_LENGTH and key.isalnum() else "", values, files)

    # --- reading ----------------------------------------------------------------------------------

    def get(self, name: str, default: str = "") -> str:
        """The text of a field, without spaces around it."""
        texts = self.values.get(name)
        return texts[0].strip() if texts else default

    def all(self, name: str) -> list[str]:
        """Every text of a field that may be repeated."""
        return self.values.get(name, [])

    def has(self, name: str) -> bool:
        """Whether a checkbox is ticked."""
        return name in self.values

    def text(self, name: str, what: str = "This") -> str:
        """A required text. If it is missing, record an error and return an empty text."""
        if not (text := self.get(name)):
            self.errors[name] = f"{what} is needed"
        return text

    def real(self, name: str, *, needed: bool = True) -> float | None:
        """A finite number, with a decimal point or comma. Otherwise record an error and return None.

        A number that can be read in two ways is asked back, and its reading is taken from a button of the page.
        """
        if (text := self._number(name, needed=needed)) is None:
            return None
        meanings = readings(text)
        if len(meanings) > 1:
            meanings = tuple(value for value in meanings if _shown(value) == self.get(f"{READING}{name}"))
            if not meanings:
                self.unclear[name] = tuple(_shown(value) for value in readings(text))
                self.errors[name] = f"{text.replace(',', '.')} or {text}? The comma can be read in both ways"
                return None
            self.values[name] = [_shown(meanings[0])]
        if not meanings:
            self.errors[name] = "Enter a number, such as 0.25 or 1e-5"
            return None
        return meanings[0]

    def interval(self, lower: str, upper: str, least: str = "the lower bound") -> tuple[float | None, float | None]:
        """Two numbers, of which the second must be larger: ``least`` names the first. Otherwise record errors."""
        ends = self.real(lower), self.real(upper)
        if ends[0] is not None and ends[1] is not None and not ends[0] < ends[1]:
            self.wrong(upper, f"Must be larger than {least}")
        return ends

    def integer(self, name: str, *, needed: bool = True) -> int | None:
        """A whole number. Otherwise record an error and return None."""
        text = self._number(name, needed=needed)
        if text is None:
            return None
        if len(text) > 18 or not text.removeprefix("-").isdecimal():
            self.errors[name] = "Enter a whole number, such as 10"
            return None
        return int(text)

    def _number(self, name: str, *, needed: bool) -> str | None:
        text = self.get(name)
        if not text and needed:
            self.errors[name] = "Enter a number"
        return text or None

    def file(self, name: str) -> Upload | None:
        """A required file. If it is missing, record an error and return None."""
        if name not in self.files:
            self.errors[name] = "Choose a file"
            return None
        return Upload.of(self.files[name])

    # --- errors -----------------------------------------------------------------------------------

    @property
    def ok(self) -> bool:
        """Whether there is no error so far."""
        return not self.errors and self.problem is None

    def wrong(self, name: str, message: str) -> None:
        """Record an error of a field."""
        self.errors[name] = message

    def failed(self, problem: ApiProblem, names: Mapping[str, str] | None = None) -> "Form":
        """The form to show again, with the errors of the API beside its fields, and a new key.

        ``names`` maps a field of the API (``release.epsilon``) to a field of the form. Without an entry, the field of
        the form has the same name, or the name of its last part.
        """
        errors = dict(self.errors)
        for fault in problem.problem.errors or []:
            path = fault.field or ""
            name = (names or {}).get(path) or (path if path in self.values else path.rpartition(".")[2])
            errors.setdefault(name, plain(fault.message))
        return replace(self, key=fresh_key(), errors=errors, problem=problem)

    def label(self, name: str, text: str) -> str:
        """Note the label of a field while the page is rendered; an empty text, for the template."""
        self.labels[name] = text
        return ""

    def again(self) -> "Form":
        """The form to show again after ``wrong``, with a new key."""
        return replace(self, key=fresh_key())


def same(first: str, second: str) -> bool:
    """Compare texts in constant time."""
    return hmac.compare_digest(first.encode(errors="replace"), second.encode(errors="replace"))


def _shown(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else repr(value).replace("e-0", "e-")


def encodable(text: str) -> str:
    """Replace lone surrogates, which a form's charset may contain and UTF-8 cannot, by the replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _cleaned(text: str) -> str:
    return "".join(c for c in encodable(text) if c in "\r\n\t" or ord(c) >= 32)
