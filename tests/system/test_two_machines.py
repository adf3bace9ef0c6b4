"""Two machines as network namespaces: at the curator's a packet filter drops everything that comes from outside.

Needs root, `ip` and `nft`; skipped without them.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODELER, CURATOR = "10.77.31.1", "10.77.31.2"
FILTER = """
table inet wall {
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
    return subprocess.run([*inside, *map(str, command)], capture_output=True, text=True, timeout=120, **more)


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


class Machine:
    """A service on one of the machines."""

    def __init__(self, name, namespace, folder, **settings):
        self.name, self.namespace, self.folder = name, namespace, folder
        prefix = f"BLINDOPT_{name.upper()}_"
        chosen = {"DATA_DIR": folder / "data", "PASSWORD_HASH": "minimal", "FIRST_TOKEN_FILE": folder / "token"}
        chosen |= settings
        kept = {k: v for k, v in os.environ.items() if not k.startswith("BLINDOPT_")}
        self.environment = kept | {prefix + key.upper(): str(value) for key, value in chosen.items()}
        self.process = None

    def command(self, *arguments):
        program = (sys.executable, "-m", f"{self.name}_service")
        return _checked(*program, *arguments, namespace=self.namespace, env=self.environment, cwd=ROOT)

    def start(self):
        log = (self.folder / "service.log").open("wb")
        inside = ["ip", "netns", "exec", self.namespace, sys.executable, "-m", f"{self.name}_service", "serve"]
        self.process = subprocess.Popen(inside, env=self.environment, cwd=ROOT, stdout=log, stderr=log)

    def python(self, program, *arguments):
        """Run a program on this machine; what it prints, as JSON."""
        command = (sys.executable, "-c", program, *arguments)
        return json.loads(_checked(*command, namespace=self.namespace, env=self.environment, cwd=ROOT))


@pytest.fixture(scope="module")
def parties(machines, tmp_path_factory):
    folder = tmp_path_factory.mktemp("machines")
    (folder / "vendor").mkdir()
    (folder / "owner").mkdir()
    tls = folder / "vendor" / "tls"
    modeler = Machine("modeler", machines[0], folder / "vendor", host=MODELER)
    modeler.command("tls", "init", MODELER, "--folder", tls)
    modeler.environment |= {
        "BLINDOPT_MODELER_TLS_CERT": str(tls / "server.crt"),
        "BLINDOPT_MODELER_TLS_KEY": str(tls / "server.key"),
    }
    curator = Machine("curator", machines[1], folder / "owner", host="0.0.0.0")  # the wall alone keeps others out
    link = folder / "owner" / "link.json"
    modeler.command("link", "create", "hospital", "--url", f"https://{MODELER}:8420", "--save", link)
    curator.command("link", "add", link, "--ca", tls / "ca.crt")
    for party in (modeler, curator):
        party.start()
    yield modeler, curator, json.loads(link.read_text())["id"]
    for party in (modeler, curator):
        party.process.terminate()
        party.process.wait(60)


OWN = """
import json, sys, time
from blindopt import wire
from blindopt.client import OwnerClient, is_ready
while not is_ready("http://127.0.0.1:8410"):
    time.sleep(0.1)
csv = open(sys.argv[2], "rb").read()
with OwnerClient("http://127.0.0.1:8410", open(sys.argv[1]).read().strip(), timeout_s=120) as owner:
    features = [wire.Feature(column=c, lower=0.0, upper=1.0) for c in ("a", "b")]
    spec = wire.StudyCreate(
        name="s", dataset_id=owner.register("d", csv, public=True).id, features=features,
        measurement=wire.ColumnMeasurement(column="y", direction="maximize"),
        release=wire.IdentityRelease(mechanism="identity"), answers=wire.NONE,
    )
    study = owner.create_study(spec)
    owner.release(study.id)
    grant = owner.grant(study.id, wire.GrantCreate(name="acme"))
    print(wire.GrantFile.of(grant, grant.url).model_dump_json())
"""
VEND = """
import json, sys
from blindopt import wire
from blindopt.client import VendorClient
file = wire.GrantFile.model_validate_json(open(sys.argv[3]).read())
with VendorClient(sys.argv[4], open(sys.argv[1]).read().strip(), timeout_s=120, verify=sys.argv[2]) as vendor:
    spec = wire.RunCreate(**file.access.model_dump(), name="r", iterations=20, seed=3)
    run = vendor.wait(vendor.start(spec).id, timeout_s=240)
    rows = [trial.row for trial in vendor.export(run.id).trials]
    print(json.dumps({"state": run.state, "rows": rows}))
"""


def test_the_wall_drops_what_comes_in_and_the_run_goes_on_all_the_same(parties, tmp_path):
    modeler, curator, link = parties
    points = itertools.product(range(8), range(8))
    table = "".join(f"{i / 7:.4f},{j / 7:.4f},{(i - 3) ** 2 - (j - 5) ** 2}\n" for i, j in points)
    (tmp_path / "d.csv").write_text("a,b,y\n" + table)
    given = curator.python(OWN, curator.folder / "token", tmp_path / "d.csv")
    assert given["curator_url"] == f"link://{link}"
    # The control: nothing gets in, though the curator listens at every address.
    knock = f"import socket as s; c = s.socket(); c.settimeout(1.5); print(c.connect_ex(('{CURATOR}', 8410)))"
    assert modeler.python(knock) != 0
    assert curator.python(knock) == 0
    (tmp_path / "grant.json").write_text(json.dumps(given))
    files = modeler.folder / "token", modeler.folder / "tls" / "ca.crt", tmp_path / "grant.json"
    run = modeler.python(VEND, *files, f"https://{MODELER}:8420")
    assert (run["state"], len(run["rows"])) == ("completed", 25)
    for party in (modeler, curator):
        party.command("audit", "verify")
        (tmp_path / party.name).write_text(party.command("audit", "export"))
    exports = tmp_path / "curator", tmp_path / "modeler"
    assert curator.command("audit", "reconcile", given["study_id"], *exports).endswith(" 0 differences\n")
