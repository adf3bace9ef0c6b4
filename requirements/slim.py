"""Remove what no running service needs from the installed packages, then compile what services import.

Runs in the build of an image, after each installation, and leaves alone what an earlier layer has.
"""

import compileall
import filecmp
import importlib
import os
import shutil
import struct
import sys
import sysconfig
from collections import defaultdict
from pathlib import Path

SOURCES = {".a", ".c", ".cpp", ".h", ".hh", ".hpp", ".pxd", ".pxi", ".pyi", ".pyx", ".tp"}
UNUSED = [
    "*/test",
    "mpmath",
    "numpy/_core/_*_tests.*",
    "numpy/_core/_simd.*",
    "numpy/_core/tests/[!_]*",
    "numpy/distutils",
    "pyarrow/_acero.*",
    "pyarrow/_azurefs.*",
    "pyarrow/_csv.*",
    "pyarrow/_dataset*",
    "pyarrow/_feather.*",
    "pyarrow/_flight.*",
    "pyarrow/_gcsfs.*",
    "pyarrow/_hdfs.*",
    "pyarrow/_json.*",
    "pyarrow/_orc.*",
    "pyarrow/_pyarrow_cpp_tests.*",
    "pyarrow/_s3fs.*",
    "pyarrow/_substrait.*",
    "pyarrow/include",
    "pyarrow/libarrow_flight.*",
    "pyarrow/libarrow_s3.*",
    "pyarrow/src",
    "pygments/lexers/[!_p]*",
    "scipy/cluster",
    "scipy/datasets",
    "scipy/fftpack",
    "scipy/io/_fast_matrix_market/_fmm_core.*",
    "scipy/odr",
    "scipy/stats/_unuran",
    "sklearn/cluster",
    "sklearn/covariance",
    "sklearn/cross_decomposition",
    "sklearn/datasets/images",
    "sklearn/decomposition",
    "sklearn/ensemble",
    "sklearn/feature_selection",
    "sklearn/impute",
    "sklearn/inspection",
    "sklearn/manifold",
    "sklearn/mixture",
    "sklearn/neighbors",
    "sklearn/neural_network",
    "sklearn/semi_supervised",
    "sklearn/tree",
    "sqlalchemy/dialects/m*sql",
    "sqlalchemy/dialects/oracle",
    "sqlalchemy/ext",
    "sqlalchemy/orm",
    "sqlalchemy/testing",
    "watchfiles",
    "websockets",
]
"""Remote file systems and servers, other databases, mappers, estimators that no study uses, tests."""

IMPORTED = """
anyio._backends._asyncio anyio.streams.tls argon2 cffi cffi.cparser cryptography.fernet
cryptography.hazmat.primitives.asymmetric.ec cryptography.hazmat.primitives.asymmetric.ed25519
cryptography.hazmat.primitives.serialization cryptography.x509 dp_accounting.pld.privacy_loss_distribution fastapi
fastapi.responses fastapi.staticfiles fastapi.telemetry._runtime h11 httpcore httpx jinja2 numpy opendp.domains
opendp.measurements opendp.measures opendp.metrics opendp.mod prometheus_client psycopg pyarrow.compute
pyarrow.parquet pycparser.c_parser pydantic pydantic.v1 pydantic_settings pygal pygal.style python_multipart rfc8785
rich._emoji_codes rich.console rich.progress rich.table scipy.linalg scipy.optimize scipy.spatial scipy.special
scipy.stats sklearn.datasets sklearn.linear_model sqlalchemy sqlalchemy.dialects.postgresql sqlalchemy.dialects.sqlite
threadpoolctl typer typer._adapters uvicorn uvicorn.lifespan.on uvicorn.loops.uvloop
uvicorn.protocols.http.httptools_impl uvloop
"""
"""What the services and the demo import: the rest of these packages would be compiled for nothing."""


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


def same_files_linked(files: list[Path]) -> None:
    """Keep one of several files that are equal: NumPy and SciPy bring the same libraries."""
    by_size = defaultdict[int, list[Path]](list)
    for path in files:
        by_size[path.stat().st_size].append(path)
    for size, group in by_size.items():
        for path in group[1:] if size > 100_000 else ():
            if not path.samefile(group[0]) and filecmp.cmp(group[0], path, shallow=False):
                path.unlink()
                os.link(group[0], path)


def imported(packages: Path) -> list[Path]:
    """The files of all modules that come with what is installed of IMPORTED. Raises ImportError if one is broken."""
    for name in IMPORTED.split():
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name != name.partition(".")[0]:
                raise
    paths = [Path(str(getattr(module, "__file__", None))) for module in list(sys.modules.values())]
    return [path for path in paths if path.suffix == ".py" and path.is_relative_to(packages)]


def main() -> None:
    """Make the packages of this interpreter smaller."""
    sys.dont_write_bytecode = True
    packages = Path(sysconfig.get_paths()["purelib"])
    for pattern in UNUSED:
        for path in packages.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in packages.glob("pyarrow/libarrow_substrait.so.*"):  # linked with all of Arrow, called by nothing
        path.unlink()
        path.symlink_to(path.name.replace("_substrait", ""))
    for folder in [path for path in packages.rglob("tests") if path.is_dir()]:
        if folder.parent.name != "_core":  # numpy.testing, which scipy imports, reads one of its files
            shutil.rmtree(folder)
    files = [path for path in packages.rglob("*") if path.is_file() and not path.is_symlink()]
    for path in files:
        if path.suffix in SOURCES:
            path.unlink()
        elif ".so" in path.suffixes and len(slim := symbols_removed(path.read_bytes())) < path.stat().st_size:
            path.write_bytes(slim)
    same_files_linked([path for path in files if ".so" in path.suffixes])
    for path in imported(packages):
        if not compileall.compile_file(path, quiet=1):
            sys.exit(f"{path} does not compile")


if __name__ == "__main__":
    main()
