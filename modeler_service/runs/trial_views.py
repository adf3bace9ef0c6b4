"""Rows of the database as views on the wire."""

from typing import Any

from blindopt import wire
from service_kit.store.base import moment


def trial_view(row: Any) -> wire.TrialView:
    """Return the view of a trial: the columns of its row, parsed."""
    values = {name: getattr(row, name) for name in wire.TrialView.model_fields}
    values |= {name: moment(values[name]) for name in ("chosen_at", "asked_at", "answered_at") if values[name]}
    fitted = wire.Fitted.model_validate_json(row.fitted) if row.fitted else None
    passport = wire.NoisePassport.model_validate_json(row.passport) if row.passport else None
    return wire.TrialView(**values | {"declined": bool(row.declined), "fitted": fitted, "passport": passport})
