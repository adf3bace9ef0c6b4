"""Algorithms over a Gaussian process, and random rows."""

from typing import Annotated, Literal

from pydantic import Field

from blindopt.wire.base import PositiveFloat, Request

Precision = Literal["double", "single"]
NoiseAware = Annotated[
    bool,
    Field(description="Average the kernel over the release's noise, if its law is known; otherwise use Z as X."),
]


class GpRule(Request):
    """Fields of all algorithms over the posterior of a Gaussian process at the candidates."""

    name: str
    precision: Precision = Field(
        "double",
        description=(
            "Precision of the numbers stored for each candidate. single takes half the memory, for a million "
            "candidates or more, and chooses the same rows: bounds within its rounding error of the largest are "
            "recomputed in double precision."
        ),
    )


class GpAlgorithm(GpRule):
    """Fields of GP-UCB and of GP-BUCB."""

    delta_ucb: float = Field(0.05, ge=1e-50, lt=1, description="Theorem 3; delta' is half of it.")
    noise_aware: NoiseAware = True
    scale: PositiveFloat = Field(1.0, description="Factor of beta_t; 1 is the theorem's, smaller factors explore less.")


class GpUcb(GpAlgorithm):
    """GP-UCB, Algorithm 2 of Kharkovskii et al. (2020)."""

    name: Literal["gp_ucb"] = Field(description="Name of the algorithm.")
    nugget: Literal["in", "out"] = Field(
        "in",
        description=(
            "Whether the bound counts the variance that a candidate has for itself (the nugget: what the release's "
            "noise hides of it). in: as in the article; out: no, so that only what can be learned is explored. out has "
            "no theorem."
        ),
    )


class GpBucb(GpAlgorithm):
    """GP-BUCB, Desautels et al. (2014): GP-UCB in batches, with hallucinated outcomes of pending queries."""

    name: Literal["gp_bucb"] = Field(description="Name of the algorithm.")


class Ei(GpRule):
    """Expected improvement, where the variance that can be learned counts as optimism, and the nugget as luck."""

    name: Literal["ei"] = Field(description="Name of the algorithm.")
    noise_aware: NoiseAware = True
    optimism: float = Field(
        2.0,
        ge=0,
        le=1e6,
        description="Number of learnable standard deviations added to the mean; 0: plain expected improvement.",
    )


class EiDeblurred(GpRule):
    """Expected improvement of f itself, averaged over the places that the noisy coordinates of Z may stand for."""

    name: Literal["ei_deblurred"] = Field(
        description="Name of the algorithm. It needs a release with Gaussian or planar Laplace noise."
    )


class RandomRows(Request):
    """Uniform random candidates without repetition: a baseline."""

    name: Literal["random"] = Field(description="Name of the algorithm.")
