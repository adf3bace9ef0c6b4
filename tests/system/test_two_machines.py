"""Two machines as network namespaces, set up by the commands and settings of the page on how to connect them.

One way, the owner's packet filter lets the vendor's machine in at one port. The other way it drops all that comes from
outside, and the curator opens the connections. Needs root, `ip` and `nft`; skipped without them.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import processes

ROOT = Path(__file__).parents[2]
MODELER, CURATOR = "10.77.31.1", "10.77.31.2"
PAGE = (ROOT / "docs" / "howto" / "connect.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
DIRECT, OUTBOUND = (SECTIONS[way] + SECTIONS["The first run"] for way in ("With an open port", "Without an open port"))
NAMES = {
    "/etc/blindopt/": "",
    "curator.hospital.example": CURATOR,
    "203.0.113.7": MODELER,
    "modeler.vendor.example": MODELER,
}
FILTER = """
table inet filter {
  chain input {
    type filter hook input priority 0; policy drop;
    iif lo accept
    ct state established,related accept
  }
}
"""
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nft"))), reason="needs root, ip and nft"
)


def _run(*command, namespace=None, **more):
    inside = ("ip", "netns", "exec", namespace) if namespace else ()
    return subprocess.run([*inside, *map(str, command)], capture_output=True, text=True, timeout=240, **more)


def _checked(*command, **more):
    done = _run(*command, **more)
    if done.returncode and command[0] in ("ip", "nft"):
        pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def machines():
    """The vendor's and the owner's machine, wired; the owner's behind its wall."""
    names = [f"bo-{side}-{os.getpid()}" for side in ("vendor", "owner")]
    ends = [f"bo{os.getpid() % 10_000}{side}" for side in "vo"]
    try:
        for name in names:
            _checked("ip", "netns", "add", name)
            _checked("ip", "link", "set", "lo", "up", namespace=name)
        _checked("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, (MODELER, CURATOR), strict=True):
            _checked("ip", "link", "set", end, "netns", name)
            _checked("ip", "addr", "add", f"{address}/24", "dev", end, namespace=name)
            _checked("ip", "link", "set", end, "up", namespace=name)
        _checked("nft", "-f", "-", namespace=names[1], input=FILTER)
        yield names
    finally:
        for name in names:
            _run("ip", "netns", "del", name)


def written(section, begin):
    """The lines of a section's blocks of code that begin so, with the names of these machines."""
    lines = "".join(re.findall(r"```\w+\n(.*?)```", section, re.DOTALL)).splitlines()
    for name, address in NAMES.items():
        lines = [line.replace(name, address) for line in lines]
    chosen = [line for line in lines if line.startswith(begin)]
    assert chosen, f"the section has no line that begins with {begin}"
    return chosen


class Machine:
    """A service on one of the machines, whose user is in ``folder``."""

    def __init__(self, name, namespace, folder):
        self.name, self.namespace, self.folder = name, namespace, folder
        folder.mkdir()
        chosen = {"DATA_DIR": folder / "data", "PASSWORD_HASH": "minimal", "FIRST_TOKEN_FILE": folder / "token"}
        kept = {k: v for k, v in os.environ.items() if not k.startswith("BLINDOPT_")}
        kept["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "shared")))
        self.environment = kept | {f"BLINDOPT_{name.upper()}_{key}": str(value) for key, value in chosen.items()}
        self.process = None

    def type(self, section, begin, *more):
        """Run the command of a section that begins so, with ``more`` options; its output."""
        (line,) = written(section, f"blindopt-{self.name} {begin}")
        return self.command(*line.split()[1:], *more)

    def set(self, section):
        """Take the settings of a section."""
        self.environment |= dict(line.split("=", 1) for line in written(section, f"BLINDOPT_{self.name.upper()}_"))

    def command(self, *arguments):
        return self.run(f"{self.name}_service", *arguments)

    def start(self):
        with (self.folder / "service.log").open("ab") as log:
            self.process = processes.Forked(
                *(f"{self.name}_service", "serve"),
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                network=self.namespace,
            )

    def stop(self):
        self.process.terminate()
        assert self.process.wait(60) == 0

    def run(self, module, *arguments):
        """Run a module on this machine; what it prints."""
        where = {"env": self.environment, "cwd": self.folder, "network": self.namespace}
        done = processes.run(module, *map(str, arguments), **where)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def vend(self, *arguments):
        """Run the vendor's program of tests on this machine; the state of its run, and the rows."""
        return json.loads(self.run("tests.system.party_programs", "vend", *arguments))

    def reaches(self, address, port):
        """Whether a connection from this machine is taken."""
        answer = self.run("tests.system.party_programs", "connect", address, port)
        return json.loads(answer)


@pytest.fixture(scope="module")
def parties(machines, tmp_path_factory):
    folder = tmp_path_factory.mktemp("machines")
    modeler, curator = (
        Machine("modeler", machines[0], folder / "vendor"),
        Machine("curator", machines[1], folder / "owner"),
    )
    yield modeler, curator
    for party in (modeler, curator):
        if party.process is not None and party.process.poll() is None:
            party.process.kill()


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    points = itertools.product(range(8), range(8))
    path = tmp_path_factory.mktemp("records") / "d.csv"
    path.write_text("a,b,y\n" + "".join(f"{i / 7:.4f},{j / 7:.4f},{(i - 3) ** 2 - (j - 5) ** 2}\n" for i, j in points))
    return path


def _granted(curator, *arguments):
    """The text of a grant, as the owner sends it."""
    text = curator.run("tests.system.party_programs", "own", *arguments)
    return json.loads(text), text


@pytest.fixture(scope="module")
def direct(parties, csv):
    """The first way: the owner opens a port to the vendor's machine. Returns what a run chose."""
    modeler, curator = parties
    curator.type(DIRECT, "tls init")
    curator.set(DIRECT)
    curator.start()
    for name in ("ca.crt", "client.crt", "client.key"):
        shutil.copy(curator.folder / "tls" / name, modeler.folder)
    modeler.set(DIRECT)
    modeler.start()
    tls = [curator.folder / "tls" / name for name in ("ca.crt", "client.crt", "client.key")]
    given, text = _granted(curator, f"https://{CURATOR}:8410", curator.folder / "token", csv, *tls)
    assert given["curator_url"] == f"https://{CURATOR}:8410"
    assert not modeler.reaches(CURATOR, 8410), "the control: the packet filter lets nobody in"
    _checked(*written(DIRECT, "nft")[0].split(), namespace=curator.namespace)
    (modeler.folder / "grant.json").write_text(text)
    run = modeler.vend("http://127.0.0.1:8420", modeler.folder / "token", "grant.json")
    assert curator.type(DIRECT, "audit key").strip() == given["log_key"]
    for party in parties:
        party.stop()
    return run


@pytest.mark.slow(sibling="test_with_no_port_open_the_same_candidates_are_chosen")
def test_with_one_port_open_to_the_vendor_runs_complete(direct):
    assert (direct["state"], len(direct["rows"])) == ("completed", 25)


def test_with_no_port_open_the_same_candidates_are_chosen(parties, direct, csv, tmp_path):
    """The second way, on the same records: nothing that comes from outside is let in."""
    modeler, curator = parties
    _checked("nft", "flush", "ruleset", namespace=curator.namespace)
    _checked("nft", "-f", "-", namespace=curator.namespace, input=FILTER)
    for party in (modeler, curator):  # as if the first way had not been
        party.environment = {k: v for k, v in party.environment.items() if "TLS" not in k and "CURATOR_C" not in k}
        party.environment.pop("BLINDOPT_CURATOR_PUBLIC_URL", None)
    modeler.type(OUTBOUND, "tls init")
    modeler.set(OUTBOUND)
    modeler.start()
    modeler.type(OUTBOUND, "link create")
    curator.start()
    for name in ("link.json", "tls/ca.crt"):
        shutil.copy(modeler.folder / name, curator.folder)
    curator.type(OUTBOUND, "link add")
    link = json.loads((curator.folder / "link.json").read_text())["id"]
    given, text = _granted(curator, "http://127.0.0.1:8410", curator.folder / "token", csv)
    assert given["curator_url"] == f"link://{link}"
    assert not modeler.reaches(CURATOR, 8410)
    assert curator.reaches(CURATOR, 8410), "the control: the curator listens at every address"
    (modeler.folder / "grant.json").write_text(text)
    files = modeler.folder / "token", "grant.json", "tls/ca.crt"
    assert modeler.vend(f"https://{MODELER}:8420", *files) == direct
    modeler.environment |= {"BLINDOPT_MODELER_URL": f"https://{MODELER}:8420", "BLINDOPT_MODELER_CA_FILE": "tls/ca.crt"}
    assert "Recommended candidate" in modeler.type(OUTBOUND, "run --grant", "--iterations", "2")
    for party in (modeler, curator):  # with the runs of both ways
        party.command("audit", "verify")
        (tmp_path / party.name).write_text(party.command("audit", "export"))
    exports = tmp_path / "curator", tmp_path / "modeler"
    assert curator.command("audit", "reconcile", given["study_id"], *exports).endswith(" 0 differences\n")
