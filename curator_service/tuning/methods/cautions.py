"""Cautions about a tuning, from public values alone, before anything is spent."""

from decimal import Decimal

from blindopt.wire.base import Caution
from blindopt.wire.tuning import TuningPrior
from curator_service.privacy.cautions import of_epsilon
from curator_service.privacy.prices import exact
from curator_service.tuning.methods.draws import Draws, Noise
from curator_service.tuning.methods.problem import Problem

ON_AVERAGE = Caution(
    code="prior_average",
    field="method.prior",
    message="Private only on average over the Gaussian-process prior: delta is a probability over the draw of the "
    "functions, and for the datasets at hand there may be no guarantee at all.",
)
TRACE = Caution(
    code="search_order",
    field="score",
    message="The search requests scores in an order that depends on private scores. A scorer outside of this process "
    "learns that order, which nothing protects: keep it inside the owner's network.",
)

OWN = Caution(
    code="noise_absent",
    field="method.prior.noise",
    message="noise: own says that each evaluation has fresh Gaussian noise, and the built-in score has none: the "
    "sensitivity rests on noise that is not there, and nothing is promised. Take added.",
)
UNPROVED = Caution(
    code="unproved",
    field="method.q",
    message="The printed q is kept on request: the proof of v~'s privacy fails at that step.",
)
REFUTED = Caution(
    code="refuted",
    field="method.form",
    message="The printed Theorem 7 is kept on request: it is too small in general, and what is charged is the epsilon "
    "that its noise keeps.",
)
CONSTANTS = Caution(
    code="constants_unknown",
    field="method",
    message="A and tau cannot be computed from anything public. Without a reason to believe them, release the whole "
    "grid instead (whole_grid).",
)


def of_prior(prior: TuningPrior) -> list[Caution]:
    if not prior.estimated:
        return [ON_AVERAGE]
    message = f"Estimated from private data: {', '.join(prior.estimated)}. That leaks: declare public values."
    return [ON_AVERAGE, Caution(code="prior_estimated", field="method.prior.estimated", message=message)]


def of_closeness(problem: Problem, difference_sd: float) -> list[Caution]:
    """A caution if one record can move a score by more than the prior says that the functions of neighbours differ.

    ``difference_sd``: the prior's standard deviation of that difference, in units of the score.
    """
    if problem.moved <= 4 * difference_sd:
        return []
    message = (
        f"One record can move a score by {problem.moved:.3g}. The prior gives that difference a standard deviation of "
        f"{difference_sd:.3g}, so a single draw may tell two datasets apart. Declare a larger one_minus_k1."
    )
    return [Caution(code="prior_too_close", field="method.prior.one_minus_k1", message=message)]


def of_worst_case(epsilon: Decimal) -> tuple[Caution, ...]:
    """Where the noise keeps an epsilon that is of use for any two datasets: that it can be charged instead."""
    message = (
        f"In the worst case the same noise uses epsilon {exact(epsilon)} of each record. Take charge worst_case, so "
        "that the account counts this epsilon and a cap can hold."
    )
    is_large = bool(of_epsilon("method.charge", epsilon))
    return () if is_large else (Caution(code="worst_case_offered", field="method.charge", message=message),)


def of_noise(noise: Noise, spread: float) -> list[Caution]:
    """Cautions about noise larger than the ``spread`` of the scores, in units of the score."""
    messages = []
    if noise.index_sensitivity is not None and noise.index_scale is not None:
        larger = max(noise.index_sensitivity, noise.index_scale)
        if larger > spread:
            messages.append(
                f"Noise larger than the signal: lambda~ is drawn at a scale of {noise.index_scale:.3g} (sensitivity "
                f"{noise.index_sensitivity:.3g}), and scores spread over {spread:.3g}: it is close to random."
            )
    if noise.value_scale is not None and noise.value_scale > spread:
        messages.append(
            f"Noise larger than the signal: v~ has noise of scale {noise.value_scale:.3g}, and scores spread over "
            f"{spread:.3g}: it tells next to nothing."
        )
    return [Caution(code="noise_large", field="budget.epsilon", message=message) for message in messages]


def of_cost(draws: Draws) -> list[Caution]:
    """Cautions about what is charged: a large epsilon, and a sum if lambda~ and v~ are both released."""
    shares = draws.shares
    cautions = of_epsilon("budget.epsilon", shares.total.epsilon)
    if shares.index is None or shares.value is None:
        return cautions
    summands = f"epsilon {exact(shares.index.epsilon)} and {exact(shares.value.epsilon)}"
    delta = f" and delta {exact(shares.total.delta)}" if shares.total.delta else ""
    total = f"epsilon {exact(shares.total.epsilon)}{delta}"
    message = f"Both lambda~ and v~ are released: they add up ({summands}) to {total}."
    return [*cautions, Caution(code="both_released", field="budget.index_share", message=message)]
