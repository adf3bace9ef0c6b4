"""Who is in several files: persons by their keyed digests, else records by keyed digests of their values.

Digests of records are computed for a comparison, and stored nowhere. Each array has 16 bytes a record.
"""

import hmac
import json
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator_service import store
from curator_service.salted_digests import DIGEST_BYTES
from curator_service.vault import Vault
from service_kit.context.keys import Seal

_BLOCK = 16_384
NEVER = b"\x00" * DIGEST_BYTES
"""In the place of the digest of a record that matches none."""
Digests = NDArray[np.void]
Labels = list[NDArray[np.int64]]
"""By file, the label of each unit: units of several files that have one label may be the same person."""


class People:
    """Compares the people of datasets."""

    def __init__(self, vault: Vault, seal: Seal) -> None:
        self._vault, self._seal = vault, seal

    def digests(self, dataset: Any, other: Any) -> tuple[Digests, Digests] | None:
        """The digest of each unit in both: of persons, or of values in the columns that both have, by name.

        A column that only counts rows of either file says nothing of a person: it tells apart alone what is equal in
        whole records. If one has further columns, equal values alone may be chance: then a record counts if its values
        are its own in each file, and the digest of any other is zero in one and empty in the other, so that they never
        match.
        """
        if dataset.person_column is not None and other.person_column is not None:
            ids = [self._vault.persons(row.id) for row in (dataset, other)]
            written = [self._vault.spellings(row.id) for row in (dataset, other)]
            if (written[0] is None) != (written[1] is None):  # ids of one of them were never folded
                ids = [folded if spelled is None else spelled for folded, spelled in zip(ids, written, strict=True)]
            return void_digests(ids[0]), void_digests(ids[1])
        names = [store.column_names(row) for row in (dataset, other)]
        common = sorted(set(names[0]) & set(names[1]))
        are_whole = set(names[0]) == set(names[1])
        counters = self._counters(dataset, common) | self._counters(other, common)
        columns = [name for name in common if name not in counters]
        if not columns and are_whole and len(common) > 1:
            columns = common  # ranks, perhaps, of which several agree
        if not columns:
            return None
        first, second = (self.of_records(row, columns) for row in (dataset, other))
        if not are_whole:
            first[_repeated(first)] = np.void(NEVER)
            second[_repeated(second)] = np.void(b"\xff" * DIGEST_BYTES)
        elif counters:
            in_several = np.concatenate([digests[_repeated(digests)] for digests in (first, second)])
            for row, digests in ((dataset, first), (other, second)):
                several = np.isin(digests, in_several)
                digests[several] = self.of_records(row, common)[several]
        return first, second

    def named(self, dataset: Any, persons: Iterable[bytes]) -> set[bytes]:
        """The digests of a dataset's persons whom these digests name, of a folded id or of one as it is written."""
        digests, spellings = void_digests(self._vault.persons(dataset.id)), self._vault.spellings(dataset.id)
        names = np.array([np.void(digest) for digest in persons], dtype=digests.dtype)
        is_named = np.isin(digests, names)
        if spellings is not None:
            is_named |= np.isin(void_digests(spellings), names)
        return {digest.tobytes() for digest in np.unique(digests[is_named])}

    def _counters(self, dataset: Any, columns: Sequence[str]) -> set[str]:
        """Which of the columns only count the rows of a dataset's file, from 0 or 1, in any order."""
        rows = dataset.rows + (dataset.rows_left_out or 0) + (dataset.person_rows_dropped or 0)
        stored, values = store.column_names(dataset), self._vault.dataset(dataset.id)
        counters = set()
        for name in columns:
            column = values[:, stored.index(name)]
            if column.min() < 0 or column.max() > rows or (column % 1).any():
                continue
            if np.bincount(column.astype(np.int64)).max() == 1:
                counters.add(name)
        return counters

    def of_records(self, dataset: Any, columns: Sequence[str]) -> Digests:
        """The digest of each record's values in ``columns`` (n,)."""
        stored = store.column_names(dataset)
        positions, values = [stored.index(name) for name in columns], self._vault.dataset(dataset.id)
        key = hmac.digest(self._seal.key_for("records"), json.dumps(columns).encode(), "sha256")
        digests = np.empty((len(values), DIGEST_BYTES), dtype=np.uint8)
        for start in range(0, len(values), _BLOCK):
            block = np.ascontiguousarray(values[start : start + _BLOCK][:, positions] + 0.0, dtype="<f8")  # no -0.0
            of_block = b"".join(hmac.digest(key, record.tobytes(), "sha256")[:DIGEST_BYTES] for record in block)
            digests[start : start + len(block)] = np.frombuffer(of_block, dtype=np.uint8).reshape(-1, DIGEST_BYTES)
        return void_digests(digests)

    def labels(self, files: Sequence[Sequence[tuple[Any, NDArray[np.int64]]]], sizes: Sequence[int]) -> Labels:
        """Label the units of files: whatever matches, directly or over a third file, has one label.

        Each file has its registrations, with the unit of each of their records; ``sizes`` are the numbers of units.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        first_units = np.cumsum([0, *sizes])
        nodes, units, digests = int(first_units[-1]), [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for (f, first), (g, second) in combinations(enumerate(files), 2):
            for (dataset, numbers), (other, others) in product(first, second):
                if (pair := self.digests(dataset, other)) is None:
                    continue
                both = np.intersect1d(*pair)
                for of_records, start, digest in (
                    (numbers, first_units[f], pair[0]),
                    (others, first_units[g], pair[1]),
                ):
                    matched = np.isin(digest, both)
                    units.append(start + of_records[matched])
                    digests.append(nodes + np.searchsorted(both, digest[matched]))
                nodes += len(both)
        edges = np.concatenate(units), np.concatenate(digests)
        graph = coo_array((np.ones(len(edges[0]), dtype=np.int8), edges), shape=(nodes, nodes))
        labels = connected_components(graph, directed=False)[1].astype(np.int64)
        return np.split(labels[: first_units[-1]], first_units[1:-1])


def void_digests(digests: NDArray[np.uint8]) -> Digests:
    """Digests (n, 16) as one item each (n,)."""
    return np.ascontiguousarray(digests).view(f"V{DIGEST_BYTES}").reshape(-1)


def _repeated(digests: Digests) -> NDArray[np.bool_]:
    """Which digests another record of the file has too."""
    _, inverse, counts = np.unique(digests, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse] > 1)
