"""What the documents tell a newcomer to run, run as it stands."""

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import blindopt as bo
from blindopt.client import Owner, Vendor
from blindopt.client.owner import ReleasedStudy
from tests import beside, postgres, processes
from tests.conftest import Service
from tests.docs.snippets import COMMANDS, DOCUMENTS, GRANT, OWNER, VENDOR, run_blocks

ROOT = Path(__file__).parents[2]


def script(documents: tuple[str, ...]) -> str:
    return "\n".join(block.text for document in documents for block in run_blocks(document, "bash"))


def run_commands(document: str, folder: Path, environment: dict[str, str]) -> str:
    """Run the blocks of a page line by line, as a shell would, in forks; returns all output."""
    output = ""
    for line in "".join(block.text for block in run_blocks(document, "bash")).splitlines():
        command, _, target = line.partition(" #")[0].partition(" > ")
        words = [re.sub(r"\$(\w+)", lambda name: environment[name[1]], word) for word in shlex.split(command)]
        own = environment | dict(word.split("=", 1) for word in itertools.takewhile(_is_setting, words))
        words = list(itertools.dropwhile(_is_setting, words))
        if words[0] == "export":
            environment.update([words[1].split("=")])
            continue
        module = words[0].replace("blindopt-", "") + "_service"
        done = processes.run(module, *words[1:], env=own | _databases(own, folder), cwd=folder)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        if target:
            (folder / target.strip()).write_text(done.stdout)
        if words[1:3] == ["token", "create"]:
            (row,) = [row for row in _listed(environment, folder) if row.endswith(" alice")]
            environment["TOKEN_ID"], environment["PRINCIPAL"] = row.split()[:2]
        if words[1:3] == ["audit", "key"]:
            environment["LOG_KEY"] = done.stdout.strip()
        output += done.stdout
    return output


def _is_setting(word: str) -> bool:
    return re.match(r"[A-Z_]+=", word) is not None


def run_python(owner: Owner, study: str, modeler: Service, folder: Path) -> None:
    """Run every block of Python that needs a grant, each with a grant of a sandbox of its own."""
    blocks = [b for document in DOCUMENTS for b in run_blocks(document, "python") if GRANT in b.text]
    assert len(blocks) >= 3
    for i, block in enumerate(blocks):
        sandbox = ReleasedStudy(owner, owner.make_sandbox(study).id)
        grant = sandbox.grant(f"for Python {i}").save(folder / f"grant-{i}.json")
        text = block.text.replace(f'"{GRANT}"', repr(str(grant))).replace("http://127.0.0.1:8420", modeler.url)
        text = text.replace('"my-log.sqlite"', repr(str(folder / f"{i}.sqlite")))
        exec(compile(text, block.document, "exec"), {"token": modeler.token})


def _listed(environment: dict[str, str], folder: Path) -> list[str]:
    environment = environment | _databases(environment, folder)
    return processes.run("curator_service", "token", "list", env=environment, cwd=folder).stdout.splitlines()


def _databases(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """In a run on PostgreSQL, where the tables of the two data folders are."""
    prefixes = ("BLINDOPT_CURATOR", "BLINDOPT_MODELER") if postgres.ON else ()
    return {f"{each}_DATABASE_URL": postgres.url_of(folder / environment[f"{each}_DATA_DIR"]) for each in prefixes}


@pytest.mark.slow(sibling="test_services.py::test_services_start_and_people_and_tokens_are_added_as_the_pages_say")
def test_what_the_documents_say_to_run_runs_as_it_is_written(tmp_path, make_service):
    owner = "set -euo pipefail\n" + script(OWNER)
    vendor = "set -euo pipefail; set -a; . ./for-the-vendor; set +a\n" + script(VENDOR)
    curator, modeler = (make_service(name, tmp_path / "services").start() for name in ("curator", "modeler"))
    environment = os.environ | {
        "CURATOR": curator.url,
        "OWNER_TOKEN": curator.token,
        "MODELER": modeler.url,
        "VENDOR_TOKEN": modeler.token,
        "BLINDOPT_CURATOR_DATA_DIR": str(curator.data),
        "BLINDOPT_MODELER_DATA_DIR": str(modeler.data),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    environment["SALES"] = str(ROOT / "demo" / "data" / "king_county.csv.gz")
    output = ""
    for text in (owner, vendor):  # each in a shell of its own
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=tmp_path,
            env=environment | _databases(environment, tmp_path),
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        output += done.stdout
    with Vendor(modeler.url, modeler.token) as client:
        run = client.runs()[0].view
    study = (tmp_path / "for-the-vendor").read_text().partition("STUDY=")[2].split()[0]
    with Owner(curator.url, curator.token) as client:
        recommended = client.messages(study_id=study)[0].message
        group = bo.Owner(curator.url, curator.token).study(study).open_group(recommended.row)
        run_python(client, study, modeler, tmp_path)
    for service in (modeler, curator):
        service.stop()
    assert (run.state, run.ended_because, run.problem) == ("completed", "budget", None)
    assert output.startswith(("Low risk", "Notable risk"))
    assert 5.0 <= recommended.mean <= 6.5  # in the declared range
    assert group.mean > 5.5  # in 60 searches at least 6.2; all houses: 5.67, a group at random: 5.6
    assert "{'index': " in output  # what the tuning released
    assert len((tmp_path / "trials.csv").read_text().splitlines()) == 1 + 55

    (tmp_path / "secret").write_text("correct horse battery staple\n")
    shutil.copytree(curator.data / "secrets", tmp_path / "elsewhere" / "secrets")
    (tmp_path / "elsewhere" / "erased").write_text("[]")  # nothing was erased
    (tmp_path / "backups").mkdir()
    environment["STUDY"] = study
    shutil.copyfile(curator.data / "checkpoint", tmp_path / "kept")
    environment["CHECKPOINT"] = "kept"
    said = "".join(run_commands(document, tmp_path, environment) for document in COMMANDS)
    assert " ann" in said
    with closing(beside.connect(tmp_path / "restored" / "curator.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM log").fetchone()[0] > 0


def test_the_refutation_in_the_documents_rebuilds_every_row():
    done = subprocess.run([sys.executable, ROOT / "docs" / "refutation.py"], capture_output=True, text=True, check=True)
    figures = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    published, lifted, sound = figures[:3]
    assert max(published, lifted) < 1e-9
    assert sound > 0.1
    _, lifted, sound = figures[3:]  # lower bounds on epsilon, of mechanisms that promise 100, 1 and 1
    assert lifted > 1 >= sound
