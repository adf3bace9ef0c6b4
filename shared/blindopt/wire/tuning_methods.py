"""Private hyper-parameter tuning: which method, what it assumes, and what it may spend."""

from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from blindopt.wire.base import DecimalString, Epsilon, PositiveFloat, Request, Seed

TUNING_GRID_MAX = 2_000
"""Most hyper-parameters that a tuning may choose from."""
Evaluations = Annotated[int, Field(ge=1, le=2_000, description="T: number of scores that the search evaluates.")]
Selection = Literal["permute_and_flip", "exponential"]
ValueAt = Literal["chosen", "maximum"]
_SELECTION = "Mechanism that draws lambda~; permute_and_flip is never worse than exponential."
_VALUE_AT = (
    "chosen: v~ is the posterior mean at lambda~, or at the maximum if lambda~ is not released; maximum: the largest "
    "posterior mean. Both have the same noise."
)


def _share(text: str) -> str:
    if not 0 <= Decimal(text) <= 1:
        raise ValueError("a share lies between 0 and 1")
    return text


class TuningBudget(Request):
    """Budget of a tuning, for both of its releases together."""

    epsilon: Epsilon = Field(description="epsilon of lambda~ and v~ together, for replacing one validation record.")
    delta: float = Field(
        0.0,
        ge=0,
        le=0.1,
        description=(
            "delta of both together, over the draw of the functions: for the methods that assume a Gaussian process."
        ),
    )
    index_share: Annotated[DecimalString, AfterValidator(_share)] | None = Field(
        None,
        description=(
            "Fraction of epsilon (and of delta, if a method splits it) for lambda~; v~ gets the rest. 0: only v~ is "
            "released; 1: only lambda~. Null: 0.5, or 0 if a method releases only v~."
        ),
    )


class TuningSearch(Request):
    """A Gaussian process that selects the hyper-parameters to score. All of its parameters are public."""

    kernel: Literal["squared_exponential", "matern_12", "matern_32", "matern_52"] = Field(
        "squared_exponential", description="k2, with k2(l, l) = 1."
    )
    lengthscale: PositiveFloat = Field(description="Length-scale, in units of the grid's coordinates.")
    noise_sd: float = Field(
        0.1, ge=1e-4, le=100, description="sigma, the noise standard deviation of one score, in scaled units."
    )
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
            "It cannot be derived from the scores, and the guarantee depends on it."
        ),
    )
    noise: Literal["added", "own"] = Field(
        "added",
        description=(
            "added: the curator adds fresh Gaussian noise of noise_sd to each score; own: scores already contain such "
            "noise, fresh at each evaluation."
        ),
    )
    estimated: list[Literal["one_minus_k1", "lengthscale", "scaling", "noise_sd"]] = Field(
        [], max_length=4, description="Parameters that were estimated from private data, which voids the guarantee."
    )


class GridExponential(Request):
    """Score the whole grid, draw lambda~, and release its score with noise. Pure, worst-case differential privacy."""

    name: Literal["grid_exponential"] = Field(description="Name of the method.")
    selection: Selection = Field("permute_and_flip", description=_SELECTION)
    use_weights: bool = Field(
        False, description="Use the smaller sensitivity that public trained weights and a Lipschitz score allow."
    )


class GpDesign(Request):
    """Score a fixed sequence; release from the posterior mean, whose sensitivity is exact: evaluation noise cancels."""

    name: Literal["gp_design"] = Field(description="Name of the method.")
    prior: TuningPrior = Field(description="Assumption 1.")
    selection: Selection = Field("permute_and_flip", description=_SELECTION)
    value_at: ValueAt = Field("chosen", description=_VALUE_AT)


class GpUcbSimulated(Request):
    """GP-UCB, with a sensitivity measured on simulated neighbours, without private data."""

    name: Literal["gp_ucb_simulated"] = Field(description="Name of the method.")
    prior: TuningPrior = Field(description="Assumption 1.")
    selection: Selection = Field("permute_and_flip", description=_SELECTION)
    value_at: ValueAt = Field("chosen", description=_VALUE_AT)
    pairs: int = Field(
        2_000, ge=200, le=100_000, description="Number of simulated pairs of neighbours: 7 / delta or more."
    )
    seed: Seed = Field(0, description="Public seed of the simulation. The tuning's id is mixed in.")


class Kusner1(Request):
    """Algorithm 1 of Kusner et al. (2015), with its own constants or corrected ones."""

    name: Literal["kusner_1"] = Field(description="Name of the method.")
    prior: TuningPrior = Field(description="Assumption 1.")
    q: Literal["corrected", "paper"] = Field(
        "corrected",
        description="Bound on the noise of the largest score. corrected: of T draws; paper: as printed, of one.",
    )
    delta_split: Literal["corrected", "paper"] = Field(
        "corrected",
        description=(
            "Split of delta. corrected: into four events; paper: as printed, with parts that add up to 5/3 delta."
        ),
    )
    index_bound: Literal["paper", "tight", "clip"] = Field(
        "paper",
        description=(
            "Sensitivity for lambda~. paper: Theorem 1; tight: without its t^2; clip: at most the width to which mu_T "
            "is clipped."
        ),
    )


class Kusner2(Request):
    """The release step of Algorithm 2 of Kusner et al. (2015): scores without noise. Releases only v~."""

    name: Literal["kusner_2"] = Field(description="Name of the method.")
    prior: TuningPrior = Field(description="Assumption 1; noise_sd is ignored.")
    whole_grid: bool = Field(
        False, description="Score every hyper-parameter and release the maximum: needs neither a nor tau."
    )
    a: PositiveFloat | None = Field(
        None, description="A of de Freitas et al. (2012), Theorem 2, in scaled units. No public value determines it."
    )
    tau: PositiveFloat | None = Field(
        None, description="tau of the same theorem, which depends on the objective near its maximum."
    )
    last: int | None = Field(
        None,
        ge=0,
        lt=TUNING_GRID_MAX,
        description="Grid index of lambda_T, the end of the caller's own search: private, like its scores.",
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
    """Algorithm 3 of Kusner et al. (2015): convex training, a Lipschitz score, no prior. Releases only v~."""

    name: Literal["kusner_3"] = Field(description="Name of the method.")
    search: TuningSearch = Field(description="Parameters of the search; the guarantee does not depend on them.")
    form: Literal["corrected", "paper"] = Field(
        "corrected",
        description="Second term of Theorem 7. corrected: 2 L / l_min; paper: as printed, L / l_min.",
    )


class PublicWeights(Request):
    """Algorithm 3, with the sensitivity of the trained weights, which are public. Releases only v~."""

    name: Literal["public_weights"] = Field(description="Name of the method.")
    search: TuningSearch = Field(description="Parameters of the search; the guarantee does not depend on them.")


TuningMethod = Annotated[
    GridExponential | GpDesign | GpUcbSimulated | Kusner1 | Kusner2 | Kusner3 | PublicWeights,
    Field(discriminator="name"),
]


class TuningSpec(Request):
    """How a tuning releases its result, and its budget."""

    method: TuningMethod = Field(
        GridExponential(name="grid_exponential"), description="Method that evaluates scores and releases the result."
    )
    budget: TuningBudget = Field(description="Budget of both releases.")
