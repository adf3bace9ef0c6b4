"""Houses whose prices nobody wrote down, two services as real processes, and the people who log in at them.

Both start by the commands of the tutorials, and are visited at the addresses that these print.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.conftest import Service

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENTS = {"curator": DOCS / "owner.md", "modeler": DOCS / "vendor.md"}
PASSWORD = "a long one, made up for tests"
PEOPLE = {
    "curator": {"olga": "owner", "mia": "measurer", "ada": "auditor"},
    "modeler": {"vera": "vendor", "ivo": "viewer"},
}
QUICK = {"modeler": {"people_hold_seconds": "1", "people_seconds": "0.5", "people_seconds_max": "1"}}
"""Runs look for answers of people soon: nobody waits for a browser here."""
BOUNDS = {"area_m2": (30, 250), "built": (1900, 2025)}


def price(area: float, built: float) -> int:
    """What a visit would find, in thousands: one kind of house is sought most, and the others less and less."""
    return round(200 + 500 * float(np.exp(-(((area - 180) / 100) ** 2) - ((built - 1935) / 60) ** 2)))


def houses(count: int = 150) -> np.ndarray:
    """Number, area and year of each, (count, 3)."""
    rng = np.random.default_rng(11)
    area, built = rng.integers(35, 245, size=count), rng.integers(1902, 2024, size=count)
    return np.column_stack([np.arange(1, count + 1), area, built])


def houses_csv() -> bytes:
    """As a file: all that the owner knows, without any price."""
    lines = ["house,area_m2,built", *(",".join(map(str, row)) for row in houses().tolist())]
    return ("\n".join(lines) + "\n").encode()


@dataclass(frozen=True)
class BothServices:
    """The two services, started."""

    curator: Service
    modeler: Service

    def service_of(self, name: str) -> Service:
        """The service at whose console a person logs in."""
        return self.curator if name in PEOPLE["curator"] else self.modeler

    def address_of(self, name: str) -> str:
        """Where a person opens the console: as a document says, but for the port."""
        service = self.service_of(name)
        (address,) = re.findall(r"<(http://[a-z.]+):84[12]0/>", DOCUMENTS[service.name].read_text())
        return f"{address}:{service.port}"

    @property
    def handed_over(self) -> str:
        """The curator's address in a grant."""
        return self.curator.url

    def verify(self) -> None:
        """Verify both logs by the command line."""
        for service in (self.curator, self.modeler):
            verified = service.run_in_process("audit", "verify")
            assert verified.returncode == 0, verified.stderr


@dataclass(frozen=True)
class InContainers:
    """The services of docker-compose.yml, started and verified by tests/docker/compose-check."""

    curator: str
    """Port of this machine."""
    modeler: str
    handed_over: str = "http://curator-exchange:8410"

    def address_of(self, name: str) -> str:
        """Where docs/docker.md opens the console of a person, but for the port."""
        return f"http://127.0.0.1:{self.curator if name in PEOPLE['curator'] else self.modeler}"

    def verify(self) -> None:
        """Nothing: the check does so."""


def commands(name: str) -> list[list[str]]:
    """The commands of a service in the first block of its document, each split as by a shell."""
    block = DOCUMENTS[name].read_text(encoding="utf-8").partition("```bash\n")[2].partition("```")[0]
    lines = re.findall(rf"^(blindopt-{name} .*)$", block, re.MULTILINE)
    return [shlex.split(line) for line in lines]


@contextmanager
def opened(make_service: Callable[..., Service], folder: Path) -> Iterator[BothServices]:
    """From an empty folder: people by the commands of the documents, then both services."""
    file = folder / "password"
    file.write_text(PASSWORD + "\n")
    services = [make_service(name, folder, logins_per_minute="1000", **QUICK.get(name, {})) for name in PEOPLE]
    for service in services:
        service.folder.mkdir(exist_ok=True, mode=0o700)
        *adding, serving = commands(service.name)
        assert [command[1:] for command in adding] == [
            ["user", "add", name, "--role", role] for name, role in PEOPLE[service.name].items()
        ]
        for command in adding:
            done = service.run_in_process(*command[1:], "--password-file", str(file))
            assert done.returncode == 0, done.stderr
        assert serving[1:] == ["serve"]
        service.start()
    yield BothServices(*services)
    for service in services:
        service.stop()
