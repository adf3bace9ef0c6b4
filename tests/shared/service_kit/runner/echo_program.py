"""A program for child processes that does what its job says: for tests of the protocol."""

import os
import sys
from typing import Literal

from blindopt.arrays import Matrix
from blindopt.errors import NumericalFailure, ReleaseImpossible, TuningImpossible
from service_kit import runner

SECRET = "77123456789.25"
ERRORS: dict[str, Exception] = {
    "release": ReleaseImpossible("no such release"),
    "tuning": TuningImpossible("no such tuning", "grid.0"),
    "known": NumericalFailure("the numbers are bad"),
    "memory": MemoryError(SECRET),
    "fault": ZeroDivisionError(SECRET),
}


class Job(runner.Message):
    action: Literal["echo", "progress", "hang", "die", "half", "raise"]
    argument: str = ""


class Reply(runner.Reply):
    numbers: str | None = None
    """The array's bytes in hexadecimal digits."""
    shape: list[int] | None = None
    pid: int | None = None


def _work(job: Job, array: Matrix | None, sender: runner.Sender[Reply]) -> Reply:
    match job.action:
        case "progress":
            for step in range(1_025):
                sender.progress(step / 1_024)
        case "hang":
            sender.send(Reply(pid=os.getpid()))
            while True:
                pass
        case "die":
            sys.stderr.write(SECRET)
            os._exit(3)
        case "half":
            sender.send(Reply(pid=os.getpid()))
            os.write(1, Reply(is_last=True).model_dump_json().encode())  # without the end of the line
            os._exit(0)
        case "raise":
            raise ERRORS[job.argument]
    if array is None:
        return Reply(pid=os.getpid())
    return Reply(numbers=array.tobytes().hex(), shape=list(array.shape), pid=os.getpid())


PROGRAM = runner.Program(__name__, Job, Reply, _work, core=0, niceness=1, out_of_memory="too little", advice="; rest")
