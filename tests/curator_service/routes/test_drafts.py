"""Changes of a draft: by whom, until when, and what the log says."""

import pytest

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import LogBroken
from curator_service import store
from curator_service.releases.attack_preview import Previews
from curator_service.releases.releases import Releases
from curator_service.store import studies
from curator_service.vault import Vault
from service_kit.runner.runner import Runner
from service_kit.store import audit_log
from tests.builders import a_study
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator

CSV = b"a,b,y\n" + b"\n".join(b"%d,%d,%d" % (i % 7, i % 5, i % 3) for i in range(40)) + b"\n"


def _spec(dataset, name="study", **more):
    more = {"kernel": wire.Kernel(lengthscale=1.0, signal_variance=1.0, noise_variance=0.1)} | more
    release = more.pop("release", wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-6))
    return a_study(release, dataset_id=dataset, name=name, columns="ab", upper=7.0, **more)


class Drafts:
    """A curator in this process with a dataset and a draft."""

    def __init__(self, folder):
        self.in_process = InProcessCurator(folder)
        self.dataset = self.in_process.register(CSV)
        self.make()

    def make(self):
        self.view = self.in_process.draft(_spec(self.dataset))
        self.path = f"/v1/studies/{self.view['id']}"

    def body(self, spec=None, replaces=None):
        spec = spec or _spec(self.dataset, "changed", budget=wire.Budget(queries=9))
        return spec.model_dump(mode="json") | {"replaces": replaces or self.view["spec_sha256"]}

    def put(self, body=None, key=None, role="owner"):
        return self.in_process.send(role, "PUT", self.path, key=key, json=body or self.body())

    def records(self, kind):
        with self.in_process.context.database.read() as db:
            records = [entry.record for entry in audit_log.walk(db)]
        return [record["details"] for record in records if record["kind"] == kind]

    def forecast(self):
        """Store a forecast that has ended; its path."""
        with self.in_process.context.database.read() as db:
            seq = db.execute(studies.select().where(studies.c.id == self.view["id"])).one().seq
        row = {"id": f"fct_{seq:016x}", "study_id": self.view["id"], "state": "completed", "progress": 1.0}
        spec = wire.ForecastCreate(epsilons=["1"], mechanisms=["auto"]).model_dump_json()
        row |= {"spec": spec, "points": "[]", "created_at": self.view["created_at"]}
        self.in_process.context.database.write(lambda db: db.execute(store.forecasts.insert().values(**row)))
        return f"{self.path}/forecasts/{row['id']}"


@pytest.fixture
def drafts(tmp_path):
    made = Drafts(tmp_path)
    yield made
    made.in_process.check()  # what `audit verify` checks, after every test
    made.in_process.curator.close()
    made.in_process.close()


def test_what_is_done_to_y_must_be_stated_and_is_auto_unless_a_mechanism_is_named(drafts):
    """A body without answers released every y exactly."""
    body = _spec(drafts.dataset).model_dump(mode="json")
    del body["answers"]
    changed = body | {"replaces": drafts.view["spec_sha256"]}
    for method, path, sent in (
        ("POST", "/v1/studies", body),
        ("POST", "/v1/studies:check", body),
        ("POST", "/v1/studies", body | {"answers": None}),
        ("PUT", drafts.path, changed),
    ):
        reply = drafts.in_process.send("owner", method, path, json=sent)
        (fault,) = reply.json()["errors"]
        assert (reply.status_code, fault["field"]) == (422, "answers")
        for needed in ('"mechanism": "auto"', '"epsilon"', '"value_bound"', '{"mechanism": "none"} releases y exactly'):
            assert needed in fault["message"]
    made = drafts.in_process.call("owner", "POST", "/v1/studies", json=body | {"answers": {"mechanism": "none"}})
    assert made["spec"]["answers"] == {"mechanism": "none"}
    body |= {"answers": {"epsilon": "0.5", "value_bound": 3.0}}
    made = drafts.in_process.call("owner", "POST", "/v1/studies", json=body)
    assert (made["spec"]["answers"]["mechanism"], made["spec"]["answers"]["plays"]) == ("auto", "each")
    schema = drafts.in_process.call("owner", "GET", "/openapi.json")["components"]["schemas"]["StudyCreate"]
    assert "answers" in schema["required"]
    assert "default" not in schema["properties"]["answers"]


def test_one_stored_value_cannot_stand_for_many_persons_but_in_a_simulation_on_public_records(drafts):
    """Every answer about a record would be counted as another person's, while all are about the same cell."""
    answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=3.0)
    said = _spec(drafts.dataset, answers=answers, privacy_unit="answer")
    body = said.model_dump(mode="json")
    for reply in (
        drafts.in_process.send("owner", "POST", "/v1/studies", json=body),
        drafts.in_process.send("owner", "POST", "/v1/studies:check", json=body),
        drafts.put(drafts.body(said)),
    ):
        assert (reply.status_code, [error["field"] for error in reply.json()["errors"]]) == (422, ["privacy_unit"])
        assert "one stored value" in reply.json()["errors"][0]["message"]
    people = wire.InboxMeasurement(question="How much?", direction="maximize")
    by_hand = said.model_copy(update={"measurement": people}).model_dump(mode="json")
    checked = drafts.in_process.send("owner", "POST", "/v1/studies:check", json=by_hand)
    assert (checked.status_code, "simulation" in checked.json()["guarantee"]) == (200, False)
    body = body | {"dataset_id": drafts.in_process.register(CSV, public=True)}
    checked = drafts.in_process.send("owner", "POST", "/v1/studies:check", json=body).json()
    made = drafts.in_process.call("owner", "POST", "/v1/studies", json=body)
    assert checked["guarantee"] == made["guarantee"]
    assert made["guarantee"].startswith("A simulation: no person is behind it.")
    opened = drafts.in_process.call("owner", "POST", f"/v1/studies/{made['id']}:release")
    assert opened["guarantee"] == opened["report"]["guarantee"] == made["guarantee"]


def test_a_changed_draft_keeps_its_id_and_is_what_is_released(drafts):
    reply = drafts.put()
    assert reply.status_code == 200, reply.text
    view = wire.StudyOwnerView.model_validate_json(reply.content)
    spec = _spec(drafts.dataset, "changed", budget=wire.Budget(queries=9))
    assert (view.id, view.state, view.spec) == (drafts.view["id"], "draft", spec)
    assert view.spec_sha256 == sha256(spec.model_dump_json().encode()) != drafts.view["spec_sha256"]
    assert drafts.in_process.call("owner", "GET", drafts.path) == reply.json() | {"account": None}
    of_both = {"study_id": view.id, "dataset_id": drafts.dataset, "mechanism": "gaussian", "forecasts_dropped": 0}
    digests = {"replaces": drafts.view["spec_sha256"], "spec_sha256": view.spec_sha256}
    assert drafts.records("study.changed") == [of_both | digests]
    released = drafts.in_process.call("owner", "POST", f"{drafts.path}:release", json={"spec_sha256": view.spec_sha256})
    assert (released["state"], released["spec"]["name"]) == ("open", "changed")


def test_a_change_of_what_somebody_else_has_changed_is_refused(drafts):
    assert drafts.put().status_code == 200
    late = drafts.put(drafts.body(_spec(drafts.dataset, "late")))
    assert (late.status_code, late.json()["code"]) == (409, "state_conflict")
    assert drafts.in_process.call("owner", "GET", drafts.path)["spec"]["name"] == "changed"


def test_a_draft_that_was_changed_since_it_was_read_is_not_released(drafts):
    drafts.put()
    read = {"spec_sha256": drafts.view["spec_sha256"]}
    late = drafts.in_process.send("owner", "POST", f"{drafts.path}:release", json=read)
    assert late.status_code == 409
    assert drafts.in_process.call("owner", "GET", drafts.path)["state"] == "draft"
    assert drafts.in_process.call("owner", "GET", f"{drafts.path}/ledger")["entries"] == []


def test_a_change_that_does_not_fit_changes_nothing(drafts):
    wrong = _spec(drafts.dataset, measurement=wire.ColumnMeasurement(column="nothing", direction="maximize"))
    reply = drafts.put(drafts.body(wrong))
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["field"] == "measurement.column"
    assert drafts.in_process.call("owner", "GET", drafts.path) == drafts.view | {"account": None}


@pytest.mark.parametrize("verb", ["release", "close"])
def test_what_was_released_is_never_changed(drafts, verb):
    drafts.in_process.call("owner", "POST", f"{drafts.path}:release")
    if verb == "close":
        drafts.in_process.call("owner", "POST", f"{drafts.path}:close")
    reply = drafts.put()
    assert reply.status_code == 409
    assert "only a draft" in reply.json()["detail"]


class FailingReleases(Releases):
    """Fails after the charge, before the draw."""

    def _in_secret_order(self, study_id, spec):
        raise OSError("no disk")


def test_a_draft_whose_release_was_charged_and_interrupted_is_never_changed(drafts, tmp_path):
    """Else the records would be protected by less than what was charged for."""
    curator = drafts.in_process
    runner = Runner()
    vault = Vault(tmp_path / "data" / "files")
    curator.curator.releases = FailingReleases(
        curator.context, vault, curator.curator.budgets, runner, Previews(runner)
    )
    assert drafts.in_process.send("owner", "POST", f"{drafts.path}:release").status_code == 500
    assert drafts.in_process.call("owner", "GET", drafts.path)["state"] == "draft"
    reply = drafts.put()
    assert reply.status_code == 409
    assert "charged" in reply.json()["detail"]


def test_forecasts_stay_where_they_would_be_the_same_and_go_where_not(drafts):
    path = drafts.forecast()
    drafts.view = drafts.put().json()  # another name, another cap
    drafts.in_process.call("owner", "GET", path)
    other = drafts.put(drafts.body(_spec(drafts.dataset, kernel=None)))
    assert other.status_code == 200
    assert drafts.in_process.send("owner", "GET", path).status_code == 404
    assert [record["forecasts_dropped"] for record in drafts.records("study.changed")] == [0, 1]


def test_a_forecast_of_groups_goes_with_the_cap_that_says_how_its_levels_are_divided(drafts):
    of_groups = {
        "release": wire.GroupsRelease(mechanism="groups", epsilon="1", cells=wire.GridCells(kind="grid", parts=[2, 2])),
        "answers": wire.LaplaceAnswers(mechanism="laplace", epsilon="1", value_bound=1.0),
    }
    cap = wire.Budget(epsilon_per_row="2")
    drafts.view = drafts.put(drafts.body(_spec(drafts.dataset, budget=cap, **of_groups))).json()
    path = drafts.forecast()
    more = wire.Budget(epsilon_per_row="2", queries=9)
    drafts.view = drafts.put(drafts.body(_spec(drafts.dataset, budget=more, **of_groups))).json()
    drafts.in_process.call("owner", "GET", path)
    twice = wire.Budget(epsilon_per_row="4", queries=9)  # of epsilon 1 an answer has then a quarter, no longer a half
    assert drafts.put(drafts.body(_spec(drafts.dataset, budget=twice, **of_groups))).status_code == 200
    assert drafts.in_process.send("owner", "GET", path).status_code == 404


def test_a_draft_with_a_forecast_under_way_waits_for_it(drafts):
    path = drafts.forecast()
    running = store.forecasts.update().values(state="running")
    drafts.in_process.context.database.write(lambda db: db.execute(running))
    assert drafts.put(drafts.body(_spec(drafts.dataset, kernel=None))).status_code == 409
    assert drafts.put().status_code == 200  # another name and cap: the forecast is of this one as well
    drafts.in_process.call("owner", "GET", path)


def test_a_draft_that_was_changed_behind_the_log_is_found(drafts):
    drafts.put()
    with drafts.in_process.context.database.read() as db:
        kept = db.execute(studies.select().where(studies.c.id == drafts.view["id"])).one().spec
    for text in (_spec(drafts.dataset).model_dump_json(), kept):  # the one before, and the right one
        change = studies.update().where(studies.c.id == drafts.view["id"]).values(spec=text)
        drafts.in_process.context.database.write(lambda db, change=change: db.execute(change))
        if text != kept:
            with pytest.raises(LogBroken, match="was changed"):
                drafts.in_process.check()
