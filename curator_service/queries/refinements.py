"""Second draws of measured records: drawn at the first answer about a record, then repeated with every later one.

**Theorem R** (ex post). Let the secret order be public too, and c_i(o) what the ledger has charged record i along a
transcript o: the release e1, epsilon_r if i was refined in o, and its private answers. If D and D' differ in record i,
its features moved by at most Delta and its outcome replaced (the same where answers are exact), then for every vendor
and every o: p(o | D) <= e^(c_i(o)) p(o | D'). Who declines is taken as given.

*Proof.* p(o | D) is the product over steps of the probability given what came before. A choice of the vendor, a refusal
(a function of ledger and order) and a draw about another record are the same under both. A draw about i has a ratio of
at most e^e1, e^epsilon_r or e^(answer), because it is fresh and of slope epsilon_r / Delta; which of them occur is a
function of o. QED

The bound is attained where both draws lie beyond both values. With a delta, for sets S in which i is not refined,
P(S | D) <= e^e1 P(S | D') + delta: given the release the rest of S has a probability that is the same under both and at
most 1. Beforehand everybody is promised e1 + epsilon_r alone, for the vendor chooses whom to query. A person with k
records has e1 for all, whose noise is that of e1 / k each, and epsilon_r for each that is refined.
"""

from collections.abc import Iterable

import numpy as np

from blindopt import wire
from curator_service.budget import ledger_lines
from curator_service.datasets.scaling import ScaledRows
from curator_service.queries.table import SecondDraws, add_second_draws, second_draws
from curator_service.releases.mechanisms.registry import refinement_of
from curator_service.studies.release_cache import Released
from service_kit.store.database import Connection

NOTHING: SecondDraws = {}


def draw(db: Connection, released: Released, rows: Iterable[int]) -> SecondDraws:
    """Second draws of those of ``rows`` that have none, to be stored with the first answer about each."""
    ordered = list(dict.fromkeys(rows))
    earlier = second_draws(db, released.study_id, ordered)
    fresh = [row for row in ordered if row not in earlier]
    if not fresh:
        return {}
    features = released.spec.features
    columns = [released.names.index(feature.column) for feature in features]
    z = np.empty((len(fresh), len(features)))
    refinement_of(released.spec).draw(ScaledRows(released.records, columns, features, released.order[fresh]), z)
    return dict(zip(fresh, z.tolist(), strict=True))


def of_reply(
    db: Connection, released: Released, answered: Iterable[int], drawn: SecondDraws = NOTHING
) -> list[wire.Refinement]:
    """The second draws of the ``answered`` rows, in their order, in the transaction that stores their reply.

    A row that has none gets the one that was ``drawn`` ahead, or one that is drawn now. No row has one without its line
    in the ledger.
    """
    charged = ledger_lines.refined_rows(db, released.study_id)
    rows = [row for row in dict.fromkeys(answered) if row in charged]
    earlier = second_draws(db, released.study_id, rows)
    fresh = {row: drawn[row] for row in rows if row in drawn and row not in earlier}
    fresh |= draw(db, released, [row for row in rows if row not in earlier and row not in fresh])
    if fresh:
        add_second_draws(db, released.study_id, fresh)
    return [wire.Refinement(row=row, z=(earlier | fresh)[row]) for row in rows]


def numbers(sent: Iterable[wire.Answer], refined: Iterable[wire.Refinement]) -> list[float]:
    """All numbers of a reply that its salt covers."""
    return [*(answer.y for answer in sent), *(number for refinement in refined for number in refinement.z)]
