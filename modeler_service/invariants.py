"""What must hold between the modeler's tables and its log, whatever happened: part of `audit verify`."""

from collections.abc import Iterable

from modeler_service import store
from shared.audit import Json
from shared.errors import LogBroken
from shared.serving.store.database import Connection


def check(db: Connection, records: Iterable[Json]) -> None:
    """Every answered trial has the exchange that answered it. Raises LogBroken."""
    answered: set[str] = set()
    for record in records:
        exchange = record.get("exchange")
        if exchange and exchange["method"] == "POST" and exchange["status"] == 201:
            answered.add(str(exchange["idempotency_key"]))
    for trial in store.answered_trials(db):
        if f"{trial.run_id}:{trial.number}" not in answered:
            raise LogBroken(f"trial {trial.number} of {trial.run_id} has an answer that the log does not tell")
