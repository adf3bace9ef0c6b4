"""What an attacker would get from a study, for its owner: nothing is changed, and nothing drawn is kept."""

import threading

from curator_service import attacks, store
from curator_service.release.mechanism import Mechanism
from curator_service.release.registry import mechanism_of
from curator_service.scaling import ScaledRows
from curator_service.service import records
from curator_service.service.advisories import standing
from curator_service.service.studies import owner_view
from curator_service.vault import Vault
from shared import matrix, wire
from shared.matrix import Vector
from shared.serving.store.database import Database

PREVIEW_SECONDS = 3.0
COMMAND_SECONDS = 20.0
_ONE = threading.Lock()


def on_draft(
    spec: wire.StudyCreate,
    rows: ScaledRows,
    outcomes: Vector,
    mechanism: Mechanism,
    *,
    seconds: float = PREVIEW_SECONDS,
) -> list[wire.Finding]:
    """Attacks on a trial release of up to 2,000 rows. One trial at a time: others wait, the service does not."""
    with _ONE:
        return attacks.on_trial(spec, rows, outcomes, mechanism, seconds=seconds)


def on_study(database: Database, vault: Vault, identity: str) -> tuple[wire.StudyOwnerView, list[wire.Finding]]:
    """Attacks on a study as it is: on the Z that left, with its secret row order, where it was released.

    Raises ReleaseImpossible for a draft that cannot be released.
    """
    with database.read() as db:
        view, release = owner_view(db, identity), store.release_of(db, identity)
        spec, order = view.spec, vault.order(release.id) if release else None
        rows, outcomes = records.scaled_rows(db, vault, spec, order), records.outcomes(db, vault, spec)
        mechanism = mechanism_of(spec, standing(db, spec, view.report).release)
    if release is None:
        mechanism.assess(rows)  # says in words where nothing can be released
        return view, on_draft(spec, rows, outcomes, mechanism, seconds=COMMAND_SECONDS)
    z = matrix.load(vault.candidates(release.id))
    return view, attacks.on_release(spec, rows, outcomes, mechanism, z, seconds=COMMAND_SECONDS)
