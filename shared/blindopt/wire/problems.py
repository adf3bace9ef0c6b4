"""Error documents."""

from typing import Literal

from pydantic import ConfigDict, Field

from blindopt.wire.base import Reply


class FieldProblem(Reply):
    """A fault in a request or a file. Never holds the rejected value."""

    model_config = ConfigDict(extra="allow", frozen=True)

    message: str = Field(description="What is wrong, for people.")
    field: str | None = Field(None, description="Path of the field in the request.")
    row: int | None = Field(None, description="Data row of a file, counted from 1 after the header.")
    line: int | None = Field(None, description="Line of a file, counted from 1.")
    column: str | None = Field(None, description="Column of a file.")
    count: int | None = Field(
        None, description="Number of faults of this kind in the column, of which this is the first; null: one."
    )


class BudgetProblem(Reply):
    """The cap that a request would exceed. Depends only on the history of requests.

    To a modeler, only on the history of its own grant's requests: it reads nothing here about other grants.
    """

    cap: str | None = Field(
        None,
        description=(
            "The cap of the study's budget; dataset.epsilon and dataset.delta: of its dataset's account. Null to a "
            "modeler whose own spending leaves room for the request, so that other spending decides."
        ),
    )
    row: int | None = Field(None, description="The candidate (row of Z), if the cap is one for each record.")
    requested: str = Field(description="What the request would cost: epsilon, or a number of measurements.")
    spent: str = Field(
        description="Amount spent of the cap so far; to a modeler: by the release and by its own grant's answers."
    )
    limit: str | None = Field(None, description="The cap; null where cap is.")
    remaining: Literal["none", "some"] | None = Field(
        None,
        description=(
            "To a modeler: whether one answer more fits beside what its own grant spent; none, too, where one "
            "answer was refused. What other grants spent may leave less. Null to others."
        ),
    )


class Problem(Reply):
    """RFC 9457 problem document: every error of both services has this form."""

    type: str = Field(description="A URI reference that names the kind of problem.")
    title: str = Field(description="The kind of problem, for people.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What happened, and what to do.")
    instance: str = Field(description="The requested path.")
    code: str = Field(description="Stable error code, for programs.")
    retryable: bool = Field(description="Whether the same request may succeed later.")
    request_id: str = Field(description="Id of this request in the logs of the service.")
    errors: list[FieldProblem] | None = Field(None, description="Faults in the request or the file.")
    errors_total: int | None = Field(None, description="Number of faults, if only the first ones are listed.")
    budget: BudgetProblem | None = Field(None, description="The exceeded cap, for the code privacy_budget_exhausted.")
