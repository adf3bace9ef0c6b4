"""Answers of a study against the features of their records, and how much each feature matters: for the owner alone.

Computed on request, and neither stored nor sent to a vendor.
"""

import itertools
from collections import defaultdict
from dataclasses import dataclass
from math import exp
from threading import Lock
from typing import Any

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.errors import Busy, NumericalFailure
from blindopt.gp.fitting import ANSWERS_MIN, FitProblem, fit, suggest_hyper, typical_distances
from blindopt.gp.marginal_likelihood import Evidence
from curator_service import store
from curator_service.privacy.measurement.groups import clipped_mean
from curator_service.queries import table as inbox_store
from curator_service.releases.groups import centres
from curator_service.studies.release_cache import Released, ReleasedStudies
from service_kit.context.context import ServiceContext
from service_kit.context.exclusive import exclusive
from service_kit.store import stored_replies
from service_kit.store.database import Connection

NATS_A_PARAMETER = 3
"""What a fit to pure noise may gain in predicting each answer from the others, for each of its d + 2 parameters: in 24
such fits (t = 51 and 150, d = 3) it was 0.03 to 2.7."""
QUERIES_MAX, POINTS_MAX = 1_000, 2_000
FITTED_MAX, FEATURES_MAX, STEPS_MAX = 150, 20, 400
_METHOD = (
    "A Gaussian process is fitted to the newest answers, with a length-scale for each feature. The relevance of a "
    "feature is its share of the squared distances that the fitted process sees: its variance over the answered "
    "records, divided by its squared length-scale, as a part of the sum over all features. It is a guess, and a poor "
    "one after few answers."
)
_OF_ALL = "Counted from the exact outcomes of all candidates, not from a model."
_OF_QUERIED = (
    "Counted from measured outcomes, not from a model. How good other records are is not known here: a vendor's "
    "recommendation says what its model expects."
)
_PRIVACY = (
    "This is made from your records and stays with you, so no budget counts it. What you then do in public, "
    "such as other bounds, other features or a word to a vendor, can reveal what it shows."
)


@dataclass(frozen=True, slots=True, repr=False)
class _Answered:
    """Released answers, oldest first: candidates (t,), their y (t,) and the variances of the noise in them (t,)."""

    rows: list[int]
    y: Vector
    noise: Vector


class FeatureResults:
    """Reads answers and records; fits one study at a time, in a bounded number of steps."""

    def __init__(self, context: ServiceContext, studies: ReleasedStudies) -> None:
        self._context = context
        self._studies = studies
        self._fitting = Lock()

    def view(self, study_id: str) -> wire.StudyResults:
        """The results of a study by feature. Raises NotFound, StudyNotOpen before the release, Busy while one fits."""
        with self._context.database.read() as db:
            released = self._studies.of(db, study_id)
            answered = _answered(db, study_id)
            measured = _measured(db, study_id, released, answered.rows)
            good = _good(db, study_id, released, measured)
        spec = released.spec
        values = _values(released, answered.rows)
        if released.groups is not None:
            values = centres(self._studies.vault, released, answered.rows)
        with exclusive(self._fitting, 0, Busy("other results are being computed: try again in a moment", seconds=2)):
            relevance, problem = _relevance(spec, values, answered)
        shown = range(max(0, len(answered.rows) - POINTS_MAX), len(answered.rows))
        return wire.StudyResults(
            study_id=study_id,
            answers=len(answered.rows),
            fitted=0 if relevance is None else min(len(answered.rows), FITTED_MAX),
            method=_METHOD,
            problem=problem,
            privacy=_PRIVACY,
            good=good,
            features=[
                wire.FeatureResult(
                    column=feature.column,
                    relevance=None if relevance is None else relevance[j],
                    points=[
                        wire.FeaturePoint(
                            row=answered.rows[i],
                            value=float(values[i, j]),
                            y=float(answered.y[i]),
                            measured=measured.get(answered.rows[i]),
                        )
                        for i in shown
                    ],
                )
                for j, feature in enumerate(spec.features)
            ],
        )


def _good(db: Connection, study_id: str, released: Released, measured: dict[int, float]) -> wire.GoodRecords | None:
    """What vendors found, from the outcomes that the owner knows; of a column those of all candidates."""
    goal, outcome = released.spec.goal, released.spec.measurement
    if not isinstance(goal, wire.FindMany):
        return None
    sign, values = 1 if outcome.direction == "maximize" else -1, np.array(list(measured.values()))
    threshold, share, label = goal.threshold, goal.share, _OF_QUERIED
    if isinstance(outcome, wire.ColumnMeasurement):
        every = sign * np.array(list(_measured(db, study_id, released, list(range(released.n))).values()))
        if share is not None and len(every):
            threshold = sign * float(np.quantile(every, 1 - share, method="higher"))
        share, label = float(np.mean(every >= sign * (threshold or 0.0))) if len(every) else None, _OF_ALL
    return wire.GoodRecords(
        found=None if threshold is None else int(np.count_nonzero(sign * values >= sign * threshold)),
        queried=len(values),
        threshold=threshold,
        by_chance=None if share is None else share * len(values),
        label=label,
    )


def _answered(db: Connection, study_id: str) -> _Answered:
    """The answers to the newest queries of a study, as they were released."""
    rows, y, noise = list[int](), list[float](), list[float]()
    for query in reversed(store.newest_queries(db, study_id, QUERIES_MAX)):
        if (body := _body(db, query)) is None:
            continue
        for answer in wire.QueryReply.model_validate_json(body).answers:
            rows.append(answer.row)
            y.append(answer.y)
            noise.append(noise_variance(answer))
    return _Answered(rows, np.array(y), np.array(noise))


def noise_variance(answer: wire.Answer) -> float:
    """The variance of the noise in an answer, as far as it is known."""
    passport = answer.passport
    of_measurement = passport.measurement_variance if passport.measurement_variance_known else 0.0
    return (passport.privacy.variance or 0.0) + of_measurement


def _body(db: Connection, query: Any) -> bytes | None:
    """The last answer to a query as it was released; None while there is none."""
    if (version := inbox_store.latest(db, query.id)) is not None:
        return bytes(version.body)
    reply = stored_replies.find(db, query.grant_id, query.idempotency_key, None)
    return reply.reply.body if reply is not None and reply.reply.status == 201 else None


def _measured(db: Connection, study_id: str, released: Released, rows: list[int]) -> dict[int, float]:
    """The exact value of each candidate where its owner sees it: of a column, or the mean of those in the inbox."""
    if isinstance(released.spec.measurement, wire.ColumnMeasurement):
        if released.groups is not None:
            spec = released.spec.answers
            assert isinstance(spec, wire.LaplaceAnswers)
            means = {row: clipped_mean(released.values_of(released.members(row)), spec) for row in set(rows)}
            return {row: mean for row, mean in means.items() if mean is not None}
        return dict(zip(rows, released.values_of(released.order[rows]).tolist(), strict=True)) if rows else {}
    entered: dict[int, list[float]] = defaultdict(list)
    for measurement, entry in inbox_store.answers_about(db, study_id, set(rows)):
        if entry.value is not None:
            entered[measurement.row].append(entry.value)
    return {row: float(np.mean(values)) for row, values in entered.items()}


def _values(released: Released, rows: list[int]) -> Matrix:
    """The features of candidates (t, d), each in its own unit."""
    columns = [released.names.index(feature.column) for feature in released.spec.features]
    if not rows or released.groups is not None:
        return np.empty((0, len(columns)))
    values: Matrix = released.records[released.order[rows]][:, columns]
    return values


def _relevance(spec: wire.StudyCreate, values: Matrix, answered: _Answered) -> tuple[list[float] | None, str | None]:
    """The relevance of each feature, or why there is none."""
    d = len(spec.features)
    if d > FEATURES_MAX:
        return None, f"Relevance is computed for {FEATURES_MAX} features at most."
    needed = max(ANSWERS_MIN, 2 * d)
    if len(set(answered.rows[-FITTED_MAX:])) < needed:
        return None, f"Relevance needs answers about {needed} candidates."
    low, high = (np.array([getattr(feature, end) for feature in spec.features]) for end in ("lower", "upper"))
    last = slice(-FITTED_MAX, None)
    points = np.ascontiguousarray(((np.clip(values, low, high) - low) / (high - low))[last])
    y, steps = answered.y[last], itertools.count(1)
    if not np.ptp(y) > 0:
        return None, "All answers are equal: no feature matters so far."

    def tick() -> None:
        if next(steps) > STEPS_MAX:
            raise NumericalFailure("the fit is cut off: the best so far counts")

    distances = typical_distances(points)
    free = np.ones(len(y), dtype=np.bool_)
    evidence = Evidence(points, np.array(answered.rows[last]), y, answered.noise[last], free)
    start = suggest_hyper(y, exp(float(np.mean(np.log(distances)))))
    kind = spec.kernel.kind if spec.kernel is not None else "squared_exponential"
    law = wire.NoiseLaw(family="none")
    try:
        fitted = fit(FitProblem(evidence, kind, law, start, wire.Fit(starts=2), distances), [0], tick)
    except NumericalFailure:
        return None, "Relevance cannot be computed from these answers."
    gain = (fitted.check.log_density - fitted.check.baseline) * len(y)
    if gain <= NATS_A_PARAMETER * (d + 2):
        return None, "These answers do not show yet which features matter: their mean predicts them about as well."
    hyper = fitted.hyper
    shares = points.var(axis=0) / np.array(hyper.lengthscales or (hyper.lengthscale,)) ** 2
    total = float(shares.sum())
    return [float(share) / total if total > 0 else 0.0 for share in shares], None
