"""What a forecast on public rows is made from: rows of the declared box, and a band of length-scales."""

import numpy as np

from blindopt.arrays import Matrix
from blindopt.errors import Invalid
from blindopt.wire import Feature, ForecastCreate, Kernel, StudyCreate
from curator_service.studies import public_kernels

_ROWS = 4  # a stream of the seed that the simulation does not use


def kernels_of(study: StudyCreate, forecast: ForecastCreate) -> list[Kernel]:
    """The kernels of a forecast, by increasing length-scale, from public values alone.

    On public rows three: the middle one is the study's, or else follows from the declared box. On the records the
    study's alone: Invalid where it has none.
    """
    if forecast.rows == "public":
        return public_kernels.band(study)
    if study.kernel is None:
        fault: dict[str, object] = {"field": "kernel", "message": "the study has none"}
        raise Invalid("a forecast on the records draws from the study's kernel: declare one in the draft", [fault])
    return [study.kernel]


def uniform_rows(features: list[Feature], n: int, seed: int) -> Matrix:
    """Draw ``n`` raw rows, uniform in the declared box: (n, d). They depend on no record."""
    rng = np.random.default_rng([seed, _ROWS])
    lower, upper = np.array([(feature.lower, feature.upper) for feature in features]).T
    rows: Matrix = lower + (upper - lower) * rng.random((n, len(features)))
    return rows
