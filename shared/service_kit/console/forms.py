"""What a person sent with a form: texts, files, the key that makes a double submit one; and what is wrong with it."""

import hmac
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from starlette.datastructures import FormData, UploadFile

from service_kit.console.api import ApiProblem, Upload

KEY = "_key"
CSRF = "_csrf"
_KEY_LENGTH = 32


def fresh_key() -> str:
    """An idempotency key for one rendering of a form."""
    return secrets.token_hex(_KEY_LENGTH // 2)


@dataclass(frozen=True, slots=True)
class Form:
    """Fields as they were sent or are to be shown. Readers collect what is wrong in ``errors``.

    A page reads all it needs, then looks at ``ok``; if it is false, it shows the form again.
    """

    key: str
    values: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, UploadFile] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    problem: ApiProblem | None = None

    @classmethod
    def blank(cls, **values: object) -> Self:
        """A form that is first shown, with these defaults."""
        return cls(fresh_key(), {name: [_shown(v)] for name, v in values.items() if v is not None})

    @classmethod
    def of(cls, data: FormData) -> Self:
        """What was sent. Control characters but line ends and tabs are dropped."""
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
        found = self.values.get(name)
        return found[0].strip() if found else default

    def all(self, name: str) -> list[str]:
        """Every text of a field that is there several times."""
        return self.values.get(name, [])

    def has(self, name: str) -> bool:
        """Whether a checkbox is ticked."""
        return name in self.values

    def text(self, name: str, what: str = "This") -> str:
        """A text that must be there; else an error beside its field, and ''."""
        if not (found := self.get(name)):
            self.errors[name] = f"{what} is needed"
        return found

    def real(self, name: str, *, needed: bool = True) -> float | None:
        """A finite number; else an error beside its field, and None."""
        text = self._number(name, needed=needed)
        try:
            value = None if text is None else float(text.replace("_", "?"))  # what Python takes and people do not write
        except ValueError:
            value = math.nan
        if value is not None and not math.isfinite(value):
            self.errors[name] = "Write a number, such as 0.25 or 1e-5"
            return None
        return value

    def integer(self, name: str, *, needed: bool = True) -> int | None:
        """A whole number; else an error beside its field, and None."""
        text = self._number(name, needed=needed)
        if text is None:
            return None
        if len(text) > 18 or not text.removeprefix("-").isdecimal():
            self.errors[name] = "Write a whole number, such as 10"
            return None
        return int(text)

    def _number(self, name: str, *, needed: bool) -> str | None:
        text = self.get(name)
        if not text and needed:
            self.errors[name] = "A number is needed"
        return text or None

    def file(self, name: str) -> Upload | None:
        """A file that must be there; else an error beside its field, and None."""
        if name not in self.files:
            self.errors[name] = "Choose a file"
            return None
        return Upload.of(self.files[name])

    # --- what is wrong ----------------------------------------------------------------------------

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong so far."""
        return not self.errors and self.problem is None

    def wrong(self, name: str, message: str) -> None:
        """Something is wrong with a field."""
        self.errors[name] = message

    def failed(self, problem: ApiProblem, names: Mapping[str, str] | None = None) -> "Form":
        """The form to show again, with what the API found wrong beside its fields, and a fresh key.

        ``names`` maps where the API says it is (``release.epsilon``) to a field's name; by itself it is looked for
        whole, then by its last part.
        """
        errors = dict(self.errors)
        for found in problem.problem.errors or []:
            where = found.field or ""
            chosen = (names or {}).get(where) or (where if where in self.values else where.rpartition(".")[2])
            errors.setdefault(chosen, found.message)
        return replace(self, key=fresh_key(), errors=errors, problem=problem)

    def again(self) -> "Form":
        """The form to show again after ``wrong``, with a fresh key."""
        return replace(self, key=fresh_key())


def same(one: str, other: str) -> bool:
    """Constant-time comparison of texts."""
    return hmac.compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))


def _shown(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else repr(value).replace("e-0", "e-")


def encodable(text: str) -> str:
    """Text whose halves of characters, which a form's charset may hold and no UTF-8 can, are marked as unreadable."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _cleaned(text: str) -> str:
    return "".join(c for c in encodable(text) if c in "\r\n\t" or ord(c) >= 32)
