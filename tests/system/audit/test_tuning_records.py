"""What the curator stores of tunings: tampering is found, a backup is whole, a restore lets nothing be spent twice."""

import json
import shutil
from dataclasses import replace

import pytest

from blindopt.client import Owner
from blindopt.errors import Remote
from curator_service.cli import tune
from tests import beside
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.curator_service.tuning_case import registered
from tests.system.audit.tampering import Party
from tests.system.audit.test_tampering import check_found

WAIT = 240.0


@pytest.fixture(scope="module")
def finished(make_service, tmp_path_factory):
    """A stopped curator: two tunings that ended, one that was refused; and a backup from before the second one."""
    folder = tmp_path_factory.mktemp("finished")
    service = make_service("curator", folder).start()
    with Owner(service.url, service.token) as owner:
        case = registered(owner, m=20)
        first = owner.wait_tuning(owner.start_tuning(case.spec("1", "2.5")).id, timeout_s=WAIT)
        done = service.run("backup", str(folder / "backup"))
        assert done.returncode == 0, done.stderr
        second = owner.wait_tuning(owner.start_tuning(case.spec("1", "2.5")).id, timeout_s=WAIT)
        with pytest.raises(Remote, match=r"of 2\.5 spent"):
            owner.start_tuning(case.spec("1", "2.5"))
        assert (first.state, second.state) == ("completed", "completed")
    assert service.stop() == 0
    party = Party("curator", service.data)
    beside.empty_log_of_changes(party.database)
    return service, party, case


def test_what_nobody_touched_passes(finished):
    code, output = finished[1].command("audit", "verify")
    assert code == 0, output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE tuning_ledger SET epsilon = '0.5' WHERE seq = 1", "line 1 of the accounts of datasets"),
        ("UPDATE tuning_ledger SET total_epsilon = '1' WHERE seq = 2", "line 2 of the accounts of datasets"),
        ("UPDATE tuning_ledger SET cap_epsilon = '100' WHERE seq = 2", "line 2 of the accounts of datasets"),
        ("UPDATE tuning_ledger SET account = 'ds_0' WHERE seq = 2", "line 2 of the accounts of datasets"),
        ("UPDATE tuning_ledger SET kind = 'refused' WHERE seq = 2", "line 2 of the accounts of datasets"),
        ("DELETE FROM tuning_ledger WHERE seq = 1", "line 2 of the accounts of datasets"),
        ("DELETE FROM tuning_ledger WHERE seq = 3", "the accounts of datasets lack"),
        ("DELETE FROM tuning_ledger", "the accounts of datasets lack"),
        ("UPDATE tunings SET outcome = replace(outcome, '\"index\":', '\"index\": ') WHERE seq = 1", "was changed"),
        ("UPDATE tunings SET salt = 'x' WHERE seq = 1", "was changed"),
        ("""UPDATE tunings SET report = replace(report, '"epsilon":"', '"epsilon":"1') WHERE seq = 1""", "was changed"),
        ("UPDATE tunings SET spec = replace(spec, 'a tuning', 'another') WHERE seq = 1", "was changed"),
        ("UPDATE tunings SET state = 'running' WHERE seq = 1", "was changed"),
        ("DELETE FROM tunings WHERE seq = 2", r"tuning tun_\w+ is missing"),
    ],
)
def test_what_is_stored_of_tunings_must_fit_the_log(change, message, finished, tmp_path):
    party = finished[1].copy(tmp_path / "copy")
    with party.open() as db:
        assert db.execute(change).rowcount > 0
    check_found(party, message)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (None, "privacy_budget_exhausted"),
        ("UPDATE tuning_ledger SET total_epsilon = '0'", "record_changed"),
        ("UPDATE tuning_ledger SET cap_epsilon = '100'", "record_changed"),
        ("DELETE FROM tuning_ledger WHERE seq > 1", "record_changed"),
    ],
)
def test_what_earlier_tunings_have_charged_holds_against_the_table(change, code, finished, tmp_path):
    """Without a change, the control, the cap refuses a third tuning."""
    party = finished[1].copy(tmp_path / "data")
    if change is not None:
        with party.open() as db:
            assert db.execute(change).rowcount > 0
    curator = InProcessCurator(tmp_path)
    verification = curator.app.state.log_verification
    verification.start()
    body = finished[2].spec("1", "2.5").model_dump(mode="json")
    assert curator.send("owner", "POST", "/v1/tunings", json=body).json()["code"] == code
    verification.close()
    curator.curator.close()
    curator.close()


def test_a_restored_curator_tunes_no_more_on_files_whose_charges_may_be_lost(finished, make_service, tmp_path):
    """The second tuning came after the backup: its charge is not in it. Other bytes are an account of their own."""
    service, party, case = finished
    target = Party("curator", tmp_path / "restored")
    code, output = target.command(
        "restore", str(service.folder.parent / "backup"), "--secrets", str(party.data / "secrets")
    )
    assert code == 0, output
    assert "registered since are forgotten" in output
    assert target.command("audit", "verify")[0] == 0
    again = replace(make_service("curator", tmp_path), folder=tmp_path / "serving")
    beside.copytree(target.data, again.data)
    shutil.copy(service.folder / "first-token", again.folder)
    again.start()
    try:
        with Owner(again.url, again.token) as owner:
            for ask in (owner.start_tuning, owner.preview_tuning):
                with pytest.raises(Remote, match="restored") as refused:
                    ask(case.spec("0.1", "2.5"))
                assert refused.value.remote_status == 409
            assert [line.kind for line in owner.uses(case.validation.id)] == ["tuning", "closed"]
            assert len(owner.tunings()) == 1
            other = registered(owner, m=20, seed=77)
            with pytest.raises(Remote, match="restored"):  # the training file is closed too, and may be public still
                owner.start_tuning(case.spec("0.1", "2.5"))
            ended = owner.wait_tuning(owner.start_tuning(other.spec("0.1", "2.5")).id, timeout_s=WAIT)
            assert ended.state == "completed"
    finally:
        assert again.stop() == 0
    assert again.run_in_process("audit", "verify").returncode == 0


# --- the command line -------------------------------------------------------------------------------


def test_the_command_tells_what_it_costs_then_waits_and_prints_the_choice(make_service, tmp_path, monkeypatch, capsys):
    service = make_service("curator", tmp_path).start()
    request, token = tmp_path / "tuning.json", tmp_path / "token"
    token.write_text(service.token + "\n")
    with Owner(service.url, service.token) as owner:
        case = registered(owner, m=200)
        request.write_text(case.spec("1000").model_dump_json())
        where = (str(request), "--token-file", str(token), "--url", service.url)
        preview = service.run("tune", *where, "--preview")
        assert preview.returncode == 0, preview.stderr
        assert "grid_exponential: 5 hyper-parameters, 200 records, epsilon 1000" in preview.stdout
        assert owner.tunings() == []
        done = service.run("tune", *where, "--key", "mine")
        assert done.returncode == 0, done.stderr
        (view,) = owner.tunings()
        assert f"{view.id} is charged" in done.stderr
        chosen, value = view.result.hyperparameters["lambda"], view.result.value
        assert done.stdout == f"lambda         {chosen:.6g}\nscore          {value:.6g}\n"
        again = service.run("tune", *where, "--key", "mine", "--json")
        assert json.loads(again.stdout) == view.result.model_dump()
        whole = service.run("tune", *where, "--key", "mine", "--whole")
        assert json.loads(whole.stdout) == view.model_dump(mode="json")
        assert len(owner.tunings()) == 1
        # The count of clipped scores is private: with the result that may leave it must not come.
        clipped = view.model_copy(update={"clipped": 31_415})
        monkeypatch.setattr(Owner, "wait_tuning", lambda *arguments, **how: clipped)
        for as_json, whole in ((False, False), (True, False), (False, True)):
            tune(request, token, service.url, preview=False, key="mine", as_json=as_json, whole=whole)
            printed = capsys.readouterr()
            assert "31415" in printed.err
            assert ("31415" in printed.out) is whole
    request.write_text("{}")
    assert service.run("tune", *where).returncode == 2
    token.write_text("blindopt_0000000000000000.nonsense")
    request.write_text(case.spec().model_dump_json())
    refused = service.run("tune", *where)
    assert (refused.returncode, "unauthenticated" in refused.stderr) == (4, True)
