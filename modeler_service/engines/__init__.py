"""Where the candidates of a run are computed with: one part in this process, or several on its threads."""

import os
from dataclasses import dataclass

from blindopt import wire
from blindopt.gp.partitions.engines import Engine, LocalEngine
from modeler_service.settings import Settings

PARTITIONED = wire.GpUcb | wire.GpBucb | wire.Ei
"""Algorithms whose choice is a maximum, which parts can be compared for. Others compute in one part."""
ROWS_MIN = 250_000
"""Candidates from which on a part of their own is worth a thread."""


@dataclass(frozen=True, slots=True)
class RunEngine:
    """The engine of one run, with how it is described."""

    engine: Engine
    view: wire.RunEngine


def parts_of(settings: Settings, n: int) -> int:
    """The number of parts of n candidates on threads: one for each processor, and none above the setting."""
    return max(1, -(-n // settings.engine_partition_rows), min(processors(), n // ROWS_MIN))


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def engine_of(settings: Settings, plan: wire.Plan, n: int, memory_bytes: int) -> RunEngine:
    """Return the engine of a run over n candidates that needs about so much memory."""
    if settings.candidates_engine == "process" or not isinstance(plan.algorithm, PARTITIONED):
        view = wire.RunEngine(name="process", parts=1, workers=1, memory_bytes=memory_bytes)
        return RunEngine(LocalEngine(), view)
    # Threads of BLAS would wait for each other, and those of the parts for them. This holds for the whole process.
    import scipy.linalg.blas  # noqa: F401  it brings a BLAS of its own, which is limited only once it is loaded
    from threadpoolctl import threadpool_limits

    threadpool_limits(1, user_api="blas")
    parts = parts_of(settings, n)
    threads = min(parts, processors())
    view = wire.RunEngine(name="threads", parts=parts, workers=threads, memory_bytes=memory_bytes)
    return RunEngine(LocalEngine(lambda _: parts, threads), view)
