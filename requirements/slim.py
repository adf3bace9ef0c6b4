"""Remove what no running service needs from the installed packages, then compile the rest.

Runs in the build of an image, after each installation, and leaves alone what an earlier layer has.
"""

import compileall
import shutil
import struct
import sys
import sysconfig
from pathlib import Path

SOURCES = {".a", ".c", ".cpp", ".h", ".hh", ".hpp", ".pxd", ".pxi", ".pyi", ".pyx", ".tp"}
UNUSED = [
    "pyarrow/include",
    "pyarrow/src",
    "pyarrow/_flight.*",
    "pyarrow/libarrow_flight.*",
    "pyarrow/_s3fs.*",
    "pyarrow/libarrow_s3.*",
    "pyarrow/libarrow_python.so.*.*.*",
    "matplotlib/mpl-data/sample_data",
    "sqlalchemy/testing",
]
"""Remote file systems and servers of Arrow, second copies, examples, tests."""


def symbols_removed(elf: bytes) -> bytes:
    """A 64-bit shared object without its symbol table and section headers, which no loader reads.

    They are what follows the last byte of its segments: half of opendp's library.
    """
    if elf[:6] != b"\x7fELF\x02\x01":
        return elf
    headers, (size, count) = struct.unpack_from("<Q", elf, 32)[0], struct.unpack_from("<HH", elf, 54)
    end = headers + size * count
    for number in range(count):
        offset, _, _, length = struct.unpack_from("<QQQQ", elf, headers + size * number + 8)
        end = max(end, offset + length)
    slim = bytearray(elf[:end])
    struct.pack_into("<Q", slim, 40, 0)
    struct.pack_into("<HHH", slim, 58, 0, 0, 0)
    return bytes(slim)


def main() -> None:
    """Make the packages of this interpreter smaller."""
    packages = Path(sysconfig.get_paths()["purelib"])
    for pattern in UNUSED:
        for path in packages.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for folder in [path for path in packages.rglob("tests") if path.is_dir()]:
        if folder.parent.name != "_core":  # numpy.testing, which scipy imports, reads one of its files
            shutil.rmtree(folder)
    for path in [path for path in packages.rglob("*") if path.is_file() and not path.is_symlink()]:
        if path.suffix in SOURCES:
            path.unlink()
        elif ".so" in path.suffixes and len(slim := symbols_removed(path.read_bytes())) < path.stat().st_size:
            path.write_bytes(slim)
    if not compileall.compile_dir(packages, quiet=1, workers=2):
        sys.exit("a package does not compile")


if __name__ == "__main__":
    main()
