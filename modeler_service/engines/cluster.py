"""The client of a Dask cluster, in a process of its own, because scheduler and workers can run programs in it.

Dask unpickles what they send. So this process can open no file of the service: not its keys, database or memory. It
gets pickles from the service, and replies with bounded lines of JSON, each followed by arrays in the format npy.
Only this module imports Dask.
"""

import io
import os
import pickle  # noqa: TID251  it reads those of the service alone, and may open no file of it
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from uuid import uuid4

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from blindopt.errors import BlindoptError, EngineUnavailable
from modeler_service.engines.host import PartHost, PartSpec, about_worker, arrays_of, differences, versions
from service_kit import landlock

CONNECT_SECONDS = 10
Certificates = tuple[str, str, str]
"""The files of the CA, a certificate and its key."""
Text = Annotated[str, Field(max_length=300)]
LINE_BYTES = 1 << 20


class Reply(BaseModel):
    """What the process answers to the request with this number; an ``error`` has its kind and words."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: int
    error: Text = ""
    detail: Text = ""
    words: dict[Text, Text] = Field(default={}, max_length=100)
    numbers: dict[Text, int] = Field(default={}, max_length=4_096)
    arrays: list[Annotated[int, Field(ge=0)]] = Field(default=[], max_length=8)
    """The bytes of each array that follows."""


@dataclass(frozen=True, slots=True)
class Opening:
    """How to reach a cluster, and all that its client may read."""

    address: str
    certificates: Certificates | None
    readable: Iterable[Path]


class DaskCluster:
    """A connection to a scheduler, and straight to its workers, which hold parts of the candidates as actors.

    Each public method answers a request, and returns words, numbers and arrays.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._parts: dict[int, Any] = {}

    def connect(self) -> dict[str, Any]:
        """Connect within CONNECT_SECONDS. Raises EngineUnavailable if nobody answers."""
        from distributed import Client, Security

        opening, security = self._opening, dict[str, Any]()
        if opening.certificates is not None:
            ca, cert, key = opening.certificates
            own = Security(tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key, require_encryption=True)
            security = {"security": own}
        try:
            self.client = Client(
                opening.address, timeout=CONNECT_SECONDS, direct_to_workers=True, set_as_default=False, **security
            )
        except (OSError, TimeoutError, ValueError) as error:
            raise EngineUnavailable(f"the scheduler does not answer ({type(error).__name__})") from None
        return {}

    def workers(self) -> dict[str, Any]:
        """The living workers, with the bytes of memory that each may use (0: not limited)."""
        return {"numbers": {name: int(info["memory_limit"] or 0) for name, info in self._present().items()}}

    def check(self) -> dict[str, Any]:
        """The keys of settings with which workers are slow, or end a run that fits.

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
        return {"words": dict.fromkeys(sorted(faults), "")}

    def build(self, part: int, worker: str, spec: PartSpec) -> dict[str, Any]:
        """Build a part at a worker, which works on it with as many threads as it has."""
        where: Mapping[str, Any] = {"workers": [worker], "allow_other_workers": False, "retries": 0}
        spec = replace(spec, threads=int(self._present()[worker]["nthreads"]))
        future = self.client.submit(PartHost, spec, actor=True, pure=False, key=f"part-{uuid4().hex}", **where)
        self._parts[part] = future
        self._parts[part] = future, future.result()
        return {}

    def call(self, part: int, method: str, *arguments: object) -> dict[str, Any]:
        with self.client.as_current():  # an actor takes the client that it is first called with
            return arrays_of(getattr(self._parts[part][1], method)(*arguments).result())

    def free(self, part: int) -> dict[str, Any]:
        self._parts.pop(part, None)
        return {}

    def _present(self) -> dict[str, Any]:
        """What the scheduler knows of its workers. Unlike ``scheduler_info`` it says when nobody answers."""
        client = self.client
        identity = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=CONNECT_SECONDS)
        workers: dict[str, Any] = identity["workers"]
        return workers


@dataclass(frozen=True, slots=True)
class Program:
    """Answers requests until the service closes the pipe; then the scheduler frees what it holds for this client."""

    confine: Callable[[Iterable[Path]], None] = landlock.confine

    def run(self) -> None:
        """Read the requests from the standard input. Each has a thread of its own, because its worker may hang."""
        with open(0, "rb", closefd=False) as source, os.fdopen(os.dup(1), "wb") as sink:
            os.dup2(2, 1)  # what else is printed is no reply
            opening: Opening = pickle.load(source)  # noqa: S301  the service's own
            import distributed  # noqa: F401  what it reads of the machine, it may read here

            self.confine(opening.readable)
            cluster, lock = DaskCluster(opening), threading.Lock()
            while source.peek(1):
                number, verb, arguments = pickle.load(source)  # noqa: S301  likewise
                work = partial(getattr(cluster, verb), *arguments)
                threading.Thread(target=_answer, args=(number, work, sink, lock), daemon=True).start()
            os._exit(0)  # at once: a worker may hang


def _answer(number: int | None, work: Callable[[], dict[str, Any]], sink: BinaryIO, lock: threading.Lock) -> None:
    arrays: list[bytes] = []
    try:
        values = work()
        if number is None:
            return
        arrays = [_npy(array) for array in values.pop("arrays", ())]
        reply = Reply(number=number, arrays=[len(array) for array in arrays], **values)
    except Exception as error:
        words = str(error) if isinstance(error, BlindoptError) else ""
        reply = Reply(number=number or 0, error=type(error).__name__[:300], detail=words[:300])
    with lock:
        sink.write(b"".join([reply.model_dump_json().encode(), b"\n", *arrays]))
        sink.flush()


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


PROGRAM = Program()
