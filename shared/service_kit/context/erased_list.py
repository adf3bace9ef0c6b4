"""The list of what was erased, a file in the data folder. A restore of an older backup erases it again.

The file may lie in the data folder before a restore, which takes it from there.
"""

from collections.abc import Iterable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from blindopt.errors import StateConflict
from blindopt.wire.base import validator_of
from service_kit.context.keys import write_durably

NAME = "erased"
_IDS: TypeAdapter[list[str]] = validator_of(list[str])


def read(*files: Path) -> set[str]:
    """The ids in these lists; none in a file that is not there. Raises StateConflict for a file that is no list."""
    ids: set[str] = set()
    for path in files:
        try:
            ids |= set(_IDS.validate_json(path.read_bytes())) if path.exists() else set()
        except ValidationError:
            raise StateConflict(f"{path} is no list of what was erased") from None
    return ids


def add(path: Path, ids: Iterable[str]) -> None:
    write_durably(path, _IDS.dump_json(sorted(read(path).union(ids)), indent=1))
