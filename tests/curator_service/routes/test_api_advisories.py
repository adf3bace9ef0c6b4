"""Withdrawals of mechanisms: what they refuse, where they are shown, and their records in the log."""

import io
import json
import time
from contextlib import closing
from datetime import UTC, datetime

import pytest

from blindopt import wire
from blindopt.client import OwnerClient, StudyClient
from blindopt.errors import MechanismWithdrawn, Remote, StateConflict
from curator_service.app import build
from curator_service.privacy.choice import as_run, concrete
from curator_service.release.gaussian import GaussianMechanism
from curator_service.settings import Settings
from curator_service.use_cases.studies import advisories
from curator_service.use_cases.studies.datasets import Upload
from curator_service.use_cases.studies.readings import Reading
from service_kit.context.request import RequestContext
from tests import beside
from tests.interventions import act_before

GAUSSIAN = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=0.1)
AUTO = wire.AutoRelease(mechanism="auto", epsilon="1", delta=0.1)  # at d = 2 and this delta, the Gaussian
IDENTITY = wire.IdentityRelease(mechanism="identity")
WHY = "its proof has a hole"
WITHDRAWN = wire.AdvisoryCreate(mechanism="gaussian", version=2, reason=WHY)


class Withdrawn:
    """A curator with studies, after which `gaussian` was withdrawn."""

    def __init__(self, service, owner, small, open_study):
        self.service, self.owner = service, owner
        self.dataset = owner.register("small", small.csv, public=True)
        self.opened = open_study(owner, self.dataset, GAUSSIAN)
        self.by_auto = open_study(owner, self.dataset, AUTO)
        self.other = open_study(owner, self.dataset, IDENTITY)
        answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.5", value_bound=1.0)
        budget = wire.Budget(epsilon_per_row="3")
        self.answering = open_study(owner, self.dataset, GAUSSIAN, answers=answers, budget=budget)
        with StudyClient(service.url, self.answering.token, self.answering.id) as study:
            self.answering_before = study.study()
        self.before = owner.preview(self.draft(GAUSSIAN))
        self.waiting = self.draft(GAUSSIAN)
        self.advisory = owner.withdraw(WITHDRAWN, key="withdraw")

    def draft(self, release):
        return self.owner.create_study(self.opened.view.spec.model_copy(update={"release": release})).id


@pytest.fixture(scope="module")
def withdrawn(make_service, tmp_path_factory, small, open_study):
    service = make_service("curator", tmp_path_factory.mktemp("advisories")).start()
    with OwnerClient(service.url, service.token, timeout_s=60) as owner:
        yield Withdrawn(service, owner, small, open_study)


def refusal(of):
    with pytest.raises(Remote) as refused:
        of()
    return refused.value.remote_status, refused.value.remote_code


def test_an_advisory_names_the_studies_that_it_touches(withdrawn):
    assert withdrawn.advisory.affected == [withdrawn.opened.id, withdrawn.by_auto.id, withdrawn.answering.id]
    assert (withdrawn.advisory.mechanism, withdrawn.advisory.version, withdrawn.advisory.reason) == ("gaussian", 2, WHY)
    assert withdrawn.owner.advisories() == [withdrawn.advisory]
    token = withdrawn.service.run_in_process("token", "create", "--name", "a", "--role", "auditor").stdout.strip()
    with OwnerClient(withdrawn.service.url, token) as auditor:
        assert auditor.advisories() == [withdrawn.advisory]
        assert refusal(lambda: auditor.withdraw(WITHDRAWN)) == (403, "forbidden")


def headings(sentences):
    return {sentence.partition(":")[0] for sentence in sentences}


def test_a_draft_that_waited_is_refused_and_costs_nothing(withdrawn):
    assert refusal(lambda: withdrawn.owner.release(withdrawn.waiting)) == (409, "mechanism_withdrawn")
    assert withdrawn.owner.study(withdrawn.waiting).state == "draft"
    assert list(withdrawn.owner.ledger(withdrawn.waiting)) == []


def test_a_preview_says_that_it_is_withdrawn(withdrawn):
    assert withdrawn.before.status == "sound"
    after = withdrawn.owner.preview(withdrawn.waiting)
    assert after.status == "withdrawn"
    assert after.guarantee.startswith(f"Withdrawn: {WHY}.")
    assert [feature.sensitivity for feature in after.features] == [None, None]  # nothing protects a change any more
    assert headings(withdrawn.before.not_protected) & {"Features", "Changes larger than Delta"} == {
        "Changes larger than Delta"
    }
    assert headings(after.not_protected) & {"Features", "Changes larger than Delta"} == {"Features"}


def test_nothing_bounds_what_a_withdrawn_release_costs_in_any_view(withdrawn):
    after, before = withdrawn.owner.preview(withdrawn.waiting).price, withdrawn.before.price
    assert (before.release_epsilon, after.release_epsilon) == ("1", None)
    assert after.sentence.startswith("The release has no finite epsilon")
    for opened, cost in ((withdrawn.opened, None), (withdrawn.by_auto, None), (withdrawn.other, "0")):
        accounting, balance = withdrawn.owner.accounting(opened.id), withdrawn.owner.balance(opened.id)
        assert {accounting.rows[0].epsilon, balance.release_epsilon} == {cost}
        assert [line.epsilon for line in withdrawn.owner.ledger(opened.id) if line.kind == "release"] == [cost]
        assert ("without a bound" in accounting.sentence) == (cost is None)


def test_private_answers_keep_their_promise_beside_a_withdrawn_release(withdrawn):
    """The modeler sees no epsilon of the release any more, but that of y; charges are not refunded."""
    opened, before = withdrawn.answering, withdrawn.answering_before
    with StudyClient(withdrawn.service.url, opened.token, opened.id) as study:
        after = study.study()
        study.ask(wire.QueryRequest(rows=[wire.RowPlays(row=1, plays=4)]), key="to the cap")
        with pytest.raises(Remote, match=r"epsilon_per_row of row 1: 0\.5 requested with 3 of 3 spent"):
            study.ask(wire.QueryRequest(rows=[wire.RowPlays(row=1)]), key="past the cap")
    claims = [(view.status, view.epsilon, view.delta, view.sensitivity) for view in (before, after)]
    assert claims == [("sound", "1", 0.1, 1.0), ("withdrawn", None, None, None)]
    assert after.answers == before.answers
    assert before.guarantee.endswith("Answers about one row add up, with the release, to (3, 0.1) at most.")
    assert after.guarantee.endswith("Answers about one row add up to 3 at most.")
    (exposed,) = withdrawn.owner.exposure(opened.id)
    assert (exposed.epsilon, exposed.spent) == ("2", None)
    assert [row.epsilon for row in withdrawn.owner.accounting(opened.id).rows] == [None, None]
    assert withdrawn.owner.study(opened.id).spec.release == GAUSSIAN  # as declared: the owner's own settings


def test_a_study_that_is_open_goes_on_and_says_so(withdrawn):
    """Z was published, so refusing queries would protect no record; the owner may close the study."""
    for opened in (withdrawn.opened, withdrawn.by_auto):
        with StudyClient(withdrawn.service.url, opened.token, opened.id) as study:
            view = study.study()
            assert (view.state, view.status, view.mechanism) == ("open", "withdrawn", "gaussian")
            assert view.guarantee.startswith(f"Withdrawn: {WHY}.")
            assert "until its owner closes it" in view.guarantee
            assert "Features" in headings(view.not_protected)
            answered, _ = study.ask(wire.QueryRequest(rows=[wire.RowPlays(row=1)]), key="after")
            assert answered.state == "answered"
        owned = withdrawn.owner.study(opened.id)
        assert owned.report.status == "withdrawn"
        assert owned.guarantee == owned.report.guarantee == view.guarantee
        assert owned.not_protected == owned.report.not_protected == view.not_protected
        assert [feature.sensitivity for feature in owned.report.features] == [None, None]
        assert (owned.report.mechanism, owned.report.version) == ("gaussian", 2)
    with StudyClient(withdrawn.service.url, withdrawn.other.token, withdrawn.other.id) as study:
        view = study.study()
    assert (view.status, "Withdrawn" in view.guarantee) == ("unprotected", False)


def test_meta_shows_what_is_withdrawn(withdrawn):
    with withdrawn.service.http("") as http:
        meta = wire.CuratorMeta.model_validate_json(http.get("/v1/meta").content)
    statuses = {mechanism.name: mechanism.status for mechanism in meta.mechanisms}
    assert statuses["gaussian"] == "withdrawn"
    assert (statuses["identity"], statuses["po_gp_ucb"]) == ("unprotected", "refuted")


def test_a_retry_gets_the_same_advisory_and_a_second_one_is_refused(withdrawn):
    assert withdrawn.owner.withdraw(WITHDRAWN, key="withdraw") == withdrawn.advisory
    assert refusal(lambda: withdrawn.owner.withdraw(WITHDRAWN)) == (409, "state_conflict")
    assert withdrawn.owner.advisories() == [withdrawn.advisory]


@pytest.mark.parametrize("said", [("rot13", 1), ("gaussian", 3), ("auto", 1)])
def test_only_what_there_is_can_be_withdrawn(said, withdrawn):
    mechanism, version = said
    advisory = wire.AdvisoryCreate(mechanism=mechanism, version=version, reason="no")
    assert refusal(lambda: withdrawn.owner.withdraw(advisory)) == (422, "invalid")


def test_the_log_tells_a_withdrawal_without_its_words_and_verifies(withdrawn):
    (record,) = [record for record in withdrawn.service.records() if record["kind"] == "mechanism.withdrawn"]
    assert {k: v for k, v in record["details"].items() if k != "reason_sha256"} == {
        "advisory_id": withdrawn.advisory.id, "mechanism": "gaussian", "version": 2,
    }  # fmt: skip
    assert WHY not in str(record)
    assert withdrawn.service.run_in_process("audit", "verify").returncode == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE advisories SET reason = 'never mind'", "is not what the log says"),
        ("UPDATE advisories SET version = 9", "is not what the log says"),
        ("DELETE FROM advisories", "is missing"),
        (
            "INSERT INTO advisories SELECT 9, 'adv_x', 'identity', 1, reason, created_at FROM advisories",
            "is not what the log says",
        ),
    ],
)
def test_a_table_that_is_not_what_the_log_says_is_found(change, says, withdrawn, make_service, tmp_path):
    """The database by hand, its triggers dropped: `audit verify` compares it with the log."""
    copy = make_service("curator", tmp_path)
    copy.data.mkdir(parents=True)
    beside.copy(withdrawn.service.database, copy.database)
    keys = copy.data / "secrets"
    keys.mkdir(mode=0o700)
    for key in (withdrawn.service.data / "secrets").iterdir():
        (keys / key.name).write_bytes(key.read_bytes())
    (copy.data / "files").mkdir()
    for file in (withdrawn.service.data / "files").glob("*.npy"):
        (copy.data / "files" / file.name).write_bytes(file.read_bytes())
    with closing(beside.connect(copy.database)) as db:
        with pytest.raises(Exception, match="append-only"):
            db.execute("DELETE FROM advisories")
        db.rollback()
        beside.drop_triggers(db)
        db.execute(change)
        db.commit()
    verified = copy.run_in_process("audit", "verify")
    assert verified.returncode != 0
    assert says in verified.stdout + verified.stderr


# --- what auto takes instead -----------------------------------------------------------------------


def test_auto_takes_the_next_sound_one_and_says_why(withdrawn):
    """Planar Laplace is next: that follows from public values alone, before anything is drawn."""
    spec = withdrawn.opened.view.spec.model_copy(update={"release": AUTO})
    assert concrete(spec)[0].mechanism == "gaussian"
    release, why = concrete(spec, {"gaussian"})
    assert release.mechanism == "planar_laplace"
    assert "Withdrawn: gaussian." in why
    assert (release.epsilon, release.sensitivity) == (AUTO.epsilon, AUTO.sensitivity)
    release, why = concrete(spec, {"gaussian", "planar_laplace"})
    assert release.mechanism == "gaussian"  # the first, which is then refused
    assert "auto has no other choice left" in why
    pure = spec.model_copy(update={"release": wire.AutoRelease(mechanism="auto", epsilon="1")})
    assert concrete(pure, {"planar_laplace"})[0].mechanism == "planar_laplace"
    assert [as_run(spec, name).mechanism for name in ("gaussian", "planar_laplace")] == ["gaussian", "planar_laplace"]
    assert as_run(withdrawn.opened.view.spec, "gaussian") == GAUSSIAN


def test_a_forecast_of_auto_tries_what_a_release_would_take_today(withdrawn):
    draft = withdrawn.owner.create_study(
        withdrawn.opened.view.spec.model_copy(
            update={"release": AUTO, "kernel": wire.Kernel(lengthscale=3.0, signal_variance=1.0, noise_variance=1e-4)}
        )
    )
    forecast_spec = wire.ForecastCreate(epsilons=["1"], mechanisms=["auto"], functions=2, queries=2, rows_max=10)
    began = withdrawn.owner.start_forecast(draft.id, forecast_spec)
    while (view := withdrawn.owner.forecast(draft.id, began.id)).state == "running":
        time.sleep(0.05)
    assert [point.runs_as for point in view.points if point.mechanism == "auto"] == ["planar_laplace"]
    assert withdrawn.owner.preview(draft.id).mechanism == "planar_laplace"


def test_what_the_owner_chose_is_never_changed(withdrawn):
    assert concrete(withdrawn.opened.view.spec, {"gaussian", "planar_laplace"}) == (GAUSSIAN, None)


# --- advisories of the program, and a withdrawal while a release is drawn ---------------------------


class InProcess:
    """A curator's service without its server."""

    def __init__(self, folder, small):
        self.curator = build(Settings(data_dir=folder)).state.curator
        _, self.who = self.curator.context.authentication.issue("owner", "o", days=1)
        upload = Upload(name="d", public=True, columns=None, filename="a.csv")
        file, reading = io.BytesIO(small.csv), Reading("a.csv", is_small=True)
        dataset = self.curator.datasets.register(self.request("dataset"), upload, file, reading)
        self.spec = wire.StudyCreate(
            name="s",
            dataset_id=json.loads(dataset.body)["id"],
            features=small.features,
            measurement=wire.ColumnMeasurement(column=small.names[2], direction="maximize"),
            release=GAUSSIAN,
            answers=wire.NONE,
        )

    def request(self, key):
        return RequestContext(self.who, "req", "POST", f"/{key}", key, "0" * 64)

    def draft(self, key="draft"):
        return json.loads(self.curator.studies.create(self.request(key), self.spec).body)["id"]


@pytest.fixture
def in_process(tmp_path, small):
    curator_in_process = InProcess(tmp_path, small)
    yield curator_in_process
    curator_in_process.curator.context.close()


def test_an_advisory_that_the_program_brings_counts_like_an_owner_s(in_process, monkeypatch):
    """The tuple that ships with the code is empty in this version."""
    assert advisories.BUILT_IN == ()
    ours = advisories.Advisory("adv_program_1", "gaussian", 2, WHY, datetime(2026, 1, 1, tzinfo=UTC))
    monkeypatch.setattr(advisories, "BUILT_IN", (ours,))
    use_case = in_process.curator.advisories
    assert use_case.withdrawn() == {"gaussian"}
    draft = in_process.draft()
    assert in_process.curator.releases.preview(draft).status == "withdrawn"
    with pytest.raises(MechanismWithdrawn):
        in_process.curator.releases.release(in_process.request("release"), draft)
    with pytest.raises(StateConflict):
        use_case.withdraw(in_process.request("again"), WITHDRAWN)
    other = wire.AdvisoryCreate(mechanism="po_gp_ucb", version=1, reason="refuted")
    use_case.withdraw(in_process.request("other"), other)
    listed = use_case.page(0, 10)
    assert [(position, view.mechanism, view.affected) for position, view in listed] == [
        (1, "gaussian", []), (2, "po_gp_ucb", []),
    ]  # fmt: skip
    assert use_case.page(0, 1) + use_case.page(1, 1) == listed


def test_a_release_of_an_older_version_is_judged_by_that_version(in_process, monkeypatch):
    """Z that left before the mechanism was changed has no part in what is said of the new version, and the reverse."""
    studies = [in_process.draft(key) for key in ("old", "new")]
    for version, study in enumerate(studies, start=1):
        monkeypatch.setattr(GaussianMechanism, "version", version)
        in_process.curator.releases.release(in_process.request(study), study)
    first = wire.AdvisoryCreate(mechanism="gaussian", version=1, reason="its low bits tell the axes")
    in_process.curator.advisories.withdraw(in_process.request("first"), first)
    statuses = [in_process.curator.studies.view(study).report.status for study in studies]
    assert statuses == ["withdrawn", "sound"]
    assert in_process.curator.advisories.withdrawn() == set()
    assert in_process.curator.releases.preview(in_process.draft("next")).status == "sound"


def test_a_release_that_is_being_drawn_when_its_mechanism_is_withdrawn_does_not_leave(
    in_process, monkeypatch, tmp_path
):

    def withdraw(*_):
        in_process.curator.advisories.withdraw(in_process.request("advisory"), WITHDRAWN)

    act_before(monkeypatch, GaussianMechanism, "draw", withdraw)
    draft = in_process.draft()
    with pytest.raises(MechanismWithdrawn):
        in_process.curator.releases.release(in_process.request("release"), draft)
    after = in_process.curator.studies.view(draft)
    assert (after.state, after.release_id) == ("draft", None)
    assert list((tmp_path / "files").glob("rel_*")) == []
    # It was charged before the draw, and stays so: a crash or a withdrawal may waste budget, never overspend.
    assert [line.kind for line in in_process.curator.accounts.ledger(draft, 0, 9)[0]] == ["release"]
