"""The file of links: modelers to which this curator opens connections."""

import json
from collections.abc import Iterable
from pathlib import Path

from blindopt import bodies, wire
from blindopt.errors import Invalid, StateConflict
from blindopt.formats.text_files import read_text_file, save_secret


def read(path: Path) -> list[wire.LinkFile]:
    """The links in a file; none if there is no file.

    Raises StateConflict for a file that cannot be read, or is none of links. Its text, which is logged and sent to
    owners, holds no path.
    """
    try:
        links: list[wire.LinkFile] = bodies.parse(read_text_file(path).encode(), list[wire.LinkFile])
    except FileNotFoundError:
        return []
    except OSError as error:  # such as a file of another user, who ran `link add`
        raise StateConflict(f"the file {path.name} cannot be read: {str(error.strerror).lower()}") from None
    except Invalid:
        raise StateConflict(f"the file {path.name} is not a list of links: `link add` writes it") from None
    return links


def write(path: Path, links: Iterable[wire.LinkFile]) -> None:
    """Replace the links in a file that only this user can read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_suffix(".part")
    partial.unlink(missing_ok=True)
    save_secret(partial, json.dumps([link.model_dump(mode="json") for link in links], indent=1))
    partial.replace(path)


def address_of(link: wire.LinkFile) -> str:
    """The address of this curator in grants that are used over a link."""
    return f"link://{link.id}"
