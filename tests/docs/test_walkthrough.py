"""What the documents tell a newcomer to run, run as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

from blindopt.client import VendorClient

ROOT = Path(__file__).parents[2]


def blocks(document: str) -> str:
    return "\n".join(re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / document).read_text(), re.DOTALL))


def test_the_first_hours_of_owner_and_vendor_run_as_they_are_written(tmp_path, make_service):
    owner = "set -euo pipefail\n" + blocks("owner.md")
    vendor = "set -euo pipefail; set -a; . ./for-the-vendor; set +a\n" + blocks("vendor.md")
    curator, modeler = (make_service(name, tmp_path / "services").start() for name in ("curator", "modeler"))
    environment = os.environ | {
        "CURATOR": curator.url,
        "OWNER_TOKEN": curator.token,
        "MODELER": modeler.url,
        "VENDOR_TOKEN": modeler.token,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    output = ""
    for script in (owner, vendor):  # each in a shell of its own
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
        output += done.stdout
    with VendorClient(modeler.url, modeler.token) as client:
        (run,) = client.runs()
    for service in (modeler, curator):
        service.stop()
    assert (run.state, run.ended_because, run.problem) == ("completed", "budget", None)
    assert "\n3-differential privacy of each row's features" in output
    assert "planar Laplace, the" in output  # what auto took, and why
    assert "{'index': " in output  # what the tuning released
    assert len((tmp_path / "trials.csv").read_text().splitlines()) == 1 + 23


def test_the_refutation_in_the_documents_rebuilds_every_row():
    done = subprocess.run([sys.executable, ROOT / "docs" / "refutation.py"], capture_output=True, text=True, check=True)
    figures = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    published, lifted, sound = figures[:3]
    assert max(published, lifted) < 1e-9
    assert sound > 0.1
    _, lifted, sound = figures[3:]  # lower bounds on epsilon, of mechanisms that promise 100, 1 and 1
    assert lifted > 1 >= sound


def test_what_the_first_hours_name_is_on_a_page():
    """Names in italics are those of buttons, links, choices and headings: test_stories presses most of them."""
    for document, service in (("first-hour-owner.md", "curator"), ("first-hour-vendor.md", "modeler")):
        folders = [ROOT / f"{service}_service" / "console", ROOT / "shared" / "service_kit" / "console"]
        sources = "\n".join(p.read_text() for f in folders for p in f.rglob("*") if p.suffix in (".py", ".html"))
        names = re.findall(r"(?<![*\w])\*([^*]+)\*(?![*\w])", (ROOT / "docs" / document).read_text())
        assert len(names) > 8
        assert [name for name in names if " ".join(name.split()) not in sources] == []
