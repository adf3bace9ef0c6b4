"""Errors as documents."""

from pydantic import ConfigDict, Field

from blindopt.wire.base import Reply


class FieldProblem(Reply):
    """Where a request or a file is wrong. Never holds the value that was sent."""

    model_config = ConfigDict(extra="allow", frozen=True)

    message: str = Field(description="What is wrong.")
    field: str | None = Field(None, description="Path of the field in the request.")
    row: int | None = Field(None, description="Data row of a file, counted from 1 after the header.")
    line: int | None = Field(None, description="Line of a file, counted from 1.")
    column: str | None = Field(None, description="Column of a file.")


class BudgetProblem(Reply):
    """Which cap a request would pass. Known from the history of requests alone."""

    cap: str = Field(description="The cap of the study's budget.")
    row: int | None = Field(None, description="The row of Z, where the cap is one of each row.")
    requested: str = Field(description="What the request would cost: epsilon, or a number of measurements.")
    spent: str = Field(description="Of the cap, so far.")
    limit: str = Field(description="The cap.")


class Problem(Reply):
    """RFC 9457 problem document: every error of both services has this form."""

    type: str = Field(description="A URI reference that names the kind of problem.")
    title: str = Field(description="The kind of problem, for people.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What happened, and what to do.")
    instance: str = Field(description="The path that was asked.")
    code: str = Field(description="Stable name of the problem, for programs.")
    retryable: bool = Field(description="Whether the same request may succeed later.")
    request_id: str = Field(description="Names this request in the logs of the service.")
    errors: list[FieldProblem] | None = Field(None, description="Where the request or the file is wrong.")
    errors_total: int | None = Field(None, description="How many there are, where only the first are listed.")
    budget: BudgetProblem | None = Field(None, description="On privacy_budget_exhausted: the cap.")
