"""Scores of any model from a program in the owner's network, over HTTP: a number for each point.

The owner promises that the number is a mean, over exactly the m private records, of a score of each that lies in the
declared range and depends on that record and public models alone. Then replacing a record moves it by at most the range
over m. The curator cannot check that. It sends the dataset and m, so that the scorer can.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from blindopt.arrays import Vector
from blindopt.client import WebhookClient
from blindopt.client.webhook import WebhookReply
from blindopt.errors import ProtocolViolated, TuningFailed, Unreachable
from service_kit.notices.webhooks import Retries, json_number, json_object

RETRIES = Retries(first_s=0.2, longest_s=30.0)


@dataclass(frozen=True, slots=True)
class Webhook:
    """Requests of one tuning to its scorer. A retry has the same idempotency key, so that work is not done twice."""

    client: WebhookClient
    tuning_id: str
    model: str
    attempts: int
    validation_dataset_id: str
    records: int
    """m, in the validation dataset."""
    by_record: bool = False
    """Whether the scorer replies with the score of each record; else with their mean."""
    sleep: Callable[[float], None] = time.sleep

    def score(self, number: int, point: Mapping[str, float]) -> Vector | float:
        """The score of evaluation ``number`` at a point, or that of each record (m,). It may not be finite.

        Raises TuningFailed after the last attempt, and for a reply that is no score. Its text quotes no score.
        """
        request = {
            "tuning_id": self.tuning_id,
            "evaluation": number,
            "model": self.model,
            "hyperparameters": dict(point),
            "validation_dataset_id": self.validation_dataset_id,
            "records": self.records,
        }
        failures = 0
        while True:
            try:
                return self._read(self.client.post(json.dumps(request).encode(), key=f"{self.tuning_id}:{number}"))
            except Unreachable as error:
                failures += 1
                if failures == self.attempts:
                    raise TuningFailed(f"the scorer failed {failures} times, at last: {error}") from None
            except ProtocolViolated as error:
                raise TuningFailed(f"the scorer broke the protocol: {error}") from None
            self.sleep(RETRIES.wait_s(failures))

    def _read(self, reply: WebhookReply) -> Vector | float:
        """The score of a reply ``{"score": 0.5}``, or those of ``{"scores": [0.5, ...]}``. NaN stays NaN.

        Raises Unreachable for a status that a retry may change, ProtocolViolated for what is no score.
        """
        if reply.status in (408, 409, 425, 429) or reply.status >= 500:
            raise Unreachable(f"the other party answered {reply.status}")
        if reply.status != 200:
            raise ProtocolViolated(f"the other party answered {reply.status}, which asking again would not mend")
        name, members = "scores" if self.by_record else "score", json_object(reply.body)
        if name not in members:
            raise ProtocolViolated(f'the reply must be a JSON object with "{name}"')
        if not self.by_record:
            return json_number(members[name], "a score")
        scores = members[name]
        if not isinstance(scores, list) or len(scores) != self.records:
            message = f'"scores" must be a list with a number for each of the {self.records} validation records'
            raise ProtocolViolated(message)
        return np.array([json_number(score, "a score") for score in scores])
