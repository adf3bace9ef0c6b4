"""`blindopt-modeler replay`: the choices of real runs derived again, and the first that somebody changed."""

import json
import os
import subprocess
import sys

import pytest

from blindopt import wire
from blindopt.client import Owner, Vendor
from blindopt.errors import Remote
from tests.builders import a_run
from tests.processes import ROOT
from tests.system.audit.tampering import Party
from tests.system.crashes.crash_checks import command

LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=1.0)
ONE_BIT = wire.OneBitAnswers(mechanism="one_bit", epsilon="1", value_bound=1.0)
HEAVY = {"value_bound": 1.0, "noise_moment": 1.0}
FAMILIES = [
    (wire.GpUcb(name="gp_ucb"), None),
    (wire.GpBucb(name="gp_bucb"), None),
    (wire.Ei(name="ei"), None),
    (wire.RandomRows(name="random"), None),
    (wire.LdpAta(name="ldp_ata"), LAPLACE),
    (wire.LdpTgp(name="ldp_tgp"), LAPLACE),
    (wire.LdpMoma(name="ldp_moma"), LAPLACE),
    (wire.LaplaceAdf(name="laplace_adf"), LAPLACE),
    (wire.Moma(name="moma", **HEAVY), None),
    (wire.BoundedIgp(name="bounded_igp"), ONE_BIT),
    (wire.IgpUcb(name="igp_ucb"), None),
    (wire.Thompson(name="thompson"), ONE_BIT),
]
LENGTH = 12


@pytest.fixture(scope="module")
def parties(make_service, tmp_path_factory):
    """A curator and a modeler that these tests kill and tamper with."""
    folder = tmp_path_factory.mktemp("replay")
    return make_service("curator", folder).start(), make_service("modeler", folder).start()


@pytest.fixture(scope="module")
def play(parties, small, open_study):
    """A run against a study of its own."""
    curator, modeler = parties
    with Owner(curator.url, curator.token) as owner, Vendor(modeler.url, modeler.token) as vendor:
        data = owner.register("small", small.csv, public=True)

        def make(algorithm, answers=None, iterations=LENGTH - 2, release=None, **chosen):
            more = ({"answers": answers} if answers else {}) | ({"release": release} if release else {})
            study = open_study(owner, data, **more)
            settings = {"algorithm": algorithm, "iterations": iterations, "initial_rows": 2, "seed": 9} | chosen
            return vendor.start(a_run(curator.url, study.id, study.token, **settings)).id

        def ended(run):
            return vendor.wait(run, timeout_s=240)

        make.ended = ended
        yield make


def replayed(modeler, run, *options):
    code, output = command(modeler, "replay", run, *options)
    assert len(output.splitlines()) == 1, output
    return code, output.strip()


@pytest.fixture(scope="module")
def runs(play):
    """A run of each family; name -> id."""
    options = {
        "gp_bucb": {
            "batch_size": 4, "repeats": "never", "initial_design": "maximin",
            "observations": [wire.Observation(row=5, y=0.1, noise_variance=0.5)],
        },
        "ei": {"batch_size": 2, "fit": wire.Fit(every=4)},
        "random": {"batch_size": 3},
        "ldp_moma": {"batch_size": 5},
        "bounded_igp": {"batch_size": 4},
        "laplace_adf": {"batch_size": 3},
        "thompson": {"batch_size": 4},
    }  # fmt: skip
    made = {}
    for algorithm, answers in FAMILIES:
        made[algorithm.name] = play(algorithm, answers, **options.get(algorithm.name, {}))
    for name, run in made.items():
        assert play.ended(run).state == "completed", name
    return made


def test_a_run_of_each_family_is_derived_again_as_it_was(runs, parties):
    for name, run in runs.items():
        clean = (
            f"{run}: {LENGTH} choices derived again, each as it is recorded; {LENGTH} answers, each as the log records"
        )
        assert replayed(parties[1], run) == (0, clean), name


REPLAYS = """
import sys
from modeler_service.cli import app
for run in sys.argv[1:]:
    try:
        app(["replay", run])
    except SystemExit as ended:
        assert not ended.code, run
"""


@pytest.mark.slow(sibling="test_a_run_of_each_family_is_derived_again_as_it_was")
def test_another_number_of_threads_derives_the_same(runs, parties):
    """Eigenvectors differ then; nothing that is chosen may. The runs were made with the number of the environment."""
    other = "2" if os.environ["OPENBLAS_NUM_THREADS"] == "1" else "1"
    command_line = [sys.executable, "-c", REPLAYS, runs["ldp_moma"], runs["thompson"]]
    environment = parties[1].environment | {"OPENBLAS_NUM_THREADS": other}
    done = subprocess.run(command_line, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("choices derived again") == 2


def test_a_run_that_wrote_to_the_owner_is_derived_again_as_it_was(play, parties):
    """Found by hand: the key of its message ends with m1, which was read as the number of a trial."""
    run = play(wire.RandomRows(name="random"))
    assert play.ended(run).state == "completed"
    wish = wire.RecommendationWish(kind="recommendation", note="measure it once more")
    with Vendor(parties[1].url, parties[1].token) as vendor:
        vendor.send_message(run, wish)
    code, output = replayed(parties[1], run)
    assert (code, f"{LENGTH} choices derived again" in output) == (0, True), output


def test_a_run_of_a_grant_that_does_not_get_all_candidates_is_derived_again_as_it_was(parties, small, open_study):
    curator, modeler = parties
    with Owner(curator.url, curator.token) as owner, Vendor(modeler.url, modeler.token) as vendor:
        data = owner.register("fewer", "\n".join(small.csv.decode().splitlines()[:21]).encode(), public=True)
        study = open_study(owner, data)
        for record in (2, 5):
            owner.withhold(data.id, record)
        grant = owner.grant(study.id, wire.GrantCreate(name="later"))
        settings = {"algorithm": wire.Ei(name="ei"), "iterations": 30, "initial_rows": 3, "repeats": "never"}
        run = vendor.wait(vendor.start(a_run(curator.url, study.id, grant.token, **settings)).id, timeout_s=240)
        assert (run.state, run.ended_because, run.trials) == ("completed", "exhausted", 18)
        assert len(run.study.left_out) == 2
        trials = vendor.export(run.id).trials
        assert {trial.row for trial in trials} == set(range(20)) - set(run.study.left_out)
        assert not any(trial.declined for trial in trials)
    code, output = replayed(modeler, run.id)
    assert (code, "18 choices derived again" in output) == (0, True), output


def test_a_run_that_continues_another_begins_with_its_answers_and_a_drawn_seed_and_is_derived_again(
    runs, play, parties
):
    """Found by hand: the seed was 0 by default, so a second run bought the same 45 answers again."""
    curator, modeler = parties
    with Vendor(modeler.url, modeler.token) as vendor, Owner(curator.url, curator.token) as owner:
        first = vendor.export(runs["ldp_tgp"])
        target = {"curator_url": curator.url, "study_id": first.run.study_id, "iterations": 5, "batch_size": 1}
        grant = owner.grant(first.run.study_id, wire.GrantCreate(name="second day"))
        before = len(list(owner.ledger(first.run.study_id)))

        def again(**chosen):
            return vendor.start(wire.RunCreate(**target, token=grant.token, **chosen)).view

        second = vendor.wait(again(continue_from=first.run.id).id, timeout_s=240)
        assert (second.state, second.problem, second.continue_from) == ("completed", None, first.run.id)
        assert second.observations == first.run.trials == LENGTH
        assert second.plan.initial_rows == 0  # what was bought is not bought again
        exported = vendor.export(second.id)
        assert [(past.row, past.y, past.passport) for past in exported.observations] == [
            (trial.row, trial.y, trial.passport) for trial in first.trials
        ]
        assert len(list(owner.ledger(first.run.study_id))) == before + second.trials
        for run, clean in ((second.id, second.trials), (first.run.id, LENGTH)):
            assert f"{clean} choices derived again" in replayed(modeler, run)[1]
        seeds = {again(hold=True).seed for _ in range(3)} | {second.seed}
        assert len(seeds) == 4
        assert again(hold=True, seed=0).seed == 0
        third = again(continue_from=second.id, hold=True)  # what the second had begun with, too
        assert third.observations == second.observations + second.trials
        kinds = [json.loads(entry.body) for entry in vendor.audit()]
        assert second.id in {
            kind["details"]["run_id"]
            for kind in kinds
            if kind["kind"] == "run.created" and kind["details"].get("continues") == first.run.id
        }
        wrong = {"study_id": "std_0123456789abcdef"}, {"continue_from": "run_0123456789abcdef"}
        for chosen in wrong:
            with pytest.raises(Remote, match="continue_from"):
                vendor.start(wire.RunCreate(**target | {"token": grant.token, "continue_from": first.run.id} | chosen))


# --- what somebody changed ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def original(parties, runs):
    """The modeler's folder, at rest, with all runs in it."""
    modeler = parties[1]
    if modeler.process.poll() is None:
        modeler.stop()
    return Party("modeler", modeler.data)


@pytest.fixture
def copy(original, tmp_path):
    return original.copy(tmp_path / "copy")


def change(party, table, run, where="1 = 1", **values):
    with party.open() as db:
        key = "run_id" if table == "trials" else "id"
        sets = ", ".join(f"{name} = ?" for name in values)
        done = db.execute(f"UPDATE {table} SET {sets} WHERE {key} = ? AND {where}", (*values.values(), run))
        assert done.rowcount == 1


def changed_row(run, number, recorded, derived):
    return (
        f"{run}: trial {number}: recorded row {recorded} (algorithm), derived row {derived} (algorithm); "
        f"the log records that row {derived} was queried"
    )


def _row(party, run, number):
    return party.rows("SELECT row FROM trials WHERE run_id = ? AND number = ?", run, number)[0][0]


@pytest.mark.parametrize("name", ["gp_ucb", "gp_bucb", "ldp_moma", "thompson"])
def test_another_row_in_the_record_is_named_with_what_is_derived(name, copy, runs):
    run, at = runs[name], 7
    row = _row(copy, run, at)
    change(copy, "trials", run, f"number = {at}", row=399 - row)
    code, output = replayed(copy, run)
    assert (code, output) == (3, changed_row(run, at, 399 - row, row))
    assert copy.command("replay", runs["igp_ucb"])[0] == 0  # another run is as it was


OTHER_REPLY = "version 1 of its answer: the stored reply is not the one that the log records"


@pytest.mark.parametrize(
    ("column", "change_of", "says"),
    [
        ("y", lambda y: y + 1e-9, "the recorded answer is not what the last reply says"),
        ("reply", lambda body: body.replace(b"answered", b"answerer"), OTHER_REPLY),
        ("reply", lambda body: None, OTHER_REPLY),
        ("mean", lambda mean: mean + 1e-6, "recorded mean {value} of row {row}, derived"),
        ("sd", lambda sd: sd * 1.001, "recorded sd {value} of row {row}, derived"),
        ("acquisition", lambda mean: None, "recorded acquisition None of row {row}, derived"),
        ("ties", lambda ties: ties + 1, "recorded ties {value} of row {row}, derived"),
        ("phase", lambda phase: "initial", "recorded phase initial of row {row}, derived algorithm"),
        ("plays", lambda plays: 2, "the recorded answer is not what the last reply says"),
    ],
)
def test_any_other_change_of_a_trial_is_named(column, change_of, says, copy, runs):
    run, at = runs["gp_ucb"], 6
    before = copy.rows(f"SELECT {column} FROM trials WHERE run_id = ? AND number = ?", run, at)[0][0]
    value = change_of(before)
    change(copy, "trials", run, f"number = {at}", **{column: value})
    code, output = replayed(copy, run)
    expected = f"{run}: trial {at}: " + says.format(row=_row(copy, run, at), value=value)
    assert (code, output[: len(expected)]) == (3, expected)


@pytest.mark.parametrize("plan", [None, {"reasons": ["because"]}, {"initial_rows": 3}])
def test_a_plan_that_was_changed_or_is_missing_is_named(plan, copy, runs):
    run = runs["gp_ucb"]
    (stored,) = copy.rows("SELECT plan FROM runs WHERE id = ?", run)[0]
    change(copy, "runs", run, plan=None if plan is None else json.dumps(json.loads(stored) | plan))
    code, output = replayed(copy, run)
    assert (code, "plan is not the one that the log records" in output) == (3, True)


def test_settings_that_were_changed_are_named(copy, runs):
    run = runs["gp_ucb"]
    (spec,) = copy.rows("SELECT spec FROM runs WHERE id = ?", run)[0]
    change(copy, "runs", run, spec=json.dumps(json.loads(spec) | {"seed": 10}))
    code, output = replayed(copy, run)
    assert (code, "settings are not those that the log records" in output) == (3, True)


def test_a_changed_answer_is_missed_by_nobody_who_writes_the_log_anew(copy, runs):
    """Reply, digest and history fit each other again: the choices do not. GP-UCB would have gone on elsewhere."""
    run, at = runs["gp_ucb"], 4
    (body,) = copy.rows("SELECT reply FROM trials WHERE run_id = ? AND number = ?", run, at)[0]
    reply = json.loads(body)
    reply["answers"][0]["y"] -= 0.7
    forged = json.dumps(reply).encode()
    change(copy, "trials", run, f"number = {at}", y=reply["answers"][0]["y"], reply=forged)
    with pytest.MonkeyPatch.context() as patch:
        # What the log records is taken for true: this test is about the choices alone.
        patch.setattr("modeler_service.integrity.replay._against_log", lambda *_: None)
        code, output = replayed(copy, run)
    assert (code, f"{run}: trial {at + 1}: recorded" in output) == (3, True), output


@pytest.mark.parametrize("how", ["missing", "half", "unanswered", "last", "ended"])
def test_a_record_with_holes_is_named(how, copy, runs):
    run = runs["gp_bucb" if how == "half" else "igp_ucb"]
    with copy.open() as db:
        if how == "missing":
            db.execute("DELETE FROM trials WHERE run_id = ? AND number = 5", (run,))
        elif how == "half":  # the last of a query for four rows
            db.execute("DELETE FROM trials WHERE run_id = ? AND number = 6", (run,))
        elif how == "last":
            db.execute("DELETE FROM trials WHERE run_id = ? AND number = ?", (run, LENGTH))
        elif how == "unanswered":
            db.execute("UPDATE trials SET y = NULL WHERE run_id = ? AND number = 5", (run,))
        else:
            db.execute("UPDATE runs SET ended_because = 'exhausted' WHERE id = ?", (run,))
    says = {
        "missing": "trial 5: missing: the record goes on with trial 6",
        "half": "trial 6: recorded nothing, derived row",
        "last": f"trial {LENGTH}: the log records an answer, the record has no such trial",
        "unanswered": "trial 5: the log records an answer that the record has not",
        "ended": "recorded that the run ended by exhausted, derived by budget",
    }[how]
    code, output = replayed(copy, run)
    assert (code, output[: len(f"{run}: {says}")]) == (3, f"{run}: {says}")


def test_a_log_that_does_not_verify_is_no_ground_for_a_replay(copy, runs):
    with copy.open() as db:
        db.execute("UPDATE log SET body = x'7b7d' WHERE seq = 9")
    code, output = replayed(copy, runs["random"])
    assert (code, output.startswith("error: record 9")) == (3, True), output


def test_candidates_that_are_missing_or_changed_are_reported_with_what_to_do(copy, runs):
    run = runs["gp_ucb"]
    body = json.loads(copy.rows("SELECT study FROM runs WHERE id = ?", run)[0][0])
    file = copy.data / "candidates" / f"{body['release_sha256']}.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    code, said = replayed(copy, run)
    assert (code, "its SHA-256 is another" in said) == (4, True)
    file.unlink()
    code, said = replayed(copy, run)
    assert (code, f"{file.name} is missing. Have them fetched again" in said) == (5, True)
    elsewhere = file.parent.parent / "elsewhere.npy"
    elsewhere.write_bytes(whole)
    assert replayed(copy, run, "--candidates", str(elsewhere))[0] == 0


def test_a_run_that_does_not_exist_is_reported_as_such(copy):
    assert replayed(copy, "run_0000000000000000") == (5, "error: there is no such run")


# --- without the service's folder -----------------------------------------------------------------


@pytest.fixture(scope="module")
def taken_home(parties, runs, tmp_path_factory):
    """What an auditor is given: the run's export, the log's export, the candidates."""
    modeler, folder, run = parties[1], tmp_path_factory.mktemp("home"), runs["gp_ucb"]
    if modeler.process.poll() is not None:
        modeler.start()
    with Vendor(modeler.url, modeler.token) as vendor:
        export = vendor.export(run)
    (folder / "run.json").write_text(export.model_dump_json())
    (folder / "log.jsonl").write_text(command(modeler, "audit", "export")[1])
    sha256 = export.run.study.release_sha256
    (folder / "z.npy").write_bytes((modeler.data / "candidates" / f"{sha256}.npy").read_bytes())
    return run, folder


def _at_home(folder, run, tmp_path, export="run.json"):
    nowhere = Party("modeler", tmp_path / "nothing")
    options = ("--export", str(folder / export), "--log", str(folder / "log.jsonl"))
    return replayed(nowhere, run, *options, "--candidates", str(folder / "z.npy"))


def test_an_export_is_derived_again_without_the_service(taken_home, tmp_path):
    run, folder = taken_home
    assert _at_home(folder, run, tmp_path)[0] == 0
    body = json.loads((folder / "run.json").read_text())
    assert body["run"].pop("plan")["reasons"] == []  # earlier versions had none, since all settings were given
    (folder / "without.json").write_text(json.dumps(body))
    assert _at_home(folder, run, tmp_path, "without.json")[0] == 0
    row = body["trials"][8]["row"]
    body["trials"][8]["row"] = 399 - row
    (folder / "other.json").write_text(json.dumps(body))
    code, said = _at_home(folder, run, tmp_path, "other.json")
    assert (code, said) == (3, changed_row(run, 9, 399 - row, row))


def test_an_export_without_its_log_or_of_another_run_is_refused(taken_home, tmp_path):
    run, folder = taken_home
    nowhere = Party("modeler", tmp_path / "nothing")
    code, output = replayed(nowhere, run, "--export", str(folder / "run.json"))
    assert (code, "--export and --log belong together" in output) == (2, True)
    code, output = _at_home(folder, "run_0000000000000000", tmp_path)
    assert (code, f"the export is of {run}, not of run_0000000000000000" in output) == (4, True)
    (folder / "broken.json").write_text("{}")
    code, output = _at_home(folder, run, tmp_path, "broken.json")
    assert (code, "is no export of a run in JSON" in output) == (2, True)
