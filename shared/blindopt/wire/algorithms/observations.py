"""Past measurements that a run begins with, and their import."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from blindopt.wire.base import Reply, Request
from blindopt.wire.queries import NoisePassport

Outcome = Annotated[float, Field(ge=-1e150, le=1e150)]
OBSERVATIONS_MAX = 10_000


class Observation(Request):
    """A past measurement that a run begins with."""

    row: int = Field(ge=0, lt=2**53, description="Number of the candidate: its row of Z, from 0.")
    y: Outcome = Field(description="The outcome, in units of the measurement.")
    noise_variance: Annotated[float, Field(ge=0, le=1e100)] | None = Field(
        None,
        description=(
            "Noise variance of y, used if it is larger than the kernel's; null: the kernel's. For gp_ucb, gp_bucb, ei "
            "and ei_deblurred."
        ),
    )
    passport: NoisePassport | None = Field(
        None,
        description="Noise description of an answer of the study, as the curator sent it; excludes noise_variance.",
    )

    @model_validator(mode="after")
    def _single_noise(self) -> Self:
        if self.noise_variance is not None and self.passport is not None:
            raise ValueError("give noise_variance or passport, not both: the passport states the noise")
        return self


class ObservationImport(Request):
    """Past measurements for a run that has not started."""

    observations: list[Observation] = Field(
        min_length=1, max_length=OBSERVATIONS_MAX, description="Measurements, in this order."
    )


class ImportFault(Reply):
    """A fault in a line of an import."""

    line: int = Field(description="Line of a CSV file, from 1 (the header); position in a JSON list, from 1.")
    field: str = Field(description="row, y, noise_variance, or line.")
    message: str = Field(description="What is wrong.")


class ImportReport(Reply):
    """Result of an import or of its dry run."""

    dry_run: bool = Field(description="Whether this was a dry run: nothing was stored.")
    observations: int = Field(
        description="Number of measurements that can be imported; all of them were, unless this was a dry run."
    )
    rows: int = Field(description="Number of different candidates among them: one may have several.")
    total: int = Field(description="Number of measurements that the run has now, or would have.")
    faults: list[ImportFault] = Field(
        description="The first 1,000 faults, by line. If there is one, nothing is stored."
    )
