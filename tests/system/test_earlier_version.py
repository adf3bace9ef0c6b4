"""This modeler against the curator of version 0.2.0, and the reverse: `make compatibility` brings the code of 0.2.0.

Neither party can update the other, so a run must not notice. Requests of people are written as 0.2.0 had them. Folders
of both are then upgraded, in the middle of a run.
"""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from blindopt.client import Owner
from tests.conftest import Service
from tests.system.crashes import crash_checks as checks

EARLIER = os.environ.get("BLINDOPT_EARLIER")
YOUNGER = ("VERIFY_HOURS", "PASSWORD_HASH", "DISK_MIN_BYTES")
"""Settings that 0.2.0 refuses."""
pytestmark = pytest.mark.skipif(EARLIER is None, reason="make compatibility brings version 0.2.0")
ANSWERS = {"exact": {"mechanism": "none"}, "private": {"mechanism": "laplace", "epsilon": "1", "value_bound": 1.0}}


@dataclass
class EarlierService(Service):
    """A service of version 0.2.0."""

    def _started(self, *arguments, **options):
        folder = str(EARLIER)
        environment = {k: v for k, v in self.environment.items() if not k.endswith(YOUNGER)}
        environment["PYTHONPATH"] = f"{folder}:{folder}/shared"
        command = [sys.executable, "-m", f"{self.name}_service", *arguments]
        return subprocess.Popen(command, env=environment, cwd=folder, **options)

    def spawn(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "service.log").open("ab") as log:
            return self._started("serve", stdout=log, stderr=log)

    def run(self, *arguments):
        process = self._started(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        stdout, stderr = process.communicate(timeout=240)
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


@pytest.fixture(scope="module", params=["curator", "modeler"])
def parties(request, make_service, tmp_path_factory):
    """A curator and a modeler, one of which is of version 0.2.0."""
    folder = tmp_path_factory.mktemp("earlier")
    earlier = EarlierService(request.param, folder / request.param)
    other = make_service({"curator": "modeler", "modeler": "curator"}[request.param], folder)
    for service in (earlier, other):
        service.start()
    with earlier.http("") as http:
        assert http.get("/v1/meta").json()["version"] == "0.2.0"
    yield (earlier, other) if earlier.name == "curator" else (other, earlier)
    earlier.kill()


def _sent(http, path, key, **body):
    reply = http.post(path, headers={"Idempotency-Key": key}, **body)
    assert reply.is_success, reply.text
    return reply.json()


@pytest.fixture
def opened(parties, small, request):
    return _opened(parties[0], small, request.node.name, request.param)


def _opened(curator, small, key, answers):
    """The grant of a study, as 0.2.0 makes one."""
    with curator.http() as http:
        form = {"name": "small", "public": "true"}
        file = {"file": ("d.csv", small.csv)}
        dataset = _sent(http, "/v1/datasets", key, data=form, files=file)
        study = {
            "name": "s",
            "dataset_id": dataset["id"],
            "features": [feature.model_dump(include={"column", "lower", "upper"}) for feature in small.features],
            "measurement": {"source": "column", "column": small.names[2], "direction": "maximize"},
            "release": {"mechanism": "gaussian", "epsilon": "4", "delta": 1e-6},
            "answers": ANSWERS[answers],
            "kernel": small.kernel.model_dump(mode="json"),
        }
        draft = _sent(http, "/v1/studies", f"{key} study", json=study)["id"]
        _sent(http, f"/v1/studies/{draft}:release", f"{key} release")
        grant = _sent(http, f"/v1/studies/{draft}/grants", f"{key} grant", json={"name": "m"})
        return {"curator_url": curator.url, "study_id": draft, "token": grant["token"]}


@pytest.mark.parametrize("opened", list(ANSWERS), indirect=True)
def test_a_run_across_versions_completes_and_both_logs_say_the_same(parties, opened, until, tmp_path):
    settings = {"name": "r", "iterations": 12, "seed": 3, "algorithm": {"name": "gp_ucb"}}
    with parties[1].http() as http:
        run = _sent(http, "/v1/runs", opened["study_id"], json=opened | settings)["id"]
        until(lambda: http.get(f"/v1/runs/{run}").json()["ended_at"])
        ended = http.get(f"/v1/runs/{run}").json()
    assert (ended["state"], ended["problem"], ended["trials"] >= 12) == ("completed", None, True)
    for service in parties:
        verified = service.run("audit", "verify")
        assert verified.returncode == 0, verified.stderr
        (tmp_path / service.name).write_text(service.run("audit", "export").stdout)
    exports = str(tmp_path / "curator"), str(tmp_path / "modeler")
    for service in parties:
        compared = service.run("audit", "reconcile", opened["study_id"], *exports)
        assert compared.returncode == 0, compared.stdout + compared.stderr
        assert compared.stdout.rstrip().endswith(" 0 differences")


@pytest.mark.parametrize("opened", ["exact"], indirect=True)
def test_a_refusal_across_versions_ends_a_run_with_its_code(parties, opened, until):
    curator, modeler = parties
    with curator.http() as owner, modeler.http() as http:
        _sent(owner, f"/v1/studies/{opened['study_id']}:close", f"close {opened['study_id']}")
        settings = {"name": "r", "iterations": 12, "seed": 3, "algorithm": {"name": "gp_ucb"}}
        run = _sent(http, "/v1/runs", f"{opened['study_id']} closed", json=opened | settings)["id"]
        until(lambda: http.get(f"/v1/runs/{run}").json()["ended_at"])
        problem = http.get(f"/v1/runs/{run}").json()["problem"]
    assert problem["code"] == "study_not_open"


@pytest.mark.parametrize("answers", list(ANSWERS))
def test_a_run_that_is_killed_half_way_goes_on_when_both_parties_are_upgraded(tmp_path, small, until, answers):
    """Nothing is charged twice, and both logs, the run's choices and the exports of both are sound."""
    earlier = [EarlierService(name, tmp_path / name) for name in ("curator", "modeler")]
    upgraded = [Service(service.name, service.folder, port=service.port) for service in earlier]
    settings = {"name": "r", "iterations": 60, "seed": 3, "algorithm": {"name": "gp_ucb"}}
    try:
        for service in earlier:
            service.start()
        opened = _opened(earlier[0], small, "killed", answers)
        with earlier[1].http() as http:
            run = _sent(http, "/v1/runs", "killed", json=opened | settings)["id"]
            until(lambda: http.get(f"/v1/runs/{run}").json()["trials"] >= 5)
        for service in earlier:
            service.kill()
        for service in upgraded:
            service.start()
        with upgraded[1].http() as http:
            assert 5 <= http.get(f"/v1/runs/{run}").json()["trials"] < 60, "it was killed too late"
            until(lambda: http.get(f"/v1/runs/{run}").json()["ended_at"])
            ended = http.get(f"/v1/runs/{run}").json()
        assert (ended["state"], ended["problem"]) == ("completed", None)
        with Owner(upgraded[0].url, upgraded[0].token) as owner:
            assert owner.balance(opened["study_id"]).total_plays == ended["trials"]
        for service in upgraded:
            assert checks.command(service, "audit", "verify")[0] == 0
        checks.check_reconciled(*upgraded, [opened["study_id"]], tmp_path)
        status, output = checks.command(upgraded[1], "replay", run)
        assert status == 0, output
    finally:
        for service in (*earlier, *upgraded):
            if service.process is not None and service.process.poll() is None:
                service.kill()
