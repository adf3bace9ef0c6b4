"""What tests begin with, in one vocabulary: a study, its releases and its answers. Changes are arguments."""

from collections.abc import Sequence
from typing import Any, get_args

from blindopt import wire
from blindopt.client import Owner
from blindopt.wire.run import AlgorithmSpec
from tests.given_settings import GP_UCB

IDENTITY = wire.IdentityRelease(mechanism="identity")
EXACT = wire.NoAnswerNoise(mechanism="none")
COLUMN = wire.ColumnMeasurement(column="y", direction="maximize")
BY_HAND = wire.InboxMeasurement(question="How much?", direction="maximize")
ALGORITHMS = 1 + len(get_args(get_args(AlgorithmSpec)[0]))
"""How many names an algorithm can have: auto is one more."""


def laplace(epsilon: str = "1", value_bound: float = 1.0, **more: Any) -> wire.LaplaceAnswers:
    """Private answers with Laplace noise."""
    return wire.LaplaceAnswers(mechanism="laplace", epsilon=epsilon, value_bound=value_bound, **more)


def group_release(
    epsilon: str = "0.5", parts: tuple[int, ...] = (3,), min_count: int | None = None, **more: Any
) -> wire.GroupsRelease:
    """A release of groups, by default of equal parts."""
    least = {} if min_count is None else {"min_count": min_count}
    cells = more.pop("cells", None) or wire.GridCells(kind="grid", parts=list(parts))
    return wire.GroupsRelease(mechanism="groups", epsilon=epsilon, cells=cells, **least, **more)


def a_study(
    release: wire.ReleaseSpec = IDENTITY,
    answers: wire.Answers = EXACT,
    unit: str = "row",
    *,
    d: int = 1,
    columns: Sequence[str] = (),
    variance: float = 0.0,
    lower: float = 0.0,
    upper: float = 1.0,
    **more: Any,
) -> wire.StudyCreate:
    """A study of these columns, or of ``d`` features x0, x1, ..., with the same bounds, and caps by their names.

    Answers of other persons are measured by people: a column has one value behind all of them.
    """
    caps = {name: more.pop(name) for name in wire.Budget.model_fields.keys() & more.keys()}
    scale = {"scale": more.pop("scale")} if "scale" in more else {}
    columns = columns or [f"x{i}" for i in range(d)]
    values: dict[str, Any] = {
        "name": "s",
        "dataset_id": "ds_0000000000000000",
        "features": [wire.Feature(column=c, lower=lower, upper=upper, **scale) for c in columns],
        "measurement": COLUMN.model_copy(update={"noise_variance": variance}) if unit == "row" else BY_HAND,
        "release": release,
        "answers": answers,
        "privacy_unit": unit,
        "budget": wire.Budget(**caps),
    }
    return wire.StudyCreate(**values | more)


def a_study_of(
    small: Any, dataset_id: str, release: wire.ReleaseSpec = IDENTITY, of_column: Any = None, **more: Any
) -> wire.StudyCreate:
    """A study on the small data of tests/conftest.py; ``of_column``: changes of its measurement."""
    measurement = COLUMN.model_copy(update={"column": small.names[2]} | (of_column or {}))
    return a_study(release, **{"features": small.features, "measurement": measurement, "dataset_id": dataset_id} | more)


def a_run(curator_url: str, study_id: str, token: str, **chosen: Any) -> wire.RunCreate:
    """A run of GP-UCB of which nothing is left to the defaults."""
    return wire.RunCreate(curator_url=curator_url, study_id=study_id, token=token, **GP_UCB | chosen)


def keep_apart(owner: Owner, dataset: wire.DatasetView) -> None:
    """Decide that the account of a dataset is not that of others with the same people: of other tests."""
    if dataset.overlaps and any(o.decision == "undecided" for o in owner.dataset(dataset.id).view.overlaps):
        owner.decide_overlap(dataset.id, separate="another test has these records")


def registered_apart(owner: Owner, name: str, file: bytes, **more: Any) -> wire.DatasetView:
    """A dataset of a file, whose account is not that of others with the same people: of other tests."""
    dataset = owner.register(name, file, **more)
    keep_apart(owner, dataset)
    return dataset
