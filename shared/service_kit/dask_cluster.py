"""A connection to the scheduler of a Dask cluster, and to its workers. Only this module imports Dask."""

import logging
import platform
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from blindopt.errors import EngineUnavailable, ExtraMissing

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
Certificates = tuple[str, str, str]
"""The files of the CA, a certificate and its key."""
_log = logging.getLogger("blindopt.engine")


def versions() -> dict[str, str]:
    """What must be the same in all processes that work on one thing."""
    import numpy as np

    try:
        own = version("blindopt")
    except PackageNotFoundError:  # a checkout on the path
        own = "checkout"
    return {"Python": platform.python_version(), "numpy": np.__version__, "blindopt": own}


def differences(own: dict[str, str], others: dict[str, str]) -> list[str]:
    """The versions of another process that differ, in words."""
    return [f"{name} {others.get(name)} instead of {own[name]}" for name in own if others.get(name) != own[name]]


def about_worker() -> tuple[list[str], dict[str, str]]:
    """Run at a worker: the keys of its configuration that are not as tested, and its versions."""
    import dask

    return [name for name, value in TESTED.items() if dask.config.get(name, "absent") is not value], versions()


@cache
def _client_type() -> Any:
    from distributed import Client

    class ExplicitlyClosed(Client):  # type: ignore[misc]  # it has no types
        """A client that is closed when its scheduler does not answer, and never by the garbage collector.

        To close it takes a lock of its library. The collector runs at any moment: also in a thread that holds this
        lock, which then waits for itself, and every other thread that connects waits with it.
        """

        def start(self, **options: Any) -> None:
            try:
                super().start(**options)
            except BaseException:
                self.end()
                raise

        def end(self) -> None:
            """Close it, and end its thread also where the scheduler is gone."""
            with suppress(Exception):  # of a scheduler that is gone, Dask raises what its sockets raised
                self.close(timeout=CONNECT_SECONDS)
            self.status = "closed"
            if self._loop_runner.is_started():
                self._loop_runner.stop()

        def __del__(self) -> None:
            pass

    return ExplicitlyClosed


class DaskCluster:
    """A connection to a scheduler, made within ``connect_seconds``, and straight to its workers.

    Raises EngineUnavailable if nobody answers, and ExtraMissing where Dask is not installed.
    """

    def __init__(
        self, address: str, certificates: Certificates | None, connect_seconds: float = CONNECT_SECONDS
    ) -> None:
        try:
            from distributed import Security
        except ImportError:
            raise ExtraMissing("distributed", "dask", "blindopt-services") from None
        security: dict[str, Any] = {}
        if certificates is not None:
            ca, cert, key = certificates
            own = Security(tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key, require_encryption=True)
            security = {"security": own}
        try:
            self.client = _client_type()(
                address, timeout=connect_seconds, direct_to_workers=True, set_as_default=False, **security
            )
        except (OSError, TimeoutError, ValueError) as error:
            raise EngineUnavailable(f"the scheduler does not answer ({type(error).__name__})") from None

    def workers(self) -> dict[str, int]:
        """The living workers, with the bytes of memory that each may use (0: not limited)."""
        return {name: int(info["memory_limit"] or 0) for name, info in self.present().items()}

    def present(self) -> dict[str, Any]:
        """What the scheduler knows of its workers. Unlike ``scheduler_info`` it says when nobody answers."""
        client = self.client
        identity = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=CONNECT_SECONDS)
        workers: dict[str, Any] = identity["workers"]
        return workers

    def check(self) -> None:
        """Warn of settings with which workers are slow, or end a run that fits, with the names of the keys.

        Raises EngineUnavailable, with a list, if workers have other versions than this process, or lack the packages.
        """
        try:
            replies = self.client.run(about_worker, on_error="return", callback_timeout=CONNECT_SECONDS).values()
        except (OSError, TimeoutError) as error:
            raise EngineUnavailable(f"a worker does not answer ({type(error).__name__})") from None
        own, faults, wrong = versions(), set[str](), set[str]()
        for reply in replies:
            if isinstance(reply, BaseException):
                wrong.add(f"no blindopt services that answer ({type(reply).__name__})")
                continue
            keys, others = reply
            faults.update(keys)
            wrong.update(differences(own, others))
        if wrong:
            raise EngineUnavailable(f"workers have {', '.join(sorted(wrong))}")
        if faults:
            _log.warning("workers run without the tested settings", extra={"fields": {"keys": sorted(faults)}})

    def close(self) -> None:
        """Leave the cluster: the scheduler frees what it holds for a client that is gone."""
        self.client.end()
