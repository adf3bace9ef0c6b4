"""Sources of y: a column of the dataset, people, or the owner's measuring system."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from blindopt.wire.base import Name, Request

SHOWN_MAX = 50


class _Measurement(Request):
    """Fields of all sources."""

    direction: Literal["maximize", "minimize"] = Field(
        description="Whether the owner looks for the largest or the smallest outcome."
    )


class ColumnMeasurement(_Measurement):
    """y is a column of the dataset: queries are answered at once."""

    source: Literal["column"] = Field("column", description="Source of y: a column of the dataset.")
    column: Name = Field(description="The column of y; it cannot also be a feature.")
    noise_variance: float = Field(
        0.0,
        ge=0,
        le=1e50,
        description="sigma_n^2, the variance of Gaussian noise that the curator adds to each answer.",
    )


class _Measured(_Measurement):
    """y is measured on request: a query is pending until then.

    Of these fields, a modeler sees only direction and noise_variance.
    """

    shown: list[Name] = Field(
        [],
        max_length=SHOWN_MAX,
        description="Columns of the record that are shown to the person or system that measures.",
    )
    unit: Name | None = Field(None, description="Unit of y, for display.")
    lower: float | None = Field(
        None, ge=-1e50, le=1e50, description="Smallest plausible value: smaller ones are refused."
    )
    upper: float | None = Field(
        None, ge=-1e50, le=1e50, description="Largest plausible value: larger ones are refused."
    )
    noise_variance: float = Field(
        0.0,
        ge=0,
        le=1e50,
        description="Noise variance of one measurement, if the owner knows it, in units of y^2; 0: unknown.",
    )
    due_hours: float | None = Field(
        None,
        ge=0.001,
        le=100_000,
        description=(
            "A measurement that is open for so long counts as declined, so that the modeler can continue; a later "
            "answer is still accepted. Null: no limit."
        ),
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.lower is not None and self.upper is not None and not self.lower < self.upper:
            raise ValueError("lower must be smaller than upper")
        return self


class InboxMeasurement(_Measured):
    """y is measured by a person, such as a test on a patient or a visit to a house."""

    source: Literal["inbox"] = Field("inbox", description="Source of y: people with the role measurer.")
    question: str = Field(min_length=1, max_length=2_000, description="What to measure, for people.")


class WebhookMeasurement(_Measured):
    """y is measured by the owner's system, which the curator calls (setting MEASURER_URL)."""

    source: Literal["webhook"] = Field("webhook", description="Source of y: a system in the owner's network.")


def _source(value: Any) -> Any:
    """Return the source of a body or a model; "column" if it has none."""
    return value.get("source", "column") if isinstance(value, dict) else getattr(value, "source", "column")


MeasurementSpec = Annotated[
    Annotated[ColumnMeasurement, Tag("column")]
    | Annotated[InboxMeasurement, Tag("inbox")]
    | Annotated[WebhookMeasurement, Tag("webhook")],
    Discriminator(_source),
]
