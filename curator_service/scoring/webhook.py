"""Scores from a program in the owner's network, for any model: asked over HTTP, a number for each point.

The owner promises that the number is a mean over the m private records of a score of each that lies in the declared
range: then replacing a record moves it by at most the range over m. Nothing here can check that.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

from shared.client import ScorerClient
from shared.errors import NumericalFailure, ProtocolViolated, Unreachable

FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Webhook:
    """How one tuning asks its scorer. A retry carries the same idempotency key, so that work is not done twice."""

    client: ScorerClient
    tuning_id: str
    model: str
    attempts: int
    sleep: Callable[[float], None] = time.sleep

    def score(self, number: int, point: Mapping[str, float]) -> float:
        """The score of evaluation ``number`` at a point.

        Raises Unreachable after the last attempt, ProtocolViolated for a reply that is no score, NumericalFailure
        for one that is not finite. Their texts hold no score.
        """
        key = f"{self.tuning_id}:{number}"
        said = {"tuning_id": self.tuning_id, "evaluation": number, "model": self.model, "hyperparameters": dict(point)}
        body = json.dumps(said).encode()
        wait_s = FIRST_WAIT_SECONDS
        for left in reversed(range(self.attempts)):
            try:
                return _number(self.client.ask(body, key=key, at=int(time.time())))
            except Unreachable as error:
                if not left:
                    raise Unreachable(f"the scorer failed {self.attempts} times, the last time: {error}") from None
            except ProtocolViolated as error:
                raise ProtocolViolated(f"the scorer broke the protocol: {error}") from None
            self.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_SECONDS)
        raise AssertionError("there is a last attempt")


def _number(reply: bytes) -> float:
    """The score of a reply ``{"score": 0.5}``. NaN, in any spelling that parsers take, is told as what it is."""
    try:
        told = json.loads(reply)["score"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ProtocolViolated('the reply must be {"score": <number>}') from None
    if isinstance(told, bool) or not isinstance(told, int | float):
        raise ProtocolViolated('the reply must be {"score": <number>}')
    try:
        value = float(told)
    except OverflowError:
        value = float("inf")
    if not isfinite(value):
        raise NumericalFailure("the scorer told a score that is not a finite number")
    return value
