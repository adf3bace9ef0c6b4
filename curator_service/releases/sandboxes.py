"""Sandboxes: studies on made-up rows with the settings of a real study, whose dataset is charged nothing.

Rows and values are made up from public values alone, whoever is in the real dataset. Everything is drawn from the
operating system's entropy. Nothing here is a secret, and no seed is kept.
"""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.audit.merkle_log import sha256
from blindopt.errors import StateConflict
from blindopt.formats import npy_files
from curator_service import store
from curator_service.datasets.datasets import dataset_view
from curator_service.datasets.scaling import ScaledRows
from curator_service.datasets.statistics import Statistics
from curator_service.privacy import entropy
from curator_service.releases.mechanisms.registry import planned_mechanism
from curator_service.releases.releases import Releases
from curator_service.studies import public_kernels
from curator_service.studies.studies import add_draft, fitted, owner_view
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.identity.tokens import new_id
from service_kit.store import audit_log
from service_kit.store.base import stamp
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply

_NAME_MAX = 200


class Sandboxes:
    """Makes sandboxes from public values alone: specifications, and numbers of rows. No record is read."""

    def __init__(self, context: ServiceContext, vault: Vault, releases: Releases) -> None:
        self._context = context
        self._vault = vault
        self._releases = releases

    def make(self, request: RequestContext, study_id: str) -> StoredReply:
        """Make up a dataset and a study on it with the settings of a draft or an open study, and release that.

        The dataset of the study is charged nothing. A repeated request goes on where a crash interrupted it. Raises
        StateConflict for a study that is closed, being released, or itself a sandbox; and what a release raises.
        """
        if (stored := self._context.idempotency.earlier(request)) is not None:
            return stored
        key, _ = self._context.idempotency.key_of(request)
        draft = self._made(replace(request, key=f"sandbox of {sha256(key.encode())}"), study_id)
        return self._releases.release(request, wire.StudyOwnerView.model_validate_json(draft.body).id)

    def _made(self, request: RequestContext, study_id: str) -> StoredReply:
        """The reply with the draft of the sandbox, which is made once for this key."""
        if (stored := self._context.idempotency.earlier(request)) is not None:
            return stored
        with self._context.database.read() as db:
            source = _source(db, study_id)
        dataset_id, statistics = new_id("ds"), Statistics()
        try:
            self._vault.keep_dataset(dataset_id, statistics.collect(draw_blocks(source.spec, source.n)))
            if source.persons is not None:
                self._vault.keep_persons(dataset_id, draw_persons(source.n, source.spec.rows_per_person))
                self._vault.keep_numbers(dataset_id, np.arange(1, source.n + 1))
            digest = npy_files.digest(self._vault.records(dataset_id))

            def effect(db: Connection) -> Effect:
                if _source(db, study_id) != source:
                    raise StateConflict("the draft was changed meanwhile: look at it again, then make the sandbox")
                self._add_dataset(db, request, source, dataset_id, statistics, digest)
                return self._add_study(db, study_id, _like(source.spec, dataset_id))

            reply = self._context.idempotency.once(request, effect)
        except BaseException:
            self._vault.drop(dataset_id)
            raise
        if reply.replayed:  # two requests with one key at once: the other one's file counts
            self._vault.drop(dataset_id)
        return reply

    def _add_dataset(
        self,
        db: Connection,
        request: RequestContext,
        source: "_Source",
        dataset_id: str,
        statistics: Statistics,
        digest: str,
    ) -> None:
        spec, k = source.spec, source.spec.rows_per_person
        columns = statistics.columns([*(feature.column for feature in spec.features), _outcome(spec)])
        now = self._context.clock()
        details = store.register(
            db,
            id=dataset_id,
            name=f"Sandbox: {spec.name}"[:_NAME_MAX],
            public=1,
            sandbox=1,
            rows=statistics.rows,
            columns=json.dumps([column.model_dump() for column in columns]),
            dropped="[]",
            sha256=digest,
            created_at=stamp(now),
            person_column=source.persons,
            rows_per_person=None if source.persons is None else k,
            persons=None if source.persons is None else -(-source.n // k),
            person_rows_dropped=None if source.persons is None else 0,
        )
        details |= {"sandbox": True, "account": dataset_id}
        audit_log.append(db, "dataset.registered", actor=request.principal.actor, now=now, details=details)

    def _add_study(self, db: Connection, source: str, spec: wire.StudyCreate) -> Effect:
        spec = fitted(spec, dataset_view(store.find(db, store.datasets, spec.dataset_id)))
        planned_mechanism(spec)  # raises Invalid
        details = add_draft(db, spec, stamp(self._context.clock())) | {"sandbox_of": source}
        return Effect(owner_view(db, details["study_id"]), "study.created", details)


@dataclass(frozen=True, slots=True)
class _Source:
    """All that a sandbox is made from: settings, the number of rows, and the name of the person column, if any."""

    spec: wire.StudyCreate
    n: int
    persons: str | None


def _source(db: Connection, study_id: str) -> _Source:
    row = store.find(db, store.studies, study_id)
    if row.state not in ("draft", "open"):
        raise StateConflict(f"the study is {row.state}: a sandbox is made of a draft or an open study")
    dataset = store.find(db, store.datasets, row.dataset_id)
    if dataset.sandbox:
        raise StateConflict("the study is a sandbox itself")
    return _Source(wire.StudyCreate.model_validate_json(row.spec), int(dataset.rows), dataset.person_column)


def _like(spec: wire.StudyCreate, dataset_id: str) -> wire.StudyCreate:
    """The same settings on a made-up dataset, whose y is a column: answers come at once."""
    measurement = wire.ColumnMeasurement(
        column=_outcome(spec), direction=spec.measurement.direction, noise_variance=spec.measurement.noise_variance
    )
    name = f"Sandbox: {spec.name}"[:_NAME_MAX]
    changed = {"name": name, "dataset_id": dataset_id, "measurement": measurement, "release_of": None}
    return spec.model_copy(update=changed)


def _outcome(spec: wire.StudyCreate) -> str:
    """The name of the made-up column of y: that of the study, or else y, which no feature has."""
    if isinstance(spec.measurement, wire.ColumnMeasurement):
        return spec.measurement.column
    taken, name = {feature.column for feature in spec.features}, "y"
    while name in taken:
        name += "_"
    return name


WAVES = 300
BLOCK_ROWS = 16_384
_DEGREES = {"matern_12": 1, "matern_32": 3, "matern_52": 5}


@dataclass(frozen=True, slots=True)
class DrawnFunction:
    """A function with the covariance of a kernel: f(x) = sqrt(2 v / m) sum_j cos(w_j . x + b_j), m waves.

    w_j is drawn from the kernel's spectral density: normal with standard deviation 1 / lengthscale, and for a Matern
    kernel of order k/2 divided by sqrt(chi^2_k / k), which makes it a Student's t. Source: Rahimi & Recht (2007),
    Algorithm 1.
    """

    frequencies: Matrix
    phases: Vector
    amplitude: float

    @classmethod
    def draw(cls, kernel: wire.Kernel, d: int, waves: int = WAVES) -> "DrawnFunction":
        """A fresh function of ``d`` features in scaled units."""
        frequencies = entropy.gaussian_matrix(d, waves) / kernel.lengthscale
        if (degrees := _DEGREES.get(kernel.kind)) is not None:
            frequencies = frequencies / np.sqrt(np.mean(entropy.gaussian_matrix(degrees, waves) ** 2, axis=0))
        phases: Vector = 2 * np.pi * entropy.uniform_matrix(waves, 1)[:, 0]
        return cls(frequencies, phases, sqrt(2 * kernel.signal_variance / waves))

    def __call__(self, x: Matrix) -> Vector:
        """Values at scaled rows ``x`` (n, d): (n,)."""
        values: Vector = self.amplitude * np.cos(x @ self.frequencies + self.phases).sum(axis=1)
        return values


def draw_blocks(study: wire.StudyCreate, n: int, block_rows: int = BLOCK_ROWS) -> Iterator[Matrix]:
    """``n`` made-up records of a study, a block at a time: raw features, uniform in the declared bounds, and then y.

    y is a drawn function about the declared middle, clipped to the declared bounds of y: (rows, d + 1). Its kernel is
    the declared one, or else follows from the bounds.
    """
    kernel, features = public_kernels.middle(study), study.features
    function = DrawnFunction.draw(kernel, len(features))
    middle, low, high = _range_of_y(study, kernel)
    for start in range(0, n, block_rows):
        raw = _uniform(features, min(block_rows, n - start))
        scaled = ScaledRows(raw, list(range(len(features))), features, np.arange(len(raw)))
        for _, x in scaled.blocks(block_rows):
            y = np.clip(middle + function(x), low, high)
            yield np.column_stack([raw, y])


def draw_persons(n: int, k: int) -> NDArray[np.uint8]:
    """Made-up digests of the persons behind ``n`` rows (n, 16), k rows of each in turn; the last may have fewer."""
    persons = -(-n // k)
    digests = np.frombuffer(secrets.token_bytes(16 * persons), dtype=np.uint8).reshape(persons, 16)
    return np.repeat(digests, k, axis=0)[:n]


def _uniform(features: list[wire.Feature], n: int) -> Matrix:
    lower, upper = np.array([(feature.lower, feature.upper) for feature in features]).T
    rows: Matrix = lower + (upper - lower) * entropy.uniform_matrix(n, len(features))
    return rows


def _range_of_y(study: wire.StudyCreate, kernel: wire.Kernel) -> tuple[float, float, float]:
    """The middle of y, and its declared bounds: of answers, or else of measurements, or else none."""
    lower, upper = getattr(study.measurement, "lower", None), getattr(study.measurement, "upper", None)
    low, high = -np.inf if lower is None else lower, np.inf if upper is None else upper
    if not isinstance(study.answers, wire.NoAnswerNoise):
        centre, bound = study.answers.centre, study.answers.value_bound
        low, high = max(low, centre - bound), min(high, centre + bound)
        middle = centre
    else:
        middle = (lower + upper) / 2 if lower is not None and upper is not None else 0.0
    return (kernel.mean if study.kernel is not None else middle), low, high
