"""What the candidates of a run are computed with: one part in this process, several on its threads, or a cluster."""

import os
from dataclasses import dataclass
from pathlib import Path

from blindopt import wire
from blindopt.formats.release_files import sections_of
from blindopt.gp.parts import Executor, Threads
from blindopt.gp.progress import Tick
from modeler_service.settings import Settings

PARTITIONED = wire.GpUcb | wire.GpBucb | wire.Ei
"""Algorithms whose choice is a maximum, which parts can be compared for. Others compute in one part."""
ROWS_MIN = 250_000
"""Candidates from which on a part of their own is worth a thread."""


@dataclass(frozen=True, slots=True)
class RunEngine:
    """What holds the parts of one run, with how it is described."""

    executor: Executor
    view: wire.RunEngine


def parts_of(settings: Settings, n: int, workers: int) -> int:
    """The number of parts of n candidates on threads: one for each of ``workers``, and none above the setting."""
    return max(1, -(-n // settings.engine_partition_rows), min(workers, n // ROWS_MIN))


def is_remote(settings: Settings, plan: wire.Plan) -> bool:
    """Whether the candidates of a run are computed with at a cluster, whose memory counts in place of this one's."""
    return "://" in settings.candidates_engine and isinstance(plan.algorithm, PARTITIONED)


def engine_of(
    settings: Settings, plan: wire.Plan, study: wire.StudyView, path: Path, memory_bytes: int, tick: Tick
) -> RunEngine:
    """Return the engine of a run whose candidates are in the file at ``path``, and which needs about so much memory.

    ``tick`` is called while it waits for a cluster. Raises EngineUnavailable where there is none.
    """
    if settings.candidates_engine == "process" or not isinstance(plan.algorithm, PARTITIONED):
        view = wire.RunEngine(name="process", parts=1, workers=1, memory_bytes=memory_bytes)
        return RunEngine(Threads(), view)
    if is_remote(settings, plan):
        return _at_cluster(settings, study, path, memory_bytes, tick)
    # Threads of BLAS would wait for each other, and those of the parts for them. This holds for the whole process.
    import scipy.linalg.blas  # noqa: F401  it brings a BLAS of its own, which is limited only once it is loaded
    from threadpoolctl import threadpool_limits

    threadpool_limits(1, user_api="blas")
    parts = parts_of(settings, study.n, workers := len(os.sched_getaffinity(0)))
    threads = min(parts, workers)
    view = wire.RunEngine(name="threads", parts=parts, workers=threads, memory_bytes=memory_bytes)
    return RunEngine(Threads(parts, threads), view)


def _at_cluster(settings: Settings, study: wire.StudyView, path: Path, memory_bytes: int, tick: Tick) -> RunEngine:
    from modeler_service.engines.remote import PartsCluster, Workers

    address = settings.candidates_engine.replace("dask://", "tcp://")
    cluster = PartsCluster(address, settings.engine_certificates)
    sections = sections_of(study.n, study.release_sha256, study.parts)
    workers = Workers(cluster, str(path), sections, settings.engine_step_seconds, tick)
    try:
        count = len(workers.living())
        cluster.check()
    except BaseException:
        cluster.close()
        raise
    parts = min(count, study.n)
    view = wire.RunEngine(name="dask", parts=parts, workers=parts, memory_bytes=memory_bytes)
    return RunEngine(workers, view)
