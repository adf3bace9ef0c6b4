"""Where y comes from: a column, people, or a system of the owner's."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from blindopt.wire.base import Name, Request

SHOWN_MAX = 50


class _Measurement(Request):
    """What all sources have."""

    direction: Literal["maximize", "minimize"] = Field(description="Which outcomes the owner looks for.")


class ColumnMeasurement(_Measurement):
    """y is a column of the dataset: a query is answered at once."""

    source: Literal["column"] = Field("column", description="Where y comes from: a column of the dataset.")
    column: Name = Field(description="The column of y; it cannot be a feature too.")
    noise_variance: float = Field(
        0.0, ge=0, le=1e50, description="sigma_n^2 of Gaussian noise that the curator adds to each answer."
    )


class _Measured(_Measurement):
    """y is measured when it is asked for: a query is pending until then.

    What is ``shown`` stays inside the owner's house: a modeler sees none of these fields but direction and
    noise_variance.
    """

    shown: list[Name] = Field(
        [], max_length=SHOWN_MAX, description="Columns of the record that are shown to whoever measures."
    )
    unit: Name | None = Field(None, description="Unit of y, for people.")
    lower: float | None = Field(None, ge=-1e50, le=1e50, description="Smaller values are refused as mistakes.")
    upper: float | None = Field(None, ge=-1e50, le=1e50, description="Larger values are refused as mistakes.")
    noise_variance: float = Field(
        0.0, ge=0, le=1e50, description="Of one measurement, as the owner knows it, in units of y^2; 0: not known."
    )
    due_hours: float | None = Field(
        None,
        ge=0.001,
        le=100_000,
        description=(
            "What is not measured so long after it was asked counts as declined, so that the modeler goes on; a "
            "later answer is still taken. Null: it is waited for."
        ),
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.lower is not None and self.upper is not None and not self.lower < self.upper:
            raise ValueError("lower must be smaller than upper")
        return self


class InboxMeasurement(_Measured):
    """y is what a person answers: a test on a patient, a visit to a house."""

    source: Literal["inbox"] = Field("inbox", description="Where y comes from: people with the role measurer.")
    question: str = Field(min_length=1, max_length=2_000, description="What is to be measured, for people.")


class WebhookMeasurement(_Measured):
    """y is what a system of the owner's answers, which the curator calls (setting MEASURER_URL)."""

    source: Literal["webhook"] = Field("webhook", description="Where y comes from: a system in the owner's network.")


def _source(value: Any) -> Any:
    """Of a body or a model: a column where it does not say."""
    return value.get("source", "column") if isinstance(value, dict) else getattr(value, "source", None)


MeasurementSpec = Annotated[
    Annotated[ColumnMeasurement, Tag("column")]
    | Annotated[InboxMeasurement, Tag("inbox")]
    | Annotated[WebhookMeasurement, Tag("webhook")],
    Discriminator(_source),
]
