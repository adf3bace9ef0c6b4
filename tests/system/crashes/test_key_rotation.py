"""New keys of both services: a run goes on, both logs reconcile, sealed values open; also after a kill in the middle.

BLINDOPT_CRASHES=20 kills so often at each point.
"""

import contextlib
import random

import pytest

from blindopt import wire
from blindopt.audit.checkpoints import Verifier
from blindopt.client import Owner, StudyClient, Vendor
from curator_service.context import open_context
from curator_service.settings import Settings
from service_kit.context import key_rotation
from tests.builders import a_run
from tests.conftest import Service
from tests.interventions import act_after, act_before
from tests.system.crashes import crash_checks as checks
from tests.system.crashes.test_crash_matrix import KILLS

POINTS = ("write_durably", "_record", "settle")


class Killed(BaseException):
    """Ends a rotation as a kill does: nothing that follows happens."""


@pytest.fixture(scope="module")
def parties(make_service, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    made = make_service("curator", folder).start(), make_service("modeler", folder, countersign_every="2").start()
    yield made
    for service in made:
        service.process.kill()


@pytest.fixture(scope="module")
def study(parties, small):
    with Owner(parties[0].url, parties[0].token) as owner:
        dataset = owner.register("small", small.csv, public=True).id
        made = owner.create_study(checks.draft(small, dataset, answers=100)).id
        owner.release(made)
        return checks.Study(made, owner.grant(made, wire.GrantCreate(name="modeler")).token)


def run(parties, study):
    """A run of four queries, to its end."""
    order = a_run(parties[0].url, study.id, study.token, iterations=2, initial_rows=2, seed=3)
    with Vendor(parties[1].url, parties[1].token) as vendor:
        return vendor.wait(vendor.start(order).id, timeout_s=240)


def rotated(service, which):
    """The key after a rotation, while the service does not run; then it does."""
    service.stop()
    status, output = checks.command(service, "key", "rotate", which)
    assert status == 0, output
    service.start()
    return output.strip()


def verified(parties, study, folder):
    for service in parties:
        status, output = checks.command(service, "audit", "verify")
        assert status == 0, output
    checks.check_reconciled(*parties, [study.id], folder)


def test_runs_go_on_under_new_keys_and_both_logs_reconcile(parties, study, tmp_path):
    curator, modeler = parties
    pinned = checks.command(curator, "audit", "key")[1].strip()
    assert run(parties, study).state == "completed"
    assert checks.command(curator, "key", "rotate", "log")[0] == 4  # while it runs
    keys = [rotated(curator, "log"), rotated(modeler, "log"), rotated(curator, "log")]
    assert len({pinned, *keys}) == 4
    rotated(curator, "seal")
    rotated(modeler, "seal")
    assert run(parties, study).state == "completed"
    assert modeler.rows("SELECT vkey FROM keys WHERE subject = ?", study.id) == [(pinned,)]
    assert "log.disputed" not in [record["kind"] for record in modeler.records()]
    verified(parties, study, tmp_path)
    export = checks.export(curator, tmp_path)
    for key, status in ((pinned, 0), (keys[2], 0), (keys[1], 3)):
        assert checks.command(curator, "audit", "verify", str(export), "--key", key)[0] == status
    with StudyClient(curator.url, study.token, study.id) as client:
        note = client.checkpoint().note
    assert Verifier.parse(pinned).follow(note)[1].vkey == keys[2]


def test_a_backup_is_restored_with_the_keys_of_its_time_and_persons_keep_their_digests(parties, tmp_path):
    curator = parties[0]
    with open_context(Settings(data_dir=curator.data)) as context:
        before = context.seal.key_for("persons")
    rotated(curator, "seal")
    assert checks.command(curator, "backup", str(tmp_path / "backup"))[0] == 0
    restored = Service("curator", tmp_path / "restored")
    arguments = ("restore", str(tmp_path / "backup"), "--secrets", str(curator.data / "secrets"))
    assert checks.command(restored, *arguments)[0] == 0
    assert checks.command(restored, "audit", "verify")[0] == 0
    with open_context(Settings(data_dir=restored.data)) as context:
        assert context.seal.key_for("persons") == before


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("which", ["log", "seal"])
@pytest.mark.parametrize("name", ["curator", "modeler"])
def test_a_kill_in_the_middle_leaves_a_service_that_starts_verifies_and_opens(parties, study, tmp_path, name, which):
    service = parties[name == "modeler"]
    service.stop()
    for _ in range(KILLS):
        for point in POINTS:
            with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
                _die_at(patch, point)
                checks.command(service, "key", "rotate", which)
            status, output = checks.command(service, "audit", "verify")
            assert status == 0, (point, output)
    service.start()
    assert not list((service.data / "secrets").glob("*.new"))
    assert run(parties, study).state == "completed"
    verified(parties, study, tmp_path)


def _die_at(patch, point):
    """Before or after a step of a rotation, at random."""

    def die(*_, **named):
        if point != "settle" or named:  # else it finishes what an earlier kill interrupted
            raise Killed

    act = act_after if random.random() < 0.5 else act_before
    act(patch, key_rotation, point, die)
