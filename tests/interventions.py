"""What a test does at one step of a program for as long as its monkeypatch lasts: fail, act before it, or after it.

A step is a function of a module or a method of a class or an object, by its owner and its name. The step itself runs
as it is, which a fake could not: use these for crashes, for full disks, and for what happens meanwhile.
"""

from collections.abc import Callable
from typing import Any

import pytest


def _nothing(*arguments: Any, **named: Any) -> None:
    """The default before and after a step."""


def act_around(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    before: Callable[..., Any] = _nothing,
    after: Callable[..., Any] = _nothing,
) -> None:
    """Call ``before`` and ``after`` with the arguments of each call of a step. Before may raise, then it does not run.

    For a coroutine function, after comes when the coroutine has been made.
    """
    step = getattr(owner, name)

    def act(*arguments: Any, **named: Any) -> Any:
        before(*arguments, **named)
        result = step(*arguments, **named)
        after(*arguments, **named)
        return result

    monkeypatch.setattr(owner, name, act)


def act_before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[..., Any]) -> None:
    """Call ``act`` with the arguments of each call of a step, before it."""
    act_around(monkeypatch, owner, name, before=act)


def act_after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[..., Any]) -> None:
    """Call ``act`` with the arguments of each call of a step that did not raise, after it."""
    act_around(monkeypatch, owner, name, after=act)


def record_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[tuple[Any, ...]]:
    """The positional arguments of each call of a step from now on. The step runs as it is."""
    calls: list[tuple[Any, ...]] = []
    act_before(monkeypatch, owner, name, lambda *arguments, **named: calls.append(arguments))
    return calls


def fail_at(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException | type[BaseException]
) -> list[tuple[Any, ...]]:
    """Raise ``error`` in place of a step, as a crash or a full disk does. Returns the arguments of each call."""
    calls: list[tuple[Any, ...]] = []

    def fail(*arguments: Any, **named: Any) -> None:
        calls.append(arguments)
        raise error

    act_before(monkeypatch, owner, name, fail)
    return calls
