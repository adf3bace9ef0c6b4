"""Private bounds: quantiles of columns that are charged to the account of the dataset's file, then public."""

import json
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindopt import wire
from blindopt.arrays import Matrix
from blindopt.audit.merkle_log import sha256
from blindopt.errors import BudgetExhausted, Invalid, StateConflict
from curator_service import store
from curator_service.budget.budgets import Budgets
from curator_service.budget.ledger import Cost
from curator_service.datasets import table
from curator_service.datasets.columns import check_columns
from curator_service.datasets.records import kept_records
from curator_service.privacy.guarantees import of_bounds
from curator_service.privacy.quantiles import STEPS, Outer, outermost, private_quantiles, rank_error, share
from curator_service.vault import Vault
from service_kit.context.context import ServiceContext
from service_kit.context.request import Effect, RequestContext
from service_kit.store import audit_log, stored_replies
from service_kit.store.base import moment, stamp
from service_kit.store.database import Connection
from service_kit.store.stored_replies import StoredReply


class BoundsSearch:
    """Finds bounds of columns privately: the charge is committed before the draw, and one draw is ever shown."""

    def __init__(self, context: ServiceContext, vault: Vault, budgets: Budgets) -> None:
        self._context = context
        self._vault = vault
        self._budgets = budgets

    def find(self, request: RequestContext, dataset_id: str, bounds_request: wire.BoundsCreate) -> StoredReply:
        """Charge and commit, then draw, then store the result and reply.

        After a crash between charge and result, a retry under the same key draws: one charge, one result. Raises
        Invalid for a column that the dataset does not have, BudgetExhausted at a cap, and StateConflict.
        """
        key, digest = self._context.idempotency.key_of(request)
        bounds_id = f"bnd_{sha256(f'{request.principal.id} {key}'.encode())[:16]}"
        refusals: list[BudgetExhausted] = []

        def begin(db: Connection) -> StoredReply | None:
            self._context.authentication.check_live(db, request.principal)
            if (stored := self._context.idempotency.stored(db, request)) is not None:
                return stored
            self._context.audit_trail.check_sound()
            if (charged := table.find_bounds(db, bounds_id)) is not None:  # after a crash before the result
                stored_replies.check_same_request(json.loads(charged.spec)["request_sha256"], digest)
            elif (refusal := self._charge(db, request, bounds_id, dataset_id, bounds_request, digest)) is not None:
                refusals.append(refusal)
            return None

        if (stored := self._context.database.write(begin)) is not None:
            return stored
        if refusals:
            raise refusals[0]
        quantiles, records = self._drawn(bounds_id, dataset_id)

        def effect(db: Connection) -> Effect:
            self._context.audit_trail.check_unchanged(bounds_id, dataset_id)
            if len(kept_records(db, self._vault, dataset_id)) != records:
                raise StateConflict(
                    "a record was withheld while the bounds were drawn, so nothing was released: send the same request "
                    "again, under the same key, which charges nothing more"
                )
            table.settle_bounds(db, bounds_id, quantiles)
            view = view_of(table.find_bounds(db, bounds_id))
            return Effect(view, "bounds.released", {"bounds_id": bounds_id, "dataset_id": dataset_id}, 200)

        return self._context.idempotency.once(request, effect)

    def page(self, dataset_id: str, after: int, limit: int) -> list[tuple[int, wire.PrivateBounds]]:
        """Bounds that were charged to a dataset's file, by any registration of it, with sequence numbers."""
        with self._context.database.read() as db:
            sha = store.find(db, store.datasets, dataset_id).sha256
            same = [row.id for row in store.registrations(db, sha)]
            return [(row.seq, view_of(row)) for row in table.bounds_of(db, same, after=after, limit=limit)]

    def _charge(
        self,
        db: Connection,
        request: RequestContext,
        bounds_id: str,
        dataset_id: str,
        bounds_request: wire.BoundsCreate,
        digest: str,
    ) -> BudgetExhausted | None:
        """Charge every record and record the bounds without a result, or record the refusal and return it."""
        dataset = store.find(db, store.datasets, dataset_id)
        if dataset.archived_at is not None:
            raise StateConflict("the dataset is archived: nothing more is found out about it")
        n = len(kept_records(db, self._vault, dataset_id))
        _check(bounds_request, dataset, n)
        actor, cost = request.principal.actor, Cost.of(bounds_request.epsilon, "0")
        charged = self._budgets.charge_file(db, actor, dataset_id, "bounds", bounds_id, cost, "worst_case")
        if isinstance(charged, BudgetExhausted):
            return charged
        spec = spec_of(bounds_request, dataset, n, digest)
        table.add_bounds(db, bounds_id, dataset_id, json.dumps(spec), stamp(self._context.clock()))
        details = {
            "bounds_id": bounds_id,
            "dataset_id": dataset_id,
            "account": self._budgets.account(db, dataset_id)[1],
            "epsilon": cost.texts[0],
            "delta": cost.texts[1],
            "guarantee_kind": "worst_case",
        }
        logged_at = self._context.clock()
        audit_log.append(db, "bounds.started", actor=actor, now=logged_at, details=details)
        return None

    def _drawn(self, bounds_id: str, dataset_id: str) -> tuple[str, int]:
        """Draw the quantiles of each column, as JSON, from so many records. A draw not stored is shown to nobody."""

        def read() -> tuple[Any, list[str], NDArray[np.int64]]:
            with self._context.database.read() as db:
                row = table.find_bounds(db, bounds_id)
                columns = store.column_names(store.find(db, store.datasets, row.dataset_id))
                return row, columns, kept_records(db, self._vault, row.dataset_id)

        check = partial(self._context.audit_trail.check_unchanged, bounds_id, dataset_id)
        row, columns, kept = self._context.database.verified(read, check)
        if row.result is not None:
            return str(row.result), len(kept)
        spec = json.loads(row.spec)
        bounds_request = wire.BoundsCreate.model_validate_json(json.dumps(spec["wanted"]))
        records = self._vault.dataset(row.dataset_id)
        values: Matrix = np.column_stack([records[kept, columns.index(c.column)] for c in bounds_request.columns])
        outer = [Outer(*c.outer) for c in bounds_request.columns]
        epsilon = Decimal(bounds_request.epsilon)
        quantiles = private_quantiles(values, outer, spec["quantiles"], epsilon, spec["records"])
        return json.dumps(quantiles.tolist()), len(kept)


def _check(bounds_request: wire.BoundsCreate, dataset: Any, n: int) -> None:
    """Raise Invalid for columns that the dataset does not have, and for more values than a request may read."""
    check_columns([column.column for column in bounds_request.columns], store.column_names(dataset))
    if n == 0:
        raise Invalid.at("columns", "every record is withheld: there is nothing to read")
    if n * len(bounds_request.columns) * len(bounds_request.quantiles or "lu") > wire.BOUNDS_VALUES_MAX:
        most = f"{wire.BOUNDS_VALUES_MAX:,} at most: name fewer columns"
        raise Invalid.at("columns", f"records times columns times quantiles may be {most}")


def spec_of(bounds_request: wire.BoundsCreate, dataset: Any, n: int, digest: str) -> dict[str, Any]:
    """What the draw needs, from public values alone, as it was when it was charged."""
    records = 1 if dataset.person_column is None else int(dataset.rows_per_person)
    quantiles = bounds_request.quantiles
    if quantiles is None:
        least = outermost(n, share(Decimal(bounds_request.epsilon), 2 * len(bounds_request.columns)), records)
        quantiles = [least, round(1 - least, 3)]
    return {
        "wanted": bounds_request.model_dump(),
        "quantiles": quantiles,
        "records": records,
        "unit": "record" if dataset.person_column is None else "person",
        "request_sha256": digest,
    }


def view_of(row: Any) -> wire.PrivateBounds:
    spec = json.loads(row.spec)
    bounds_request = wire.BoundsCreate.model_validate_json(json.dumps(spec["wanted"]))
    quantiles = [] if row.result is None else json.loads(row.result)
    epsilon_of_draw = share(Decimal(bounds_request.epsilon), len(bounds_request.columns) * len(spec["quantiles"]))
    return wire.PrivateBounds(
        id=row.id,
        dataset_id=row.dataset_id,
        state="interrupted" if row.result is None else "drawn",
        epsilon=bounds_request.epsilon,
        unit=spec["unit"],
        quantiles=spec["quantiles"],
        rank_error=rank_error(epsilon_of_draw, spec["records"]),
        columns=[_column(c, values) for c, values in zip(bounds_request.columns, quantiles, strict=False)],
        guarantee=of_bounds(bounds_request.epsilon, spec["records"], person=spec["unit"] == "person"),
        created_at=moment(row.created_at),
    )


def _column(bounds_request: wire.OuterRange, quantiles: list[float]) -> wire.ColumnBounds:
    """The bounds of a column: quantiles that are all equal, with a step on each side, so that a study takes them."""
    outer, lower, upper = bounds_request.outer, quantiles[0], quantiles[-1]
    if lower == upper:
        step = (outer[1] - outer[0]) / STEPS
        lower, upper = max(outer[0], lower - step), min(outer[1], upper + step)
    return wire.ColumnBounds(column=bounds_request.column, outer=outer, quantiles=quantiles, lower=lower, upper=upper)
