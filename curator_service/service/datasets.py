"""The owner's tables: register, list, archive."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from curator_service import store
from curator_service.datasets import Limits, Table, read_csv, read_parquet
from curator_service.settings import Settings
from curator_service.vault import Vault, new_id
from shared import wire
from shared.audit import sha256
from shared.errors import NotFound
from shared.serving.desk import Asked, Desk, Effect
from shared.serving.store.base import moment, stamp
from shared.serving.store.database import Connection
from shared.serving.store.replies import StoredReply


@dataclass(frozen=True, slots=True)
class Upload:
    """What an owner says of a file."""

    name: str
    public: bool
    columns: list[str] | None
    filename: str


class Datasets:
    """Registered tables; their values never leave."""

    def __init__(self, desk: Desk, vault: Vault, settings: Settings) -> None:
        self._desk = desk
        self._vault = vault
        self._limits = Limits(settings.dataset_rows_max, settings.dataset_columns_max)
        self._import_dir = settings.import_dir

    def register(self, asked: Asked, upload: Upload, file: BinaryIO) -> StoredReply:
        """Check a whole file and store its numbers. Raises DatasetInvalid, and stores nothing."""
        digest = _digest(file)
        # A multipart body has a random boundary: what was asked is the file and what is said of it.
        said = json.dumps([*asdict(upload).values(), digest])
        asked = replace(asked, body_sha256=sha256(said.encode()))
        if (found := self._desk.earlier(asked)) is not None:
            return found
        read = read_parquet if upload.filename.lower().endswith(".parquet") else read_csv
        table = read(file, self._limits, upload.columns)
        identity = new_id("ds")
        try:
            self._vault.keep_dataset(identity, table.values)
            reply = self._desk.once(asked, lambda db: self._add(db, identity, upload, table, digest))
        except BaseException:
            self._vault.drop(identity)
            raise
        if reply.replayed:  # two requests with one key at once: the other one's file counts
            self._vault.drop(identity)
        return reply

    def _add(self, db: Connection, identity: str, upload: Upload, table: Table, digest: str) -> Effect:
        store.insert(
            db,
            store.datasets,
            id=identity,
            name=upload.name,
            public=int(upload.public),
            rows=len(table.values),
            columns=json.dumps([column.model_dump() for column in _columns(table)]),
            dropped=json.dumps(table.dropped),
            sha256=digest,
            created_at=stamp(self._desk.clock()),
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

    def one(self, identity: str) -> wire.DatasetView:
        """One dataset."""
        with self._desk.database.read() as db:
            return dataset_view(store.find(db, store.datasets, identity))

    def page(self, after: int, limit: int) -> list[tuple[int, wire.DatasetView]]:
        """Datasets with their sequence numbers."""
        with self._desk.database.read() as db:
            return [(row.seq, dataset_view(row)) for row in store.page(db, store.datasets, after=after, limit=limit)]

    def archive(self, asked: Asked, identity: str) -> StoredReply:
        """Allow no new study on a dataset; studies that exist go on."""

        def effect(db: Connection) -> Effect:
            if store.find(db, store.datasets, identity).archived_at is None:
                store.change(db, store.datasets, identity, archived_at=stamp(self._desk.clock()))
            view = dataset_view(store.find(db, store.datasets, identity))
            return Effect(view, "dataset.archived", {"dataset_id": identity}, 200)

        return self._desk.once(asked, effect)


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


def _columns(table: Table) -> list[wire.Column]:
    low, high = table.values.min(axis=0), table.values.max(axis=0)
    return [
        wire.Column(name=name, minimum=float(a), maximum=float(b))
        for name, a, b in zip(table.names, low, high, strict=True)
    ]


def _digest(file: BinaryIO) -> str:
    sha = hashlib.sha256()
    while chunk := file.read(1 << 20):
        sha.update(chunk)
    file.seek(0)
    return sha.hexdigest()
