"""Findings of attacks for the owner, over REST and on the curator's machine; none for a modeler."""

import json
import secrets
from functools import partial

import pytest

from blindopt import wire
from blindopt.errors import Remote
from curator_service.releases.attacks.worker import PreviewResult
from tests.builders import a_study, a_study_of, keep_apart
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.curator_service.queries.inbox.measured_study import draft
from tests.curator_service.replaced_steps import replace_preview

EVERY = ["known_rows", "known_rows_noisy", "linkage", "column_space", "membership", "averaging"]


@pytest.fixture(scope="module")
def draft_of(owner, dataset, small, releases):
    def make(release, **more):
        return owner.create_study(a_study_of(small, dataset.id, releases[release], **more)).id

    return make


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("release", ["identity", "gaussian", "po_gp_ucb"])
def test_a_preview_tells_the_owner_what_each_attack_gets(owner, draft_of, release):
    report = owner.preview(draft_of(release))
    findings = {finding.attack: finding for finding in report.attacks}
    assert sorted(findings) == sorted(EVERY)
    share, distance = findings["known_rows"].figure, findings["known_rows"].distance
    assert (share < 0.05 and distance > 0.1) if release == "gaussian" else (share == 1.0 and distance < 1e-6)


def test_a_preview_of_a_turned_release_says_that_its_trials_are_too_few(owner, dataset, small):
    release = {"mechanism": "gaussian", "epsilon": "0.1", "delta": 1e-5, "rotate": True}
    draft = owner.create_study(a_study_of(small, dataset.id, release)).id
    previews = (owner.preview(draft) for _ in range(4))  # by luck something is seen in one preview of 150
    findings = ({finding.attack: finding for finding in preview.attacks}["column_space"] for preview in previews)
    sentence = next(finding.sentence for finding in findings if finding.figure == 0)
    assert "too few trials to tell; with about" in sentence


def test_a_preview_changes_nothing_and_the_stored_report_has_no_attacks(curator, owner, draft_of):
    draft = draft_of("gaussian")
    before, files = len(curator.records()), sorted((curator.data / "files").rglob("*"))
    owner.preview(draft)
    assert len(curator.records()) == before
    assert sorted((curator.data / "files").rglob("*")) == files
    assert owner.study(draft).view.state == "draft"
    released = owner.release(draft)
    assert released.report.attacks == []
    assert len(owner.preview(draft).attacks) == len(EVERY)  # a further trial, not the release


def test_a_modeler_gets_nothing_of_an_attack(curator, owner, draft_of):
    draft = draft_of("po_gp_ucb")
    owner.release(draft)
    grant = owner.grant(draft, wire.GrantCreate(name="modeler"))
    with curator.http(grant.token) as modeler:
        view = modeler.get(f"/v1/studies/{draft}")
        assert view.status_code == 200
        for word in ("attacks", "linkage", "column_space", "membership", "averaging"):
            assert word not in view.text


@pytest.mark.parametrize(("rows", "release"), [(1, "gaussian"), (2, "identity"), (4, "gaussian")])
def test_a_study_of_few_rows_is_previewed(owner, small, releases, release, rows):
    """Over REST; the attacks themselves are tried on each number of few rows and each release in test_trial.py."""
    lines = small.csv.splitlines()[: rows + 1]
    few = owner.register(f"few {rows} {release}", b"\n".join(lines) + b"\n", public=True)
    report = owner.preview(owner.create_study(a_study_of(small, few.id, releases[release])).id)
    assert report.n == rows
    assert "averaging" in [finding.attack for finding in report.attacks]


def test_the_command_attacks_a_draft_and_then_what_was_released_beside_the_service(curator, owner, draft_of):
    study = draft_of("po_gp_ucb")
    for released in (False, True):
        if released:
            release = owner.release(study).release_id
        done = curator.run("attack", study)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"attacks on release {release}" in done.stdout if released else "a trial release" in done.stdout
        assert [line.split()[0] for line in done.stdout.splitlines() if line[:1].isalpha()][2:] == EVERY
        assert "rebuilds 100 % of the others" in done.stdout.replace("\n    ", " ")
    body = json.loads(curator.run("attack", study, "--json").stdout)
    assert (body["study_id"], body["state"]) == (study, "open")
    assert [wire.Finding.model_validate(finding).attack for finding in body["findings"]] == EVERY
    linkage = next(finding for finding in body["findings"] if finding["attack"] == "linkage")
    assert linkage["figure"] == 1.0
    assert "among 400 candidates" in linkage["sentence"]
    assert curator.run_in_process("audit", "verify").returncode == 0


def test_the_command_leaves_a_release_that_is_being_drawn_alone(curator):
    """What lies in the scratch folder belongs to the service."""
    scratch = curator.data / "files/tmp/half-drawn.npy"
    scratch.write_bytes(b"x")
    curator.run("attack", "std_0000000000000000")
    assert scratch.exists()
    scratch.unlink()


def test_a_service_takes_away_what_a_crash_left_when_it_starts(make_service, tmp_path):
    service = make_service("curator", tmp_path).start()
    assert service.stop() == 0
    leftover = service.data / "files/tmp/half-drawn.npy"
    leftover.write_bytes(b"x")
    service.start()
    assert not leftover.exists()


def test_the_command_says_in_words_what_is_wrong(curator, make_service, tmp_path):
    done = curator.run("attack", "std_0000000000000000")
    assert (done.returncode, done.stdout, done.stderr) == (5, "", "error: there is no such study\n")
    nowhere = make_service("curator", tmp_path).run("attack", "std_0000000000000000")
    assert nowhere.returncode == 4
    assert "run where you ran serve" in nowhere.stderr


def test_the_command_says_that_a_study_cannot_be_released(curator, owner, small):
    """Constant columns: Algorithm 1 has nothing to lift along."""
    rows = b"\n".join(b"1,2,%d" % (k % 7) for k in range(30))
    still = owner.register("still", b"a,b,y\n" + rows + b"\n", public=True)
    release = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1", delta=1e-5, r=2, acknowledge_refuted=True)
    spec = a_study(release, dataset_id=still.id, columns="ab", upper=5.0)
    done = curator.run("attack", owner.create_study(spec).id)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the features are linearly dependent after centring")


@pytest.fixture
def private_draft(owner, small, releases, dataset):
    def make(public=False, answers=wire.NONE):
        kept = owner.register(f"private {secrets.token_hex(4)}", small.csv, public=public)
        keep_apart(owner, kept)
        return owner.create_study(a_study_of(small, kept.id, releases["gaussian"], answers=answers))

    return make


def test_a_preview_begins_with_a_verdict_and_the_most_harmful_attack(owner, private_draft):
    report = owner.preview(private_draft().id)
    assert (report.verdict.level, report.attacks[0].level) == ("high", "high")
    assert "exact outcome" in report.verdict.sentence  # y has no noise
    ranks = [("low", "notable", "high").index(finding.level) for finding in report.attacks]
    assert ranks == sorted(ranks, reverse=True)
    assert owner.preview(private_draft(public=True).id).verdict is None


def test_a_draft_whose_preview_was_high_is_released_only_where_that_is_confirmed(curator, owner, private_draft):
    draft = private_draft()
    assert not owner.study(draft.id).view.high_risk
    owner.preview(draft.id)
    assert owner.study(draft.id).view.high_risk
    before = len(curator.records())
    with pytest.raises(Remote, match="high risk"):
        owner.release(draft.id)
    with pytest.raises(Remote, match="high risk"):
        owner.release(draft.id, request=wire.ReleaseAsked(spec_sha256=draft.spec_sha256))
    assert len(curator.records()) == before  # what a preview found is not logged
    opened = owner.release(draft.id, request=wire.ReleaseAsked(spec_sha256=draft.spec_sha256, confirm_high_risk=True))
    assert (opened.state, owner.study(draft.id).view.high_risk) == ("open", False)
    grant = owner.grant(draft.id, wire.GrantCreate(name="modeler"))
    with curator.http(grant.token) as modeler:
        assert "risk" not in modeler.get(f"/v1/studies/{draft.id}").text


def test_a_draft_that_was_changed_since_or_never_previewed_needs_no_confirmation(owner, private_draft):
    assert owner.release(private_draft().id).state == "open"
    draft = private_draft()
    owner.preview(draft.id)
    changed = wire.StudyChange(**(dict(draft.spec) | {"name": "changed", "replaces": draft.spec_sha256}))
    owner.change_study(draft.id, changed)
    assert owner.release(draft.id).state == "open"


def test_a_preview_under_way_is_a_job_with_its_progress(tmp_path, small, monkeypatch):
    seen = []
    curator = InProcessCurator(tmp_path)

    def held(task, job):
        for task.progress in (0.25, 1.0):
            seen.append([(j["kind"], j["progress"]) for j in curator.call("owner", "GET", "/v1/jobs")["jobs"]])
        return PreviewResult()

    replace_preview(monkeypatch, held)
    identity = curator.open(small.csv, partial(draft, small))
    curator.call("owner", "POST", f"/v1/studies/{identity}:preview")
    assert seen == [[("preview", 0.25)], [("preview", 1.0)]]
    assert curator.call("owner", "GET", "/v1/jobs") == {"jobs": []}
    curator.close()
