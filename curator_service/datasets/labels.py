"""Labels of records: texts such as a patient's number, for the people who measure and for the record's page alone.

They are stored as the records are, and encrypted besides: a sealed block for each 256 records of a dataset. Nothing
else of the service reads them, and no message of an error has one.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.errors import RecordChanged
from curator_service.datasets import table as stored
from curator_service.datasets.reading import label_of
from service_kit.context.keys import Seal
from service_kit.store.database import Connection

BLOCK = 256
Texts = list[str]
"""The labels of a record, in the order of the label columns."""


class Labels:
    """Reads and writes sealed labels."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def sealed(self, dataset_id: str, file: BinaryIO, records: NDArray[np.int64] | None = None) -> list[bytes]:
        """The sealed blocks of a file with a line of labels for each record; of these ``records``, if given."""
        file.seek(0)
        records_of_file: Iterator[bytes] = iter(file)
        if records is not None:
            numbers = set(records.tolist())
            records_of_file = (line for i, line in enumerate(file) if i in numbers)
        blocks = iter(lambda: [json.loads(line) for line in islice(records_of_file, BLOCK)], [])
        # A block says where it belongs: in another place it would be another record's.
        return [self._seal.close(json.dumps([dataset_id, i, block]).encode()) for i, block in enumerate(blocks)]

    def of(self, db: Connection, dataset_id: str, records: Iterable[int]) -> dict[int, Texts]:
        """The labels of stored records, by index. Raises RecordChanged for blocks that are not as they were stored."""
        indices = set(records)
        blocks = {number: self._opened(db, dataset_id, number) for number in {index // BLOCK for index in indices}}
        return {index: blocks[index // BLOCK][index % BLOCK] for index in indices}

    def shown(
        self, db: Connection, dataset_id: str, columns: Sequence[str], records: Iterable[int], shown: Collection[str]
    ) -> dict[int, list[wire.RecordText]]:
        """The labels of stored records with the names of their ``columns``: of those that are ``shown``."""
        if not set(columns) & set(shown):
            return {}
        return {
            index: [
                wire.RecordText(column=name, text=text)
                for name, text in zip(columns, texts, strict=True)
                if name in shown and text
            ]
            for index, texts in self.of(db, dataset_id, records).items()
        }

    def _opened(self, db: Connection, dataset_id: str, number: int) -> list[Texts]:
        if (sealed := stored.label_block(db, dataset_id, number)) is None:
            raise RecordChanged("the labels of this dataset are not what was stored")
        return self._read(dataset_id, number, sealed)

    def _read(self, dataset_id: str, number: int, sealed: bytes) -> list[Texts]:
        of, at, block = json.loads(self._seal.open(sealed))
        if (of, at) != (dataset_id, number):
            raise RecordChanged("the labels of this dataset are not what was stored")
        texts: list[Texts] = block
        return texts

    def all(self, db: Connection, dataset_id: str) -> Iterator[Texts]:
        for number, sealed in enumerate(stored.label_blocks(db, dataset_id)):
            yield from self._read(dataset_id, number, sealed)

    def find(self, db: Connection, dataset_id: str, label: str) -> list[int]:
        text = label_of(label)
        return [index for index, texts in enumerate(self.all(db, dataset_id)) if text and text in texts]
