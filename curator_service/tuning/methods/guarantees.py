"""The guarantees of tunings: their kind, and their words."""

from typing import Literal

from blindopt.wire.base import GuaranteeKind
from blindopt.wire.tuning import Kusner1, TuningPrior
from curator_service.privacy.prices import exact
from curator_service.tuning.methods.draws import Cost, Draws
from curator_service.tuning.methods.problem import Records

_RECORDS: dict[Records, str] = {
    "computed": (
        "Each record's score is computed here, of that record and public models alone, and clipped to the declared "
        "range, so this holds whatever the records are."
    ),
    "scored": (
        "Each record's score is clipped to the declared range here. It holds if each score depends on its own record, "
        "the hyper-parameters and public models alone: that is the scorer's word. Scores by rank (such as AUC), or "
        "standardised by the validation records, break it: one record then moves all of them, by up to the whole range."
    ),
    "averaged": (
        "It holds if the score is the mean, over exactly these m records of the validation dataset, of one number for "
        "each, in the declared range, that depends on its own record, the hyper-parameters and public models alone: "
        "that is the scorer's word."
    ),
    "whole": "The score may be any function of the validation dataset: it is clipped to the declared range.",
}
_FAILURE = (
    "A failure is not protected: whether the scorer fails, or returns a number that is not finite, may depend on the "
    "records, and auditors see that the tuning failed."
)
_PROTECTED = (
    "Only the validation records are protected; the grid, their number, the declared range, training data and trained "
    "models are public. Only what is released here may leave: no score, no order of evaluation, no plot."
)


Kind = Literal["exact", "simulated", "noisy bound", "bound"]
"""How the sensitivity is known. If simulated or a noisy bound, it rests on the noise of evaluations too."""


def _released(draws: Draws) -> str:
    if draws.index and draws.value:
        return "lambda~ and v~ together"
    return "lambda~" if draws.index else "v~"


Guarantee = tuple[GuaranteeKind, str]
"""What the account of the file counts a charge as, and the promise in words."""


def worst_case(draws: Draws, records: Records, condition: str = "") -> Guarantee:
    """The guarantee of pure differential privacy, for validation datasets that differ in one record."""
    epsilon = exact(draws.shares.total.epsilon)
    promise = (
        f"Worst case: {epsilon}-differential privacy of each validation record. Replacing one record by any other "
        f"makes no result ({_released(draws)}) more than e^{epsilon} times as probable, whatever an "
        "attacker knows."
    )
    sentences = promise, condition, _RECORDS[records], _failure(records), _PROTECTED
    return "worst_case", " ".join(filter(None, sentences))


def _failure(records: Records) -> str:
    """The gap of failures, which the built-in score has not, because it is always finite."""
    return "" if records == "computed" else _FAILURE


WEIGHTS = (
    "It rests on public facts about the trained models: no intercept, |x| <= 1 enforced by clipping, and a score that "
    "is Lipschitz in the weights."
)
CONVEX = (
    "It rests on training by L2-regularised convex loss that is 1-Lipschitz, |x| <= 1 enforced by clipping, no "
    "intercept, solved to optimality: a model that is not optimal breaks it."
)


def literal_theorem_7(requested: Cost, charged: Cost) -> str:
    """The condition of noise that is smaller than the corrected sensitivity needs."""
    return (
        "As published: the noise is calibrated by the printed Theorem 7, whose second term may be half of what it "
        f"should be. For epsilon {exact(requested.epsilon)} it keeps, and is charged, {exact(charged.epsilon)}."
    )


def of_design(prior: TuningPrior, records: Records, requested: Cost) -> str:
    """The condition of a fixed design that is charged what its noise keeps in the worst case."""
    words = (
        f"The noise is that of ({exact(requested.epsilon)}, {exact(requested.delta)}) on average over the prior. One "
        "record moves each score by at most the range over the number of records, or the whole range if a score may be "
        "any function of them. It moves the posterior mean by the largest row sum of its weights times that."
    )
    return f"{words} {_own_noise(False)}" if prior.noise == "own" and records != "computed" else words


def prior_average(draws: Draws, prior: TuningPrior, records: Records, kind: Kind) -> Guarantee:
    """The guarantee of (epsilon, delta) where delta is over the draw of the functions, and of any noise it rests on."""
    uses_noise = rests_on_noise(kind)
    average = _average(draws, uses_noise=uses_noise)
    if kind == "exact":
        average += "The bound is exact under this assumption, while no score is clipped."
    elif kind == "simulated":
        average += (
            "The bound was measured on simulated neighbours, and is large enough with probability 0.999 over them, "
            "if their seed was not chosen by what it gives."
        )
    else:
        average += "The bound is the paper's, under this assumption, while no score is clipped."
    if prior.estimated:
        estimated = ", ".join(prior.estimated)
        return "none", (
            f"None: the prior was estimated from private data ({estimated}), and what is promised takes it as public. "
            "With a public prior it would be: " + average
        )
    if uses_noise and rests_on_absent_noise(prior, records):
        return "none", (
            "None: noise: own says that each evaluation has fresh Gaussian noise, which the built-in score has not. "
            "With noise: added it would be: " + average
        )
    condition = _own_noise(uses_noise) if prior.noise == "own" and records != "computed" else ""
    return "prior_average", " ".join(filter(None, (average, condition, _failure(records), _PROTECTED)))


def _own_noise(uses_noise: bool) -> str:
    law = (
        "is Gaussian, of the declared size, whatever the records are"
        if uses_noise
        else "does not depend on the records"
    )
    return f"It holds if each evaluation has fresh noise, whose law {law}: that is the scorer's word."


def rests_on_noise(kind: Kind) -> bool:
    """Whether a guarantee rests on the size of the noise of evaluations."""
    return kind in ("simulated", "noisy bound")


def rests_on_absent_noise(prior: TuningPrior, records: Records) -> bool:
    """Whether the prior assumes noise of scores that the curator itself computes, without noise."""
    return prior.noise == "own" and records == "computed"


def _average(draws: Draws, *, uses_noise: bool) -> str:
    epsilon, delta = exact(draws.shares.total.epsilon), exact(draws.shares.total.delta)
    exception = (
        "but for an added probability that depends on their functions: over the functions that the prior draws, and "
        f"the noise of evaluations, it is {delta} at most on average. "
        if uses_noise
        else "where their functions are as close as the prior says; the prior draws functions that are not with "
        f"probability {delta} at most. "
    )
    return (
        f"On average over the Gaussian-process prior only, not in the worst case: ({epsilon}, {delta}). "
        "For two validation datasets that differ in one record, "
        f"no result ({_released(draws)}) is more than e^{epsilon} times as probable under one "
        f"as under the other, {exception}For a pair of datasets whose functions are "
        "further apart nothing is promised, and nothing in the data can verify the prior. "
    )


KUSNER_2 = (
    " It also rests on A and tau, which depend on the private objective near its maximum: they are the caller's word, "
    "and nothing public confirms them."
)


def kusner_1(method: Kusner1) -> str:
    """The addition to the guarantee of Algorithm 1 where constants are the printed ones."""
    if method.q == "paper":
        return (
            " As published: the proof of v~'s noise has a hole. The step about q takes the noise of the largest of T "
            "noisy scores for that of one, and fails in 15 to 87 % of simulated runs; the bound of Theorem 3 as a "
            "whole was never exceeded there, but nothing proves it."
        )
    if method.delta_split == "paper":
        return " The printed split of delta adds up to 5/3 of it for v~; that is what is charged."
    return ""
