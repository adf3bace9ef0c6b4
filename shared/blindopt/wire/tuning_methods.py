"""Private hyper-parameter tuning: which method, what it assumes, and what it may spend."""

from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from blindopt.wire.base import DecimalString, Epsilon, PositiveFloat, Request, Seed

TUNING_GRID_MAX = 2_000
"""Most hyper-parameters that a tuning may choose from."""
Evaluations = Annotated[int, Field(ge=1, le=2_000, description="T: scores that the search asks for.")]
Selection = Literal["permute_and_flip", "exponential"]
ValueAt = Literal["chosen", "maximum"]
_SELECTION = "How lambda~ is drawn; permute_and_flip is never worse than the exponential mechanism."
_VALUE_AT = (
    "chosen: v~ is the posterior mean at lambda~, or at the maximum where lambda~ is not released; maximum: the "
    "largest posterior mean. Both have the same noise."
)


def _share(text: str) -> str:
    if not 0 <= Decimal(text) <= 1:
        raise ValueError("a share lies between 0 and 1")
    return text


class TuningBudget(Request):
    """What a tuning may spend on both of its releases together."""

    epsilon: Epsilon = Field(description="Of lambda~ and v~ together, for replacing one validation record.")
    delta: float = Field(
        0.0,
        ge=0,
        le=0.1,
        description="Of both together, over the draw of the functions: for the methods that assume a Gaussian process.",
    )
    index_share: Annotated[DecimalString, AfterValidator(_share)] | None = Field(
        None,
        description=(
            "The part of epsilon (and of delta, where a method splits it) that lambda~ gets; v~ gets the rest. 0: v~ "
            "alone is released; 1: lambda~ alone. Null: 0.5, or 0 where a method releases v~ alone."
        ),
    )


class TuningSearch(Request):
    """A Gaussian process that steers which hyper-parameters are scored: all of it public."""

    kernel: Literal["squared_exponential", "matern_12", "matern_32", "matern_52"] = Field(
        "squared_exponential", description="k2, with k2(l, l) = 1."
    )
    lengthscale: PositiveFloat = Field(description="In units of the grid's coordinates, as the grid tells them.")
    noise_sd: float = Field(0.1, ge=1e-4, le=100, description="sigma of one score, in scaled units.")
    centre: float | None = Field(
        None, ge=-1e50, le=1e50, description="Prior mean, in units of the score; null: the middle of its range."
    )
    scale: PositiveFloat | None = Field(
        None, description="Prior standard deviation, in units of the score; null: a quarter of its range."
    )
    evaluations: Evaluations = 100


class TuningPrior(TuningSearch):
    """Assumption 1 of Kusner et al. (2015): scores of all datasets are jointly a Gaussian process, k1 times k2."""

    one_minus_k1: float = Field(
        ge=1e-12,
        le=1,
        description=(
            "1 - k1(V, V') for the worst neighbour: scores of neighbours differ by N(0, 2 (1 - k1)) in scaled units. "
            "It cannot be derived from the scores, and what is promised rests on it."
        ),
    )
    noise: Literal["added", "own"] = Field(
        "added",
        description=(
            "added: the curator adds fresh Gaussian noise of noise_sd to each score; own: scores have it already, "
            "fresh at each evaluation."
        ),
    )
    estimated: list[Literal["one_minus_k1", "lengthscale", "scaling", "noise_sd"]] = Field(
        [], max_length=4, description="What of these was estimated from private data: it voids what is promised."
    )


class GridExponential(Request):
    """Score the whole grid, draw lambda~, and tell its score with noise. Pure, worst-case differential privacy."""

    name: Literal["grid_exponential"] = Field(description="Names the method.")
    selection: Selection = Field("permute_and_flip", description=_SELECTION)
    use_weights: bool = Field(
        False, description="Take the smaller sensitivity that public trained weights and a Lipschitz score allow."
    )


class GpDesign(Request):
    """Score a sequence fixed beforehand; release from the posterior mean, whose sensitivity is exactly Gaussian."""

    name: Literal["gp_design"] = Field(description="Names the method.")
    prior: TuningPrior = Field(description="Assumption 1.")
    selection: Selection = Field("permute_and_flip", description=_SELECTION)
    value_at: ValueAt = Field("chosen", description=_VALUE_AT)


class GpUcbSimulated(Request):
    """GP-UCB, with a sensitivity measured on simulated neighbours: no private data is touched for it."""

    name: Literal["gp_ucb_simulated"] = Field(description="Names the method.")
    prior: TuningPrior = Field(description="Assumption 1.")
    selection: Selection = Field("permute_and_flip", description=_SELECTION)
    value_at: ValueAt = Field("chosen", description=_VALUE_AT)
    pairs: int = Field(2_000, ge=200, le=100_000, description="Simulated neighbours: 7 / delta or more.")
    seed: Seed = Field(0, description="Of the simulation: public. The tuning's id is mixed in.")


class Kusner1(Request):
    """Algorithm 1 of Kusner et al. (2015), with its own constants or corrected ones."""

    name: Literal["kusner_1"] = Field(description="Names the method.")
    prior: TuningPrior = Field(description="Assumption 1.")
    q: Literal["corrected", "paper"] = Field(
        "corrected", description="Noise of the largest score: of T draws, or as printed, of one."
    )
    delta_split: Literal["corrected", "paper"] = Field(
        "corrected", description="Into four events, or as printed, whose parts add up to 5/3 delta."
    )
    index_bound: Literal["paper", "tight", "clip"] = Field(
        "paper", description="Of lambda~: Theorem 1; without its t^2; or at most the width that mu_T is clipped to."
    )


class Kusner2(Request):
    """The release step of Algorithm 2 of Kusner et al. (2015): scores without noise. Releases v~ alone."""

    name: Literal["kusner_2"] = Field(description="Names the method.")
    prior: TuningPrior = Field(description="Assumption 1; noise_sd is not used.")
    whole_grid: bool = Field(False, description="Score every hyper-parameter and release the maximum: needs no a, tau.")
    a: PositiveFloat | None = Field(
        None, description="A of de Freitas et al. (2012), Theorem 2, in scaled units. Nothing public determines it."
    )
    tau: PositiveFloat | None = Field(
        None, description="tau of the same theorem: it depends on the objective near its maximum."
    )
    last: int | None = Field(
        None,
        ge=0,
        lt=TUNING_GRID_MAX,
        description="Grid index of lambda_T, which the caller's own search ended with: private, as its scores are.",
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        given = [self.a is not None, self.tau is not None, self.last is not None]
        if any(given) if self.whole_grid else not all(given):
            raise ValueError(
                "give a, tau and last (Algorithm 2 cannot be released without its constants), or whole_grid alone"
            )
        return self


class Kusner3(Request):
    """Algorithm 3 of Kusner et al. (2015): convex training, a Lipschitz score, no prior. Releases v~ alone."""

    name: Literal["kusner_3"] = Field(description="Names the method.")
    search: TuningSearch = Field(description="Steers the search; what is promised does not rest on it.")
    form: Literal["corrected", "paper"] = Field(
        "corrected",
        description="The second term of Theorem 7: 2 L / l_min, or as printed L / l_min, half of it.",
    )


class PublicWeights(Request):
    """Algorithm 3, with the sensitivity of the trained weights themselves, which are public. Releases v~ alone."""

    name: Literal["public_weights"] = Field(description="Names the method.")
    search: TuningSearch = Field(description="Steers the search; what is promised does not rest on it.")


TuningMethod = Annotated[
    GridExponential | GpDesign | GpUcbSimulated | Kusner1 | Kusner2 | Kusner3 | PublicWeights,
    Field(discriminator="name"),
]


class TuningSpec(Request):
    """How a tuning releases its result, and what that may cost."""

    method: TuningMethod = Field(
        GridExponential(name="grid_exponential"), description="How scores are found and released."
    )
    budget: TuningBudget = Field(description="What both releases may spend.")
