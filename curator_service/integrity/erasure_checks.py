"""Check erasures against the audit log: what is erased is what the log says, and nothing of it is left."""

from collections import Counter
from collections.abc import Iterator

from blindopt.audit.merkle_log import Json
from blindopt.errors import LogBroken
from curator_service import store
from curator_service.erasure import table as erasures
from service_kit.store import audit_log
from service_kit.store.database import Connection

_COUNTED = ("queries", "measurements", "replies", "messages")


class ErasureLogSummary:
    """Datasets that were erased, with their studies. Other summaries look here what they cannot check any more."""

    kinds = ("dataset.erased",)

    def __init__(self) -> None:
        self.datasets: set[str] = set()
        self.studies: set[str] = set()
        self._counts: Counter[str] = Counter()

    def follow(self, record: Json) -> None:
        """Take the next record of the log."""
        details = record["details"]
        self.datasets.add(details["dataset_id"])
        self.studies |= set(details["studies"])
        self._counts.update({name: details[name] for name in _COUNTED})

    def check(self, db: Connection) -> Iterator[LogBroken]:
        """Yield a dataset that is erased where the log does not say so, or the reverse."""
        stored = set(erasures.erased(db))
        for identity in sorted(stored - self.datasets):
            yield LogBroken(f"dataset {identity} is erased, and the log does not say so")
        for identity in sorted(self.datasets - stored):
            if store.registered(db, identity) is not None:
                yield LogBroken(f"dataset {identity} is stored, and the log says that it was erased")
        if erasures.erased_studies(db) - self.studies:
            raise LogBroken("a study is on an erased dataset, and the log does not say that it was erased")
        if remaining := erasures.still_there(db, sorted(self.studies)):
            raise LogBroken(f"{remaining} entries of the inbox were erased, and hold values or notes")

    @property
    def words(self) -> str:
        """What was erased, for who verifies; empty if nothing was."""
        if not self.datasets:
            return ""
        counts = ", ".join(f"{self._counts[name]} {name}" for name in _COUNTED)
        return f"erased: {len(self.datasets)} datasets with {len(self.studies)} studies, {counts}"


def erased_in_words(db: Connection) -> str:
    """What was erased, by the log, for who verifies; empty if nothing was."""
    summary = ErasureLogSummary()
    for record in audit_log.of_kind(db, *ErasureLogSummary.kinds):
        summary.follow(record)
    return summary.words
