"""A process whose objects are in large pages of memory: it looks up fewer addresses, and takes less processor time.

Python's own allocator takes memory by the megabyte, which fits no large page. That of glibc asks Linux for large pages
where its settings say so when a process begins. So the process becomes the same program again, with three variables
that its children do not inherit.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

# One arena, since threads of Python wait for each other anyhow.
ALLOCATOR = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"}
_BEGUN = "BLINDOPT_HUGE_PAGES"
_OFFERED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def use(command: str) -> None:
    """For this command, become the same program again, in large pages, where Linux and glibc offer them.

    Call it before anything is imported or opened. With PYTHONMALLOC or GLIBC_TUNABLES set, it does nothing.
    """
    if os.environ.pop(_BEGUN, None) is not None:
        for name in ALLOCATOR:
            os.environ.pop(name, None)
    elif _began_with(command) and not ALLOCATOR.keys() & os.environ.keys() and _are_offered():
        variables = os.environ | ALLOCATOR | {_BEGUN: "1"}
        with suppress(OSError):  # it goes on as it is
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], variables)  # noqa: S606  itself


def _began_with(command: str) -> bool:
    """Not so of a fork, which would become the program that it is a fork of."""
    return sys.argv[1:2] == [command] and sys.orig_argv[-len(sys.argv[1:]) :] == sys.argv[1:]


def _are_offered() -> bool:
    try:
        modes = _OFFERED.read_text()
        version = (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ").split(".")
        return "[never]" not in modes and tuple(map(int, version)) >= (2, 35)
    except (OSError, ValueError):  # not Linux, or not glibc
        return False
