"""Which algorithm a run takes, and what follows from the study where settings are left open."""

from typing import Annotated, Literal

from pydantic import Field

from blindopt.wire.algorithms.bandits import (
    Ata,
    BoundedIgp,
    IgpUcb,
    LaplaceAdf,
    LdpAta,
    LdpMoma,
    LdpTgp,
    Moma,
    Tgp,
    TgpTight,
    Thompson,
)
from blindopt.wire.algorithms.fits import Fit
from blindopt.wire.algorithms.gp import Ei, EiDeblurred, GpBucb, GpUcb, RandomRows
from blindopt.wire.base import Reply, Request

PlannedRepeats = Literal["algorithm", "never", "after_all"]
Repeats = Annotated[
    Literal["auto"] | PlannedRepeats,
    Field(
        description=(
            "Whether a candidate may be queried again. algorithm: as the algorithm chooses; never: the run ends when "
            "all were queried; after_all: once all were; auto: only where a repeat teaches something, as the plan "
            "says. Imported candidates count as queried."
        )
    ),
]
InitialDesign = Literal["random", "maximin"]
InitialRows = Annotated[
    int | None,
    Field(
        ge=0,
        le=10_000,
        description=(
            "Number of candidates of the initial design, queried first. Null: 5 or twice the columns of Z, whichever "
            "is more, less the past measurements; at most as many as are queried after them."
        ),
    ),
]
InitialDesignChoice = Annotated[
    InitialDesign | None,
    Field(
        description=(
            "How the initial candidates are chosen. random: uniformly; maximin: a random one, then repeatedly the one "
            "farthest from those chosen; null: maximin, for random rows random."
        )
    ),
]

AlgorithmSpec = Annotated[
    GpUcb
    | GpBucb
    | Ei
    | EiDeblurred
    | RandomRows
    | LdpAta
    | LdpTgp
    | TgpTight
    | LdpMoma
    | Ata
    | Tgp
    | Moma
    | LaplaceAdf
    | BoundedIgp
    | IgpUcb
    | Thompson,
    Field(discriminator="name"),
]


class Auto(Request):
    """The algorithm that suits the study, chosen when the study is first seen: see ``Plan``."""

    name: Literal["auto"] = Field(description="Name of the choice.")


AlgorithmChoice = Annotated[Auto | AlgorithmSpec, Field(discriminator="name")]
FitChoice = Annotated[
    Fit | Literal["auto"] | None,
    Field(
        description=(
            "Fit hyper-parameters to the answers, starting at the kernel's; without a kernel, a squared-exponential "
            "one of the candidates' scale is used. auto: where no kernel is given, and from the first check that a "
            "given one fails. Null: they stay fixed. For "
            "gp_ucb, gp_bucb, ei and ei_deblurred."
        )
    ),
]
AUTO = Auto(name="auto")


Engine = Literal[1, 2]
"""Version of the Gaussian-process algorithms: a record keeps the one that its choices were made by."""


class Plan(Reply):
    """How rows are chosen: the settings as they were given, and those left open as they follow from the study."""

    algorithm: AlgorithmSpec = Field(description="Algorithm that chooses candidates.")
    fit: Fit | Literal["auto"] | None = Field(description="How hyper-parameters are fitted; null: they stay fixed.")
    initial_rows: int = Field(description="Number of candidates of the initial design.")
    initial_design: InitialDesign = Field(description="How the initial candidates are chosen.")
    repeats: PlannedRepeats = Field(description="Whether a candidate may be queried again.")
    reasons: list[str] = Field(description="Why the settings that were left open are as they are, in words.")
    engine: Engine = Field(
        1,
        description=(
            "Version of the Gaussian-process algorithms that the choices are made by. 1, of runs before version 0.3.0: "
            "candidates are equal if their acquisitions are the same number. 2: if they are after rounding to 1e-10 "
            "standard deviations of the prior (expected improvement: to 1e-10 of itself). The seed draws one of "
            "equal ones. 2 also fits hyper-parameters by another search, with a prior that keeps length-scales of "
            "coordinates together, and takes the outcomes of a fit as one block."
        ),
    )
    answers_per_row: int | None = Field(
        None,
        ge=1,
        description=(
            "Answers about one candidate that its cap allowed beside the release when the run began: a candidate with "
            "so many is not chosen again. Null: no such cap, or a run of an earlier version, which did not look at it."
        ),
    )


FITTED = (GpUcb, GpBucb, Ei, EiDeblurred)
"""Algorithms whose hyper-parameters can be fitted."""

BATCHED = (GpBucb, Ei, RandomRows, LdpMoma, Moma, IgpUcb, BoundedIgp, LaplaceAdf, Thompson)
"""Algorithms that can choose several candidates for one query."""

IMPROVING = (Ei, EiDeblurred)
"""Algorithms that compute an expected improvement."""
