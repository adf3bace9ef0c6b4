"""Who is behind each record of a dataset: the unit that the dataset's account and the ledger of answers count by."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator_service.persons import numbers_of
from curator_service.vault import Vault


def persons_of(vault: Vault, dataset: Any) -> NDArray[np.int64] | None:
    """The number of the person behind each record (n,), from 0; None where each record is a person of its own.

    ``dataset``: its row of the table. Numbers are those of one registration.
    """
    if dataset.person_column is None:
        return None
    return numbers_of(vault.persons(dataset.id))
