"""Arguments of public functions: each is what its annotation says, or Invalid says what it must be."""

import inspect
import operator
from collections.abc import Callable, Iterable, Sized
from contextlib import suppress
from functools import wraps
from numbers import Integral
from pathlib import Path
from types import FunctionType, NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, SupportsFloat, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel

from blindopt.errors import Invalid

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
SECONDS_MAX = 1e9
SIGNATURE_MAX = 250
"""Characters up to which a signature is shown with the types of its parameters."""
_SECONDS = "_s"
"""Ends the names of arguments in seconds."""
_NO = object()
"""What a value is read as that is not of a kind."""
_CONTAINERS = {list: "a list", tuple: "a list", dict: "a dict", bytes: "bytes"}


class _Kind(NamedTuple):
    """One type of an annotation: in words, and how a value is read as it, ``_NO`` if it is none."""

    words: str
    read: Callable[[Any], Any]


def checked(function: F) -> F:
    """Check the arguments of ``function`` by its annotations, as static types do: flags, numbers, texts, models.

    Numbers of numpy become those of Python. A flag is no number, and a number in seconds is from 0 to SECONDS_MAX.

    >>> @checked
    ... def double(number: int) -> int:
    ...     return 2 * number
    >>> double("2")
    Traceback (most recent call last):
    blindopt.errors.Invalid: number must be a whole number
    Correct what the message names, and the other faults in errors, if there are any.
    """
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    kinds = {p.name: kinds for p in parameters if p.kind != p.VAR_KEYWORD and (kinds := _kinds(p.annotation))}

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        positional = [_read(name, kinds.get(name), value) for name, value in zip(names, args, strict=False)]
        named = {name: _read(name, kinds.get(name), value) for name, value in options.items()}
        return function(*positional, *args[len(names) :], **named)

    return cast(F, short_signature(call))


def short_signature(function: F) -> F:
    """Let help show names and defaults alone where the types are long, as of a class; docstrings say what each takes.

    So the first line of help can be read at a glance.
    """
    signature, is_class = inspect.signature(function), function.__name__ == "__init__"
    if is_class or len(str(signature)) > SIGNATURE_MAX:
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        returned = signature.empty if is_class else signature.return_annotation
        function.__signature__ = inspect.Signature(bare, return_annotation=returned)  # type: ignore[attr-defined]
    return function


def checked_methods(cls: type[T]) -> type[T]:
    """Check the arguments of a class's own public methods."""
    for name, member in list(vars(cls).items()):
        if isinstance(member, classmethod) and not name.startswith("_"):
            setattr(cls, name, classmethod(checked(member.__func__)))
        elif isinstance(member, FunctionType) and not name.startswith("_"):
            setattr(cls, name, checked(member))
    return cls


def _read(name: str, kinds: list[_Kind] | None, value: Any) -> Any:
    if kinds is None:
        return value
    for kind in kinds:
        if (argument := kind.read(value)) is not _NO:
            if name.endswith(_SECONDS) and isinstance(argument, float) and not 0 <= argument <= SECONDS_MAX:  # NaN too
                raise Invalid.at(name, f"must be a number of seconds from 0 to {SECONDS_MAX:.0e}")
            return argument
    *most, last = [kind.words for kind in kinds]
    raise Invalid.at(name, f"must be {', '.join(most)} or {last}" if most else f"must be {last}")


def _kinds(annotation: Any) -> list[_Kind]:
    """The kinds that an annotation allows; none if it allows all."""
    members = list(_members(annotation))
    kinds = [_kind_of(member) for member in members]
    return [kind for kind in kinds if kind is not None] if all(kinds) and members else []


def _members(annotation: Any) -> Iterable[Any]:
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    elif origin is Annotated:
        yield from _members(get_args(annotation)[0])
    else:
        yield annotation


def _kind_of(member: Any) -> _Kind | None:
    if member in _SCALARS:
        return _SCALARS[member]
    origin = get_origin(member) or member
    if getattr(origin, "__name__", "") == "ndarray":
        (scalar,) = get_args(get_args(member)[1])
        is_whole = "integer" in [base.__name__ for base in scalar.__mro__]
        words = f"an array of {'whole numbers' if is_whole else 'numbers'}"
        return _Kind(words, lambda value: _array(value, "iu" if is_whole else "fiu"))
    if origin is Literal:
        options = get_args(member)
        return _Kind(f"one of {', '.join(map(repr, options))}", lambda value: _option(options, _plain(value)))
    if not isinstance(origin, type) or origin in (Any, object, inspect.Parameter.empty) or _is_protocol(origin):
        return None
    if issubclass(origin, BaseModel):
        words = f"a {origin.__name__}"
    else:
        words = next((words for kind, words in _CONTAINERS.items() if issubclass(kind, origin)), f"a {origin.__name__}")

    def read(value: Any) -> Any:
        is_text = isinstance(value, str | bytes) and origin not in (str, bytes)
        is_list = words == "a list" and hasattr(value, "tolist")
        return value if (isinstance(value, origin) and not is_text) or is_list else _NO

    return _Kind(words, read)


def _array(value: Any, kinds: str) -> Any:
    """A list or an array as one of numpy, which is imported for a list alone; a mask would be ignored."""
    if isinstance(value, list | tuple):
        from numpy import asarray

        with suppress(ValueError):
            value = asarray(value)
    is_array = getattr(value, "ndim", 0) and hasattr(value, "strides") and not hasattr(value, "mask")
    return value if is_array and value.dtype.kind in kinds else _NO


def _is_protocol(kind: type) -> bool:
    return bool(getattr(kind, "_is_protocol", False))


def _plain(value: Any) -> Any:
    """The number of Python that a number of another library is."""
    try:
        return value.tolist() if getattr(value, "shape", None) == () else value
    except Exception:  # another library's
        return value


def _option(options: tuple[Any, ...], value: Any) -> Any:
    return next((option for option in options if type(option) is type(value) and option == value), _NO)


def _flag(value: Any) -> Any:
    value = _plain(value)
    return value if isinstance(value, bool) else _NO


def _whole(value: Any) -> Any:
    value = _plain(value)
    return operator.index(value) if isinstance(value, Integral) and not isinstance(value, bool) else _NO


def number_of(value: Any) -> float | None:
    """A real number as a float; None for anything else: a flag, a text, a list of one, a number beyond the doubles."""
    if type(value) is float:  # a protocol takes longer to ask for than a kernel to build
        return value
    value = _plain(value)
    if not isinstance(value, SupportsFloat) or isinstance(value, bool | Sized):
        return None
    try:
        return float(value)
    except Exception:  # another library's
        return None


def _number(value: Any) -> Any:
    return _NO if (number := number_of(value)) is None else number


def _text(value: Any) -> Any:
    if not isinstance(value, str) or "\0" in value:
        return _NO
    try:
        value.encode()
    except UnicodeEncodeError:
        return _NO
    return value


_SCALARS: dict[Any, _Kind] = {
    None: _Kind("None", lambda value: value if value is None else _NO),
    NoneType: _Kind("None", lambda value: value if value is None else _NO),
    bool: _Kind("True or False", _flag),
    int: _Kind("a whole number", _whole),
    float: _Kind("a number", _number),
    str: _Kind("text", _text),
    Path: _Kind("a path", lambda value: value if isinstance(value, Path) and _text(str(value)) is not _NO else _NO),
}
