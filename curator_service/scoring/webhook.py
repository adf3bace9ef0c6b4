"""Scores from a program in the owner's network, for any model: asked over HTTP, a number for each point.

The owner promises that the number is a mean, over exactly the m private records, of a score of each that lies in the
declared range and depends on that record and public models alone: then replacing a record moves it by at most the range
over m. Nothing here can check that; the scorer is told the dataset and m, so that it can.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from blindopt.arrays import Vector
from blindopt.client import WebhookClient
from blindopt.errors import ProtocolViolated, TuningFailed, Unreachable

FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Webhook:
    """How one tuning asks its scorer. A retry carries the same idempotency key, so that work is not done twice."""

    client: WebhookClient
    tuning_id: str
    model: str
    attempts: int
    validation_dataset_id: str
    records: int
    """m, in the validation dataset."""
    each: bool = False
    """Whether a score of each record is told; else their mean is."""
    sleep: Callable[[float], None] = time.sleep

    def score(self, number: int, point: Mapping[str, float]) -> Vector | float:
        """The score of evaluation ``number`` at a point, or of each record (m,). It may not be finite.

        Raises TuningFailed after the last attempt, and for a reply that is no score. Its text holds no score.
        """
        key = f"{self.tuning_id}:{number}"
        said = {
            "tuning_id": self.tuning_id,
            "evaluation": number,
            "model": self.model,
            "hyperparameters": dict(point),
            "validation_dataset_id": self.validation_dataset_id,
            "records": self.records,
        }
        body = json.dumps(said).encode()
        wait_s = FIRST_WAIT_SECONDS
        for left in reversed(range(self.attempts)):
            try:
                reply = self.client.ask(body, key=key, at=int(time.time()))
                return _all(reply, self.records) if self.each else _mean(reply)
            except Unreachable as error:
                if not left:
                    raise TuningFailed(f"the scorer failed {self.attempts} times, at last: {error}") from None
            except ProtocolViolated as error:
                raise TuningFailed(f"the scorer broke the protocol: {error}") from None
            self.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_SECONDS)
        raise AssertionError("there is a last attempt")


def _mean(reply: bytes) -> float:
    """The score of a reply ``{"score": 0.5}``; NaN in any spelling that parsers take stays what it is."""
    return _number(_member(reply, "score"))


def _all(reply: bytes, m: int) -> Vector:
    """The scores (m,) of a reply ``{"scores": [0.5, ...]}``."""
    told = _member(reply, "scores")
    if not isinstance(told, list) or len(told) != m:
        raise ProtocolViolated(f'"scores" must be a list with a number for each of the {m} validation records')
    return np.array([_number(score) for score in told])


def _member(reply: bytes, name: str) -> object:
    try:
        told = json.loads(reply)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict) or name not in told:
        raise ProtocolViolated(f'the reply must be a JSON object with "{name}"')
    return told[name]


def _number(told: object) -> float:
    if isinstance(told, bool) or not isinstance(told, int | float):
        raise ProtocolViolated("a score must be a number")
    try:
        return float(told)
    except OverflowError:
        return inf
