"""The owner's tables: register, list, archive."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from blindopt import wire
from blindopt.arrays import Matrix, Vector
from blindopt.audit.merkle_log import sha256
from blindopt.errors import NotFound
from curator_service import store
from curator_service.datasets import Limits, Table, read_csv, read_parquet
from curator_service.privacy import record_cautions
from curator_service.settings import Settings
from curator_service.vault import Vault, new_id
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply


@dataclass(frozen=True, slots=True)
class Upload:
    """An owner's description of a file."""

    name: str
    public: bool
    columns: list[str] | None
    filename: str


@dataclass(slots=True)
class _Statistics:
    """Number of rows, and smallest and largest value of each column (columns,)."""

    rows: int = 0
    low: Vector = field(default_factory=lambda: np.array([np.inf]))
    high: Vector = field(default_factory=lambda: np.array([-np.inf]))

    def collect(self, blocks: Iterable[Matrix]) -> Iterator[Matrix]:
        """The blocks unchanged; their statistics are collected while they pass."""
        for block in blocks:
            self.rows += len(block)
            self.low = np.minimum(self.low, block.min(axis=0))
            self.high = np.maximum(self.high, block.max(axis=0))
            yield block

    def columns(self, names: list[str]) -> list[wire.Column]:
        return [
            wire.Column(name=name, minimum=float(a), maximum=float(b))
            for name, a, b in zip(names, self.low, self.high, strict=True)
        ]


class Datasets:
    """Registered tables; their values never leave."""

    def __init__(self, context: ServiceContext, vault: Vault, settings: Settings) -> None:
        self._context = context
        self._vault = vault
        self._limits = Limits(settings.dataset_rows_max, settings.dataset_columns_max)
        self._import_dir = settings.import_dir

    def register(self, request: RequestContext, upload: Upload, file: BinaryIO) -> StoredReply:
        """Check a whole file and store its numbers. Raises DatasetInvalid, and stores nothing."""
        digest = _digest(file)
        # A multipart body has a random boundary: the same request is the same file with the same description.
        body = json.dumps([*asdict(upload).values(), digest])
        request = replace(request, body_sha256=sha256(body.encode()))
        if (stored := self._context.idempotency.earlier(request)) is not None:
            return stored
        read = read_parquet if upload.filename.lower().endswith(".parquet") else read_csv
        identity = new_id("ds")
        try:
            with read(file, self._limits, upload.columns) as table:
                statistics = _Statistics()
                self._vault.keep_dataset(identity, statistics.collect(table.blocks))
            reply = self._context.idempotency.once(
                request, lambda db: self._add(db, identity, upload, table, statistics, digest)
            )
        except BaseException:
            self._vault.drop(identity)
            raise
        if reply.replayed:  # two requests with one key at once: the other one's file counts
            self._vault.drop(identity)
        return reply

    def _add(
        self, db: Connection, identity: str, upload: Upload, table: Table, statistics: _Statistics, digest: str
    ) -> Effect:
        store.insert(
            db,
            store.datasets,
            id=identity,
            name=upload.name,
            public=int(upload.public),
            rows=statistics.rows,
            columns=json.dumps([column.model_dump() for column in statistics.columns(table.names)]),
            dropped=json.dumps(table.dropped),
            sha256=digest,
            created_at=stamp(self._context.clock()),
        )
        view = dataset_view(store.find(db, store.datasets, identity))
        return Effect(view, "dataset.registered", {"dataset_id": identity, "public": upload.public})

    def import_path(self, name: str) -> Path:
        """A file of the import folder by its bare name. Raises NotFound."""
        path = self._import_dir / name if self._import_dir is not None else None
        try:
            usable = path is not None and Path(name).name == name and not path.is_symlink() and path.is_file()
        except (OSError, ValueError):  # a name that no file can have
            usable = False
        if path is None or not usable:
            raise NotFound("the import folder holds no such file, or none is configured")
        return path

    def view(self, identity: str) -> wire.DatasetView:
        """A dataset as its owner sees it. Raises NotFound."""
        with self._context.database.read() as db:
            return dataset_view(store.find(db, store.datasets, identity))

    def page(self, after: int, limit: int) -> list[tuple[int, wire.DatasetView]]:
        """Datasets with their sequence numbers."""
        with self._context.database.read() as db:
            return [(row.seq, dataset_view(row)) for row in store.page(db, store.datasets, after=after, limit=limit)]

    def archive(self, request: RequestContext, identity: str) -> StoredReply:
        """Refuse new studies on a dataset; existing ones continue."""

        def effect(db: Connection) -> Effect:
            if store.find(db, store.datasets, identity).archived_at is None:
                store.change(db, store.datasets, identity, archived_at=stamp(self._context.clock()))
            view = dataset_view(store.find(db, store.datasets, identity))
            return Effect(view, "dataset.archived", {"dataset_id": identity}, 200)

        return self._context.idempotency.once(request, effect)


def dataset_view(row: Any) -> wire.DatasetView:
    """A stored dataset as its owner sees it."""
    return wire.DatasetView(
        id=row.id,
        name=row.name,
        public=bool(row.public),
        state="archived" if row.archived_at else "active",
        rows=row.rows,
        columns=[wire.Column(**column) for column in json.loads(row.columns)],
        dropped=json.loads(row.dropped),
        sha256=row.sha256,
        created_at=moment(row.created_at),
    )


def cautions_from_records(spec: wire.StudyCreate, dataset: wire.DatasetView) -> list[wire.Caution]:
    """Cautions about a study that follow from the values of its records, for the owner alone; none if it is public."""
    if dataset.public:
        return []
    return record_cautions.of_bounds(spec, {c.name: (c.minimum, c.maximum) for c in dataset.columns})


def _digest(file: BinaryIO) -> str:
    sha = hashlib.sha256()
    while chunk := file.read(1 << 20):
        sha.update(chunk)
    file.seek(0)
    return sha.hexdigest()
