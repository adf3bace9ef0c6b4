"""Algorithms for few candidates (arms): locally private and heavy-tailed ones, and alternatives that do better."""

from typing import Annotated, Literal

from pydantic import Field

from blindopt.wire.base import PositiveFloat, Request

TheoremDelta = Annotated[float, Field(gt=0, lt=1, description="Largest failure probability of the theorem.")]
Accuracy = Annotated[float, Field(gt=0, lt=1, description="Accuracy of the finite features; the paper's epsilon.")]
TheoryConstants = Annotated[
    bool,
    Field(
        description="true: the theorem's constants, scale 1 and lam 1; false: scaled constants, which work in practice."
    ),
]
RkhsBound = Annotated[
    PositiveFloat | None,
    Field(
        description=(
            "Bound of the RKHS norm of f - centre under the kernel of unit size, in units of y; null: 1.5 times the "
            "value bound."
        )
    ),
]
Scale = Annotated[
    PositiveFloat | None,
    Field(description="Factor of the exploration weight; null: the value of the chosen constants."),
]
Regulariser = Annotated[
    PositiveFloat | None, Field(description="lam, in squared units of y; null: the value of the chosen constants.")
]


class FewArmsSpec(Request):
    """Fields of all algorithms for few arms: at most 2,000 candidates, which may be queried again."""

    nugget: float = Field(
        0.0,
        ge=0,
        le=10,
        description="Added to the diagonal of the kernel of unit size: 0.01 to 1 for kernels estimated from data.",
    )


class PaperSpec(FewArmsSpec):
    """Fields of the three algorithms of Zhou & Tan (2021)."""

    theory: TheoryConstants = False
    scale: Scale = None
    lam: Regulariser = None
    delta: TheoremDelta = 0.1
    rkhs_bound: RkhsBound = None


class LdpAta(PaperSpec):
    """ATA-GP-UCB on Laplace answers, Algorithm 1 of Zhou & Tan (2021)."""

    name: Literal["ldp_ata"] = Field(description="Name of the algorithm.")
    accuracy: Accuracy = 0.5


class LdpTgp(PaperSpec):
    """TGP-UCB on Laplace answers, Algorithm 2 of Zhou & Tan (2021)."""

    name: Literal["ldp_tgp"] = Field(description="Name of the algorithm.")


class TgpTight(FewArmsSpec):
    """TGP-UCB on Laplace answers with the smaller constants that its proof allows: a theorem at scale 1."""

    name: Literal["tgp_tight"] = Field(description="Name of the algorithm.")
    scale: PositiveFloat = Field(1.0, description="Factor of the exploration weight; 1 is the theorem.")
    lam: Annotated[
        PositiveFloat | None, Field(description="In squared units of y; null: the noise variance of a reward.")
    ] = None
    delta: TheoremDelta = 0.1
    rkhs_bound: RkhsBound = None


class LdpMoma(PaperSpec):
    """MoMA-GP-UCB on Laplace answers, Algorithm 3 of Zhou & Tan (2021). Ignores initial rows."""

    name: Literal["ldp_moma"] = Field(description="Name of the algorithm.")
    accuracy: Accuracy = 0.5
    plays: int | None = Field(
        None, ge=1, le=10_000, description="k: rounds of an epoch; null: 5, or the theorem's value with theory."
    )


class HeavyTails(PaperSpec):
    """Fields of the variants without privacy noise: rewards f(x) + eta with few moments, about the kernel's mean."""

    alpha: float = Field(1.0, gt=0, le=1, description="Moments of order 1 + alpha are finite.")
    value_bound: PositiveFloat = Field(description="B: f lies within B of the centre, in units of y.")
    noise_moment: PositiveFloat = Field(description="c: E|eta|^(1 + alpha) is at most c.")
    raw_moment: Annotated[
        PositiveFloat | None,
        Field(
            description=(
                "v: E|y - centre|^(1 + alpha) is at most v; null: from B and c, B^2 + c at alpha = 1 and "
                "2^alpha (B^(1 + alpha) + c) below."
            )
        ),
    ] = None


class Ata(HeavyTails):
    """ATA-GP-UCB for heavy tails without privacy noise: section 3 of Zhou & Tan (2021) for general alpha."""

    name: Literal["ata"] = Field(description="Name of the algorithm.")
    accuracy: Accuracy = 0.5


class Tgp(HeavyTails):
    """TGP-UCB for heavy tails without privacy noise."""

    name: Literal["tgp"] = Field(description="Name of the algorithm.")


class Moma(HeavyTails):
    """MoMA-GP-UCB for heavy tails without privacy noise. Ignores initial rows."""

    name: Literal["moma"] = Field(description="Name of the algorithm.")
    accuracy: Accuracy = 0.5
    plays: int | None = Field(
        None, ge=1, le=10_000, description="k: rounds of an epoch; null: 5, or the theorem's value with theory."
    )


class LaplaceAdf(FewArmsSpec):
    """UCB with the exact likelihood of Laplace answers, by assumed-density filtering. No theorem."""

    name: Literal["laplace_adf"] = Field(description="Name of the algorithm.")
    beta: PositiveFloat = Field(2.0, description="Standard deviations above the mean.")


class BoundedIgp(FewArmsSpec):
    """IGP-UCB on one_bit or piecewise answers."""

    name: Literal["bounded_igp"] = Field(description="Name of the algorithm.")
    mode: Literal["practical", "guaranteed"] = Field(
        "practical",
        description="guaranteed: the sup norm of the answers as noise, scale 1, a theorem; practical: their variance.",
    )
    scale: Scale = None
    delta: TheoremDelta = 0.1
    rkhs_bound: RkhsBound = None


class IgpUcb(PaperSpec):
    """IGP-UCB of Chowdhury & Gopalan (2017) on any answers. A theorem for sub-Gaussian noise alone."""

    name: Literal["igp_ucb"] = Field(description="Name of the algorithm.")


class Thompson(FewArmsSpec):
    """Thompson sampling on any answers. No theorem."""

    name: Literal["thompson"] = Field(description="Name of the algorithm.")
    scale: PositiveFloat = Field(0.5, description="Factor of the posterior standard deviation in the draws.")


FewArms = LdpAta | LdpTgp | TgpTight | LdpMoma | Ata | Tgp | Moma | LaplaceAdf | BoundedIgp | IgpUcb | Thompson
