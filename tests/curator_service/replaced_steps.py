"""Steps of a curator's requests that a test waits in, interrupts or watches, each for the length of a test."""

from collections.abc import Callable
from typing import Any

import pytest

from curator_service.queries import queries
from curator_service.releases import attack_preview
from curator_service.vault import Vault


def replace_measuring(monkeypatch: pytest.MonkeyPatch, measure: Callable[..., Any]) -> None:
    """``measure`` in place of the measurement of a column with its noise."""
    monkeypatch.setattr(queries, "measure", measure)


def replace_preview(monkeypatch: pytest.MonkeyPatch, attempt: Callable[..., Any]) -> None:
    """``attempt`` in place of the process that assesses and attacks a draft."""
    monkeypatch.setattr(attack_preview, "attempt", attempt)


def replace_kept_release(monkeypatch: pytest.MonkeyPatch, keep: Callable[..., Any]) -> None:
    """``keep(keep_release, *arguments)`` in place of ``keep_release`` of the vault, which is its first argument."""
    right = Vault.keep_release
    monkeypatch.setattr(Vault, "keep_release", lambda *arguments: keep(right, *arguments))
