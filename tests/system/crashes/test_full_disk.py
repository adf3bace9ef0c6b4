"""A full disk: nothing is half done, everybody is told, and once there is room the same requests succeed."""

import io
import resource
import secrets
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest

from blindopt import wire
from blindopt.client import Owner, Vendor
from blindopt.errors import AuditUnavailable
from curator_service.budget import ledger_lines
from curator_service.context import open_context
from curator_service.curator import Curator
from curator_service.datasets.datasets import Upload
from curator_service.datasets.readings import Reading
from curator_service.releases.releases import ENDED
from curator_service.settings import Settings
from curator_service.vault import Vault
from service_kit.context.request import RequestContext
from service_kit.store.database import Database
from tests.builders import a_run, a_study, a_study_of
from tests.curator_service.replaced_steps import replace_kept_release
from tests.interventions import fail_at
from tests.system.crashes import full_disk

FEATURES = [wire.Feature(column="a", lower=0, upper=1)]


@pytest.fixture
def small_disk(tmp_path):
    """Mounts a tmpfs of so many megabytes as the data folder of a service; skips where that is not allowed."""
    mounted = []

    def mount(service, megabytes):
        service.data.mkdir(parents=True, mode=0o700)
        service.settings["DISK_MIN_BYTES"] = "0"
        full_disk.mount_small(service.data, megabytes)
        mounted.append(service)
        return service

    yield mount
    for service in mounted:
        if service.process is not None and service.process.poll() is None:
            service.kill()
        subprocess.run(["umount", str(service.data)], check=True)


@pytest.fixture
def no_room():
    """For a service that runs: no file may grow. Needs no mount and no rights."""

    @contextmanager
    def limited(service):
        _, hard = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (0, hard))
        yield
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (hard, hard))

    return limited


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("answers", [full_disk.LAPLACE, full_disk.EXACT], ids=["charge, then answer", "both at once"])
def test_on_a_full_disk_every_query_is_refused_and_later_answered_once(
    answers, small_disk, make_service, tmp_path, small, open_study, until
):
    curator = small_disk(make_service("curator", tmp_path), 8).start()
    with Owner(curator.url, curator.token) as owner:
        study = open_study(owner, owner.register("small", small.csv, public=True), answers=answers)
        with curator.http(study.token) as http, curator.http() as own:
            first = full_disk.ask(http, study, "first")
            with full_disk.filled(curator.data):
                answered, refused, reply = full_disk.fill_the_log(http, study)
                full_disk.check_unavailable(reply, "audit_unavailable")
                waiting = [refused, *(secrets.token_hex(4) for _ in range(10))]
                for key in waiting:
                    full_disk.check_unavailable(full_disk.ask(http, study, key), "audit_unavailable")
                # Nothing leaves without its record: neither the study nor the candidates nor an old answer.
                for path in ("", "/candidates", f"/queries/{first.json()['id']}"):
                    reply = http.get(f"/v1/studies/{study.id}{path}")
                    full_disk.check_unavailable(reply, "audit_unavailable")
                    assert b"NUMPY" not in reply.content
                full_disk.check_unavailable(full_disk.ask(http, study, "first"), "audit_unavailable")
                ready = until(lambda: (reply := own.get("/readyz")).status_code == 503 and reply)  # as old as a second
                full_disk.check_unavailable(ready, "audit_unavailable")
                assert own.get("/healthz").status_code == 200
                assert own.get(f"/v1/studies/{study.id}/ledger").status_code == 200  # an owner only reads
                for path, body in (
                    (f"/v1/studies/{study.id}/grants", {"name": "x"}),
                    (f"/v1/studies/{study.id}:close", None),
                ):
                    reply = own.post(path, json=body, headers={"Idempotency-Key": "later " + path[-6:]})
                    full_disk.check_unavailable(reply, "audit_unavailable")
            until(lambda: own.get("/readyz").status_code == 200)
            assert owner.study(study.id).view.state == "open"
            again = {key: full_disk.ask(http, study, key) for key in waiting}
            assert {reply.status_code for reply in again.values()} == {201}
            answered |= {"first": first.content} | {key: reply.content for key, reply in again.items()}
            assert full_disk.ask(http, study, "first").content == first.content
            curator.stop()
            curator.start()
            full_disk.check_once(curator, owner, study, answered)


def test_a_service_that_is_killed_on_a_full_disk_comes_back_when_there_is_room(
    small_disk, make_service, tmp_path, small, open_study
):
    curator = small_disk(make_service("curator", tmp_path), 8).start()
    with Owner(curator.url, curator.token) as owner:
        study = open_study(owner, owner.register("small", small.csv, public=True), answers=full_disk.LAPLACE)
        with curator.http(study.token) as http:
            with full_disk.filled(curator.data):
                answered, refused, _ = full_disk.fill_the_log(http, study)
                curator.kill()
            curator.start()
            answered[refused] = full_disk.ask(http, study, refused).content
            full_disk.check_once(curator, owner, study, answered)


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("answers", [full_disk.LAPLACE, full_disk.EXACT], ids=["charge, then answer", "both at once"])
def test_where_no_file_may_grow_the_same_holds(answers, no_room, make_service, tmp_path, small, open_study, until):
    """Without a mount: the limit of the process on the size of its files."""
    curator = make_service("curator", tmp_path).start()
    with Owner(curator.url, curator.token) as owner:
        study = open_study(owner, owner.register("small", small.csv, public=True), answers=answers)
        with curator.http(study.token) as http, curator.http() as own:
            with no_room(curator):
                for _ in range(3):
                    full_disk.check_unavailable(full_disk.ask(http, study, "k"), "audit_unavailable")
                ready = until(lambda: (reply := own.get("/readyz")).status_code == 503 and reply)
                full_disk.check_unavailable(ready, "audit_unavailable")
            answered = {"k": full_disk.ask(http, study, "k").content}
            until(lambda: own.get("/readyz").status_code == 200)
            full_disk.check_once(curator, owner, study, answered)


def test_a_file_for_which_there_is_no_room_is_not_registered_and_later_is(small_disk, make_service, tmp_path):
    curator = small_disk(make_service("curator", tmp_path), 8).start()
    big = b"a,b\n" + b"".join(b"%.15f,%.15f\n" % (x, y) for x, y in np.random.default_rng(0).random((60_000, 2)))
    assert 1 << 20 < len(big) < 4 << 20  # more than a form keeps in memory

    def upload(http, content, key):
        return http.post(
            "/v1/datasets", files={"file": ("x.csv", content)}, data={"name": "x"}, headers={"Idempotency-Key": key}
        )

    with curator.http() as http:
        for leave in (400_000, len(big) + 400_000):  # no room for the upload; none for the dataset
            with full_disk.filled(curator.data, leave):
                full_disk.check_unavailable(upload(http, big, "big"), "storage_unavailable")
                assert http.get("/v1/datasets").json()["datasets"] == []
                assert [path.name for path in (curator.data / "files").rglob("*") if path.is_file()] == []
        assert upload(http, big, "big").status_code == 201
        assert len(http.get("/v1/datasets").json()["datasets"]) == 1


def test_a_release_for_which_there_is_no_room_stays_a_draft_and_is_charged_once(small_disk, make_service, tmp_path):
    curator = small_disk(make_service("curator", tmp_path), 12).start()
    rows = np.random.default_rng(0).random((60_000, 2)).round(6)
    content = b"a,y\n" + b"".join(b"%f,%f\n" % (x, y) for x, y in rows)
    with Owner(curator.url, curator.token, timeout_s=240) as owner, curator.http() as http:
        dataset = owner.register("d", content)
        release_spec = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5)
        draft = owner.create_study(a_study(release_spec, dataset_id=dataset.id, features=FEATURES))

        def release():
            return http.post(f"/v1/studies/{draft.id}:release", headers={"Idempotency-Key": "r"})

        files = sorted(path.name for path in (curator.data / "files").rglob("*") if path.is_file())
        for leave in (250_000, 600_000):  # none for Z; none for its row order
            with full_disk.filled(curator.data, leave):
                full_disk.check_unavailable(release(), "storage_unavailable")
                assert owner.study(draft.id).view.state == "draft"
                assert sorted(path.name for path in (curator.data / "files").rglob("*") if path.is_file()) == files
        assert release().status_code == 200
        (line,) = owner.ledger(draft.id)
        assert (line.kind, line.epsilon) == ("release", "1")
        assert curator.run("audit", "verify").returncode == 0


@pytest.mark.parametrize("key", ["r", "another", "restart"])
def test_a_release_that_could_not_be_taken_back_is_begun_anew(key, tmp_path, small, monkeypatch):
    """The disk fills between its beginning and the record that it was given up."""
    settings = Settings(data_dir=tmp_path / "data")

    def request_of(key):
        return RequestContext(who, secrets.token_hex(16), "POST", "/x", key, "0" * 64)

    with open_context(settings) as context:
        _, who = context.authentication.issue("owner", "o", days=1)
        curator = Curator(context, Vault(tmp_path / "data/files"), settings)
        upload = Upload(name="d", public=True, filename="d.csv")
        file, reading = io.BytesIO(small.csv), Reading("d.csv")
        made = curator.datasets.register(request_of("d"), upload, file, reading)
        spec = a_study_of(small, wire.DatasetView.model_validate_json(made.body).id)
        draft = wire.StudyOwnerView.model_validate_json(curator.studies.create(request_of("s"), spec).body)

        files = sorted(path.name for path in (tmp_path / "data/files").rglob("*") if path.is_file())
        with monkeypatch.context() as broken:
            full = AuditUnavailable("the disk is full")

            def full_from_now_on(*args):
                fail_at(broken, Database, "write", full)
                raise full

            replace_kept_release(broken, full_from_now_on)
            with pytest.raises(AuditUnavailable):
                curator.releases.release(request_of("r"), draft.id)
        assert curator.studies.view(draft.id).state == "releasing"
        assert sorted(path.name for path in (tmp_path / "data/files").rglob("*") if path.is_file()) == files
        if key == "restart":
            curator = Curator(context, Vault(tmp_path / "data/files"), settings)
            assert curator.recover() is None
            view = curator.studies.view(draft.id)
            assert (view.state, view.release_problem) == ("draft", ENDED)
        curator.releases.release(request_of(key), draft.id)
        assert curator.studies.view(draft.id).state == "open"
        with context.database.read() as db:
            assert [line.kind for line in ledger_lines.page(db, draft.id)] == ["release"]


def test_a_run_waits_while_its_modeler_s_disk_is_full_and_goes_on_by_itself(
    small_disk, make_service, tmp_path, small, open_study, run_of, until
):
    def refuse_a_stop(http, run):
        reply = http.post(f"/v1/runs/{run}:stop", headers={"Idempotency-Key": "stop"})
        full_disk.check_unavailable(reply, "audit_unavailable")

    curator = make_service("curator", tmp_path).start()
    modeler = small_disk(make_service("modeler", tmp_path, **full_disk.QUICK), 8).start()
    with Owner(curator.url, curator.token) as owner:
        study = open_study(owner, owner.register("small", small.csv, public=True), noise_variance=1.0)
    order = run_of(curator.url, study, iterations=150, random=True)
    full_disk.check_a_waiting_run(curator, modeler, study, order, modeler.data, until, refuse_a_stop)


@pytest.mark.slow(sibling="test_on_a_full_disk_every_query_is_refused_and_later_answered_once")
def test_a_run_whose_candidates_find_no_room_waits_and_goes_on(small_disk, make_service, tmp_path, run_of, until):
    """In parts: there is room for some, which do not keep the disk full."""
    curator = make_service("curator", tmp_path, part_bytes="100000").start()
    modeler = small_disk(make_service("modeler", tmp_path, **full_disk.QUICK), 8).start()
    rows = np.random.default_rng(0).random((100_000, 2)).round(6)
    content = b"a,y\n" + b"".join(b"%f,%f\n" % (x, y) for x, y in rows)
    with Owner(curator.url, curator.token, timeout_s=240) as owner, Vendor(modeler.url, modeler.token) as vendor:
        dataset = owner.register("d", content, public=True)
        draft = owner.create_study(a_study(dataset_id=dataset.id, features=FEATURES))
        owner.release(draft.id)
        token = owner.grant(draft.id, wire.GrantCreate(name="m")).token
        spec = a_run(curator.url, draft.id, token, iterations=3, algorithm=wire.RandomRows(name="random"))
        with full_disk.filled(modeler.data, leave=500_000):
            run = vendor.start(spec).id
            waiting = until(lambda: (view := vendor.run(run).view).state in ("waiting", "failed") and view)
            assert waiting.state == "waiting"
            # Which one it is depends on whether a part or the record of an exchange comes to the full disk first.
            assert waiting.problem.code in ("audit_unavailable", "storage_unavailable")
            until(lambda: not list((modeler.data / "candidates").iterdir()))  # it is tried again and again
        assert vendor.wait(run, timeout_s=240).state == "completed"
