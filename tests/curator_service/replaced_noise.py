"""Entropy, noise and mechanisms that a test puts in the place of the curator's own, each for the length of a test.

The curator has no switch for any of them: noise that is missing, halved or repeated must show, and these put it there.
"""

import os
import secrets
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from opendp import measurements

from curator_service.privacy import answers as answer_mechanisms
from curator_service.privacy import entropy, noise
from curator_service.privacy.answers import AnswerMechanism
from curator_service.privacy.measurement import groups
from curator_service.releases.mechanisms import groups as release_groups
from curator_service.releases.mechanisms import private_centres
from curator_service.releases.mechanisms.private_centres import PrivateCentres
from curator_service.releases.mechanisms.row_noise import PublicGrid


def replace_entropy(monkeypatch: pytest.MonkeyPatch, urandom: Callable[[int], bytes]) -> None:
    """``urandom`` in place of the operating system's entropy, for all that reads it by ``os.urandom``."""
    monkeypatch.setattr(os, "urandom", urandom)


def entropy_in_parts(monkeypatch: pytest.MonkeyPatch, parts: Iterable[bytes]) -> list[bytes]:
    """Entropy that is ``parts`` one after the other, each of which must be read whole. Returns those not read yet."""
    unread = list(parts)

    def urandom(size: int) -> bytes:
        part = unread.pop(0)
        assert len(part) == size
        return part

    replace_entropy(monkeypatch, urandom)
    return unread


def without_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read of entropy raises OSError, also those by ``secrets`` and ``random``."""

    def fail(size: int) -> bytes:
        raise OSError("no entropy")

    replace_entropy(monkeypatch, fail)
    monkeypatch.setattr("random._urandom", fail)


def replace_secrets(monkeypatch: pytest.MonkeyPatch, **draws: Callable[[int], Any]) -> None:
    """``draws`` in place of the functions of ``secrets`` that have their names."""
    for name, draw in draws.items():
        monkeypatch.setattr(secrets, name, draw)


def leave_decisions_to_decimals(monkeypatch: pytest.MonkeyPatch, sampler: ModuleType) -> None:
    """An error of doubles so large that no decision of a sampler is certain by them."""
    monkeypatch.setattr(sampler, "EXP_ERROR", 50.0)


def replace_discrete_laplace(
    monkeypatch: pytest.MonkeyPatch, sampled_by: ModuleType, draw: Callable[[int, float], np.ndarray]
) -> None:
    """``draw(count, scale)`` in place of the discrete Laplace noise of a module."""
    monkeypatch.setattr(sampled_by, "integers", draw)


def replace_gaussian_matrix(monkeypatch: pytest.MonkeyPatch, draw: Callable[[int, int], np.ndarray]) -> None:
    """``draw`` in place of the secret Gaussian matrix of a projection."""
    monkeypatch.setattr(entropy, "gaussian_matrix", draw)


def replace_opendp_maker(monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[..., Any]) -> None:
    """``make`` in place of a maker of measurements of OpenDP."""
    monkeypatch.setattr(measurements, name, make)


def replace_opendp_account(monkeypatch: pytest.MonkeyPatch, name: str, cost: Callable[[Any], float]) -> None:
    """A measurement of OpenDP that accounts ``cost`` for a distance. To draw from it is an error."""
    library = type("Library", (), {"map": lambda self, distance: cost(distance)})
    replace_opendp_maker(monkeypatch, name, lambda *args, **options: library())


def replace_integer_laplace(
    monkeypatch: pytest.MonkeyPatch,
    add: Callable[[list[int], int, Any], list[int]],
    *modules: ModuleType,
) -> None:
    """``add`` in place of the noise of groups: of their numbers, answers and private centres, or in ``modules``."""
    for module in modules or (release_groups, groups, private_centres):
        monkeypatch.setattr(module, "add_integer_laplace", add)


def replace_moves_of_centres(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[tuple[int, ...]], tuple[int, ...]]
) -> None:
    """Sensitivities of private centres that are ``change`` of the right ones."""
    right: Any = PrivateCentres.moves
    monkeypatch.setattr(PrivateCentres, "moves", property(lambda self: change(right.fget(self))))


def replace_moves_of_group_answers(monkeypatch: pytest.MonkeyPatch, move: Callable[[Any], int]) -> None:
    """``move`` in place of the sensitivity of answers about groups."""
    monkeypatch.setattr(groups.GroupAnswers, "move", property(move))


def replace_answer_release(monkeypatch: pytest.MonkeyPatch, release: Callable[[Any, np.ndarray], np.ndarray]) -> None:
    """``release`` in place of every law of answers."""
    monkeypatch.setattr(AnswerMechanism, "release", release)


def replace_measurement_noise(monkeypatch: pytest.MonkeyPatch, add: Callable[[Any, float], np.ndarray]) -> None:
    """``add(values, sd)`` in place of the normal noise of measurements."""
    monkeypatch.setattr(noise, "add_gaussian", add)


def replace_answer_mechanism(monkeypatch: pytest.MonkeyPatch, mechanism_of: Callable[..., AnswerMechanism]) -> None:
    """Answers by another mechanism than the study says: ``mechanism_of(answers, persons=1)``."""
    monkeypatch.setattr(answer_mechanisms, "mechanism_of", mechanism_of)


def forget_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that are clipped nowhere."""
    monkeypatch.setattr(np, "clip", lambda values, low, high: values)


def forget_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases that are not rounded to the public grid."""
    monkeypatch.setattr(PublicGrid, "round", lambda self, block: block)
