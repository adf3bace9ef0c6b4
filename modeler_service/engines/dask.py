"""Parts at the workers of a Dask cluster, as actors."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from modeler_service.engines.host import PartHost, PartSpec
from service_kit.dask_cluster import DaskCluster


class _Pending:
    """A call of an actor, or the building of one."""

    def __init__(self, future: Any, held: Any = None) -> None:
        self._future, self._held = future, held

    def result(self, timeout: float) -> object:
        try:
            result = self._future.result(timeout)
        except TimeoutError:
            if self._future.done():  # it is the worker that timed out
                raise ConnectionError from None
            raise
        return (self._future, result) if self._held is None else result


class PartsCluster(DaskCluster):
    """A connection to workers that hold parts of the candidates."""

    def build(self, worker: str, spec: PartSpec) -> _Pending:
        """Begin to build a part at a worker, which works on it with as many threads as it has."""
        where: Mapping[str, Any] = {"workers": [worker], "allow_other_workers": False, "retries": 0}
        spec = replace(spec, threads=int(self.present()[worker]["nthreads"]))
        return _Pending(self.client.submit(PartHost, spec, actor=True, pure=False, key=f"part-{uuid4().hex}", **where))

    def call(self, held: Any, verb: str, *arguments: object) -> _Pending:
        """Begin a call of a part that was built."""
        actor = held[1]
        with self.client.as_current():  # an actor takes the client that it is first called with
            return _Pending(getattr(actor, verb)(*arguments), held)
