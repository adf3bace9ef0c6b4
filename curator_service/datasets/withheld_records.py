"""Which records of a dataset are withheld: they are measured and released no more."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindopt.errors import Erased
from curator_service import store
from curator_service.budget.ledger_lines import account_name
from curator_service.datasets import table as withheld
from curator_service.vault import Vault
from service_kit.store.database import Connection


def withheld_records(db: Connection, vault: Vault, dataset_id: str) -> list[int]:
    """The indices, from 0, of the stored records of a dataset that are withheld: by their number, or their person.

    Raises Erased.
    """
    dataset = store.find(db, store.datasets, dataset_id)
    if dataset.erased_at is not None:
        raise Erased("the dataset was erased by its owner")
    units = withheld.units(db, account_name(db, dataset))
    if not units:
        return []
    numbers, persons = withheld.numbers_and_persons(units)
    records = np.isin(file_numbers(vault, dataset), list(numbers))
    if persons and dataset.person_column is not None:
        records |= np.array([digest.tobytes() in persons for digest in vault.persons(dataset.id)])
    return [int(record) for record in np.flatnonzero(records)]


def file_numbers(vault: Vault, dataset: Any) -> NDArray[np.int64]:
    """The number in the file, from 1, of each stored record of a dataset (n,)."""
    return vault.numbers(dataset.id) if store.is_renumbered(dataset) else np.arange(1, dataset.rows + 1)


def kept_records(db: Connection, vault: Vault, dataset_id: str) -> NDArray[np.int64]:
    """The indices of the stored records that are not withheld, in the order of the file."""
    rows = int(store.find(db, store.datasets, dataset_id).rows)
    return np.delete(np.arange(rows), withheld_records(db, vault, dataset_id))
