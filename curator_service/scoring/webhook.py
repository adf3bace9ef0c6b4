"""Scores of any model from a program in the owner's network, over HTTP: a number for each point.

The owner promises that the number is a mean, over exactly the m private records, of a score of each that lies in the
declared range and depends on that record and public models alone. Then replacing a record moves it by at most the range
over m. The curator cannot check that. It sends the dataset and m, so that the scorer can.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from blindopt.arrays import Vector
from blindopt.errors import ProtocolViolated, TuningFailed, Unreachable

if TYPE_CHECKING:
    from blindopt.client import WebhookClient

FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Webhook:
    """Requests of one tuning to its scorer. A retry has the same idempotency key, so that work is not done twice."""

    client: "WebhookClient"
    tuning_id: str
    model: str
    attempts: int
    validation_dataset_id: str
    records: int
    """m, in the validation dataset."""
    each: bool = False
    """Whether the scorer replies with the score of each record; else with their mean."""
    sleep: Callable[[float], None] = time.sleep

    def score(self, number: int, point: Mapping[str, float]) -> Vector | float:
        """The score of evaluation ``number`` at a point, or that of each record (m,). It may not be finite.

        Raises TuningFailed after the last attempt, and for a reply that is no score. Its text quotes no score.
        """
        key = f"{self.tuning_id}:{number}"
        request = {
            "tuning_id": self.tuning_id,
            "evaluation": number,
            "model": self.model,
            "hyperparameters": dict(point),
            "validation_dataset_id": self.validation_dataset_id,
            "records": self.records,
        }
        body = json.dumps(request).encode()
        wait_s = FIRST_WAIT_SECONDS
        for remaining in reversed(range(self.attempts)):
            try:
                reply = self.client.ask(body, key=key, at=int(time.time()))
                return _scores(reply, self.records) if self.each else _mean(reply)
            except Unreachable as error:
                if not remaining:
                    raise TuningFailed(f"the scorer failed {self.attempts} times, at last: {error}") from None
            except ProtocolViolated as error:
                raise TuningFailed(f"the scorer broke the protocol: {error}") from None
            self.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_SECONDS)
        raise AssertionError("there is a last attempt")


def _mean(reply: bytes) -> float:
    """The score of a reply ``{"score": 0.5}``. NaN, which the parser accepts, stays NaN."""
    return _number(_member(reply, "score"))


def _scores(reply: bytes, m: int) -> Vector:
    """The scores (m,) of a reply ``{"scores": [0.5, ...]}``."""
    scores = _member(reply, "scores")
    if not isinstance(scores, list) or len(scores) != m:
        raise ProtocolViolated(f'"scores" must be a list with a number for each of the {m} validation records')
    return np.array([_number(score) for score in scores])


def _member(reply: bytes, name: str) -> object:
    try:
        document = json.loads(reply)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or name not in document:
        raise ProtocolViolated(f'the reply must be a JSON object with "{name}"')
    return document[name]


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProtocolViolated("a score must be a number")
    try:
        return float(value)
    except OverflowError:
        return inf
