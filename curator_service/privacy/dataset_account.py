"""The arithmetic of a dataset's account: what each study charges every record of the file, and what it charges one.

The account is basic composition for each record (or each person, where the dataset has a person column): the studies,
tunings and bounds of a file are mechanisms on the same record, each chosen with what the earlier ones released. Sums of
pure epsilons, and of deltas, hold under such adaptive choices, and a cap on them is a privacy filter (Rogers et al.
2016). The secret row orders are not relied on.
"""

from decimal import ROUND_CEILING, Context, Decimal

from blindopt.wire import (
    IdentityRelease,
    NoAnswerNoise,
    PoGpUcbRelease,
    StudyCreate,
)
from curator_service.privacy.choice import Concrete, failure
from curator_service.privacy.prices import EXACT

_EXP = Context(prec=30)
_DIGITS = Context(prec=6, rounding=ROUND_CEILING)
_EXPONENT_MAX = 10_000


def release_delta(release: Concrete) -> Decimal:
    """The failure probability of a release, in every record's account; 0 where it promises nothing or pure epsilon."""
    delta = failure(release)
    return Decimal(repr(delta)) if delta else Decimal(0)


def group_delta(epsilon: Decimal, delta: Decimal, k: int) -> Decimal:
    """The delta of an (epsilon, delta) mechanism for ``k`` records that change together, rounded up; 1 at most.

    It is k e^((k - 1) epsilon) delta, with k epsilon (Dwork & Roth 2014, Theorem 2.2; Vadhan 2017, Lemma 2.2).

    >>> group_delta(Decimal("0.5"), Decimal("0.00001"), 3)
    Decimal('0.0000815485')
    """
    exponent = (k - 1) * epsilon
    if k == 1 or delta == 0:
        return delta
    if exponent > _EXPONENT_MAX:
        return Decimal(1)
    return min(Decimal(1), _DIGITS.multiply(EXACT.multiply(k, delta), exponent.exp(_EXP).next_plus(_EXP)))


def release_is_unbounded(release: Concrete, *, public: bool) -> str | None:
    """Why no finite epsilon bounds what a release costs, or None. ``public``: every registration of the file is."""
    if isinstance(release, PoGpUcbRelease):
        return "its release by po_gp_ucb is refuted and has no finite epsilon"
    if isinstance(release, IdentityRelease) and not public:
        return "it released the records as they are, and the same file is registered as private too"
    return None


def answers_are_unbounded(spec: StudyCreate, *, public: bool) -> str | None:
    """Why no finite epsilon bounds what the answers of a study cost, or None."""
    if isinstance(spec.answers, NoAnswerNoise) and not public:
        return "its answers have no noise and no finite epsilon"
    return None
