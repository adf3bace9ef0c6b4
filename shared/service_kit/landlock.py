"""Confine this process to reading some files for good, with Landlock of Linux: also for root, and for its children.

A filter of system calls closes what Landlock leaves open: sockets by which another process could send an open file, and
limits of other processes.
"""

import ctypes
import errno
import os
import struct
import sys
import sysconfig
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from socket import AF_UNIX

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of system calls, the same on all architectures."""
_RIGHTS_OF_FILES = (13, 13, 14, 15, 15)
"""How many rights to files each version knows, from the first on; the last number holds for all later ones too."""
_EXECUTE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 2, 1 << 3
_BIND_TCP, _SOCKETS_AND_SIGNALS = 1 << 0, 3
_SET_SECCOMP, _NO_NEW_PRIVILEGES = 22, 38
_SOCKET_AND_LIMITS = {"x86_64": (0xC000003E, 41, 302), "aarch64": (0xC00000B7, 198, 261)}
"""By machine: its name in a filter, and the numbers of ``socket`` and ``prlimit64``."""
_IO_URING, _X32 = 425, 1 << 30
_ALLOW, _REFUSE = 0x7FFF0000, 0x50000 | errno.EPERM
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_OF_THE_MACHINE = (
    *("/usr", "/lib", "/lib64", "/dev/null", "/dev/urandom"),
    *(f"/etc/{name}" for name in ("resolv.conf", "hosts", "nsswitch.conf", "host.conf", "gai.conf", "ld.so.cache")),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/localtime"),
)


def version() -> int:
    """The version of Landlock that a process may use here; 0: the kernel, the container or the unit permits none.

    Also 0 on a machine whose system calls are not known here.
    """
    return max(0, _call(_CREATE_RULESET, None, 0, 1)) if os.uname().machine in _SOCKET_AND_LIMITS else 0


def code_paths(*packages: str) -> list[Path]:
    """What a process of this interpreter reads to import these packages, and to look up and trust other machines."""
    installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = [Path(spec.origin).parent for name in packages if (spec := find_spec(name)) and spec.origin]
    paths = [*map(Path, _OF_THE_MACHINE), Path(sys.base_prefix) / "lib", *installed, *folders]
    return [path for path in dict.fromkeys(paths) if path.exists()]


def confine(readable: Iterable[Path]) -> None:
    """Let this process read these files and folders, write none, and reach processes by no signal, memory or socket.

    TCP stays open. It holds for threads that begin later, so there must be one alone. Raises OSError if Landlock or the
    filter is not permitted.
    """
    abi = version()
    rights = (1 << _RIGHTS_OF_FILES[min(abi, len(_RIGHTS_OF_FILES)) - 1]) - 1
    attributes = struct.pack("=QQQ", rights, _BIND_TCP if abi >= 4 else 0, _SOCKETS_AND_SIGNALS if abi >= 6 else 0)
    if not abi or len(list(Path("/proc/self/task").iterdir())) > 1:
        raise OSError("Landlock is not permitted here, or threads run already")
    ruleset = _checked(_call(_CREATE_RULESET, attributes, len(attributes), 0))
    for path in readable:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = _EXECUTE | _READ_FILE | (_READ_FOLDER if path.is_dir() else 0)
        _checked(_call(_ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, opened), 0))
        os.close(opened)
    _checked(_C.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _checked(_call(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)
    _filter_calls()


def _filter_calls() -> None:
    """Refuse sockets of this machine, limits of other processes, and io_uring, which would open such sockets too."""
    machine, socket, limits = _SOCKET_AND_LIMITS[os.uname().machine]
    number, architecture, first_argument = 0, 4, 16
    steps = [  # operation, how many steps to skip if it holds and if not, value
        (_LOAD, 0, 0, architecture),
        (_IF_EQUAL, 0, 10, machine),
        (_LOAD, 0, 0, number),
        (_IF_AT_LEAST, 8, 0, _X32),
        (_IF_EQUAL, 7, 0, _IO_URING),
        (_IF_EQUAL, 2, 0, socket),
        (_IF_EQUAL, 3, 0, limits),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, first_argument),  # the family of a socket
        (_IF_EQUAL, 2, 3, AF_UNIX),
        (_LOAD, 0, 0, first_argument),  # the process whose limits they are, or 0
        (_IF_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    _checked(_C.prctl(_SET_SECCOMP, 2, program, 0, 0))


_C = ctypes.CDLL(None, use_errno=True)


def _call(*arguments: int | bytes | None) -> int:
    return int(_C.syscall(*(ctypes.c_long(value) if isinstance(value, int) else value for value in arguments)))


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
