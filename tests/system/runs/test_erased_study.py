"""A study that its owner erases under a run: the run ends as completed and says why, and nothing is disputed."""

import pytest

import blindopt as bo
from blindopt import wire
from blindopt.client import Owner, Vendor
from blindopt.errors import Remote, StillMeasured
from tests.given_settings import GP_UCB
from tests.system.crashes import crash_checks as checks

SETTINGS = {"people_hold_seconds": "0.1", "wait_seconds_first": "0.1", "wait_seconds_max": "0.2"}


@pytest.fixture(scope="module")
def parties(make_service, tmp_path_factory):
    folder = tmp_path_factory.mktemp("erased")
    made = make_service("curator", folder).start(), make_service("modeler", folder, **SETTINGS).start()
    yield made
    for service in made:
        service.process.kill()


@pytest.mark.slow(
    sibling="test_human_measured.py::test_a_grant_revoked_or_a_study_closed_while_it_waits_ends_the_run_in_words"
)
def test_a_run_ends_in_plain_words_and_both_logs_reconcile(parties, small, tmp_path, until):
    curator, modeler = parties
    with Owner(curator.url, curator.token) as owner, Vendor(modeler.url, modeler.token) as vendor:
        dataset = owner.register("small", small.csv, public=True).id
        by_hand = wire.InboxMeasurement(question="How much?", direction="maximize", shown=[small.names[0]])
        draft = checks.draft(small, dataset).model_copy(update={"measurement": by_hand})
        made = owner.create_study(draft).id
        owner.release(made)
        grants = [owner.grant(made, wire.GrantCreate(name=name)) for name in ("modeler", "loop")]
        grant = grants[0]
        settings = GP_UCB | {"iterations": 2, "initial_rows": 2, "seed": 3}
        access = {"curator_url": curator.url, "study_id": made, "token": grant.token}
        run = vendor.start(wire.RunCreate(**access, **settings)).id
        until(lambda: vendor.run(run).state == "waiting")
        loop = bo.Study.from_grant(wire.GrantFile.of(grants[1], curator.url), log=tmp_path / "loop.sqlite")
        with pytest.raises(StillMeasured):
            loop.query(0, wait_s=0.0)
        owner.close_study(made)
        owner.archive_dataset(dataset)
        owner.erase_dataset(dataset)
        ended = vendor.wait(run, timeout_s=120)
        assert (ended.state, ended.problem.code) == ("completed", "erased")
        assert "erased by its owner" in ended.problem.detail
        late = vendor.wait(vendor.start(wire.RunCreate(**access, **settings)).id, timeout_s=120)
        assert (late.state, late.problem.code) == ("completed", "erased")
        with pytest.raises(Remote, match="erased by its owner") as refused:
            loop.query(0, wait_s=0.0)
        assert refused.value.code == "erased"
        loop.close()
    assert "log.disputed" not in [record["kind"] for record in modeler.records()]
    for service in parties:
        status, output = checks.command(service, "audit", "verify")
        assert status == 0, output
    checks.check_reconciled(curator, modeler, [made], tmp_path)
