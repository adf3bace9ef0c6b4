"""Rows of the database as views on the wire."""

from typing import Any

from blindopt import wire
from service_kit.store.base import moment


def trial_view(row: Any) -> wire.TrialView:
    """Return the view of a trial."""
    return wire.TrialView(
        number=row.number,
        query=row.query,
        phase=row.phase,
        row=row.row,
        mean=row.mean,
        sd=row.sd,
        acquisition=row.acquisition,
        ties=row.ties,
        fitted=wire.Fitted.model_validate_json(row.fitted) if row.fitted else None,
        chosen_at=moment(row.chosen_at),
        asked_at=moment(row.asked_at) if row.asked_at else None,
        answered_at=moment(row.answered_at) if row.answered_at else None,
        query_id=row.query_id,
        y=row.y,
        declined=bool(row.declined),
        version=row.version,
        plays=row.plays,
        passport=wire.NoisePassport.model_validate_json(row.passport) if row.passport else None,
    )
