"""Parts at the workers of a Dask cluster, as actors. Only this module imports Dask (the extra ``dask``)."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

from blindopt.errors import EngineUnavailable, ExtraMissing
from modeler_service.engines.host import PartHost, PartSpec, differences, versions

CONNECT_SECONDS = 10
TESTED = {
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
}
"""What workers run with in deploy/dask: without these keys they are slow, or end a run that fits."""
_log = logging.getLogger("blindopt.engine")


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


class DaskCluster:
    """A connection to a scheduler, and straight to its workers.

    Raises EngineUnavailable if nobody answers, and ExtraMissing where Dask is not installed.
    """

    def __init__(self, address: str, certificates: tuple[str, str, str] | None) -> None:
        try:
            from distributed import Client, Security
        except ImportError:
            raise ExtraMissing("distributed", "dask", "blindopt-services") from None
        security: dict[str, Any] = {}
        if certificates is not None:
            ca, cert, key = certificates
            own = Security(tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key, require_encryption=True)
            security = {"security": own}
        try:
            self._client = Client(
                address, timeout=CONNECT_SECONDS, direct_to_workers=True, set_as_default=False, **security
            )
        except (OSError, TimeoutError, ValueError) as error:
            raise EngineUnavailable(f"the scheduler does not answer ({type(error).__name__})") from None

    def workers(self) -> dict[str, int]:
        """The living workers, with the bytes of memory that each may use (0: not limited)."""
        return {name: int(info["memory_limit"] or 0) for name, info in self._present().items()}

    def check(self) -> None:
        """Warn of settings with which workers are slow, or end a run that fits, with the names of the keys.

        Raises EngineUnavailable, with a list, if workers have other versions than this process, or lack the packages.
        """
        try:
            replies = self._client.run(about_worker, on_error="return", callback_timeout=CONNECT_SECONDS).values()
        except (OSError, TimeoutError) as error:
            raise EngineUnavailable(f"a worker does not answer ({type(error).__name__})") from None
        own, faults, wrong = versions(), set[str](), set[str]()
        for reply in replies:
            if isinstance(reply, BaseException):
                wrong.add(f"no modeler_service that answers ({type(reply).__name__})")
                continue
            keys, others = reply
            faults.update(keys)
            wrong.update(differences(own, others))
        if wrong:
            raise EngineUnavailable(f"workers have {', '.join(sorted(wrong))}")
        if faults:
            _log.warning("workers run without the tested settings", extra={"fields": {"keys": sorted(faults)}})

    def build(self, worker: str, spec: PartSpec) -> _Pending:
        """Begin to build a part at a worker, which works on it with as many threads as it has."""
        where: Mapping[str, Any] = {"workers": [worker], "allow_other_workers": False, "retries": 0}
        spec = replace(spec, threads=int(self._present()[worker]["nthreads"]))
        return _Pending(self._client.submit(PartHost, spec, actor=True, pure=False, key=f"part-{uuid4().hex}", **where))

    def call(self, held: Any, verb: str, *arguments: object) -> _Pending:
        """Begin a call of a part that was built."""
        actor = held[1]
        with self._client.as_current():  # an actor takes the client that it is first called with
            return _Pending(getattr(actor, verb)(*arguments), held)

    def _present(self) -> dict[str, Any]:
        """What the scheduler knows of its workers. Unlike ``scheduler_info`` it says when nobody answers."""
        client = self._client
        identity = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=CONNECT_SECONDS)
        workers: dict[str, Any] = identity["workers"]
        return workers

    def close(self) -> None:
        """Leave the cluster: the scheduler frees the parts of a client that is gone."""
        with suppress(Exception):  # of one that is gone already, Dask raises what its sockets raised
            self._client.close(timeout=CONNECT_SECONDS)


def about_worker() -> tuple[list[str], dict[str, str]]:
    """Run at a worker: the keys of its configuration that are not as tested, and its versions."""
    import dask

    return [name for name, value in TESTED.items() if dask.config.get(name, "absent") is not value], versions()
