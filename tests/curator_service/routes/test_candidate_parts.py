"""A large release is published in parts: bytes of one npy file, each with a digest, and all named by the study's."""

import io
import json
from contextlib import closing
from hashlib import sha256

import numpy as np
import pytest

from blindopt import wire
from curator_service.integrity import log_checks
from service_kit.store import audit_log
from tests import beside
from tests.curator_service.budget.file_of_records import FileOfRecords

CSV = b"a,b,y\n" + b"\n".join(b"%d,%d,%d" % (i % 7, i % 5, i) for i in range(200)) + b"\n"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    made = FileOfRecords(tmp_path_factory.mktemp("parts"), csv=CSV, public=True, part_bytes=1_100)
    yield made
    made.close()


@pytest.fixture(scope="module")
def study(file):
    return file.study(answers=wire.NONE, release=wire.IdentityRelease(mechanism="identity"))


@pytest.fixture
def get(file, study):
    def send(path, **headers):
        return file.in_process.send(study, "GET", f"/v1/studies/{study}{path}", headers=headers)

    return send


def whole(file, study):
    release = file.in_process.call("owner", "GET", f"/v1/studies/{study}")["release_id"]
    return file.in_process.curator.vault.candidates(release).read_bytes()


def problem(reply, status, code):
    assert (reply.status_code, reply.json()["code"]) == (status, code)


def test_the_parts_of_the_list_are_the_file(file, study, get):
    view = wire.StudyView.model_validate_json(get("").content)
    assert [part.rows for part in view.parts] == [68, 68, 64]
    bodies = []
    for number, part in enumerate(view.parts):
        reply = get(f"/candidates/parts/{number}")
        assert reply.headers["etag"] == f'"sha256-{part.sha256}"' == f'"sha256-{sha256(reply.content).hexdigest()}"'
        assert len(reply.content) == part.bytes == int(reply.headers["content-length"])
        bodies.append(reply.content)
    assert b"".join(bodies) == whole(file, study)
    z = np.load(io.BytesIO(b"".join(bodies)), allow_pickle=False)
    assert (z.shape, z.dtype) == ((view.n, view.r), np.float64)
    owned = file.in_process.call("owner", "GET", f"/v1/studies/{study}")
    assert owned["release_sha256"] == view.release_sha256
    assert owned["report"]["parts"] == [part.model_dump() for part in view.parts]


def test_the_whole_is_refused_with_the_names_of_the_parts_and_there_is_no_other_part(file, get):
    refused = get("/candidates")
    problem(refused, 409, "state_conflict")
    detail = refused.json()["detail"]  # what the user of a modeler of 0.2.0 reads
    assert ("parts/0 to parts/2" in detail, "modelers since 0.3.0" in detail) == (True, True)
    for number in (3, 999):
        problem(get(f"/candidates/parts/{number}"), 404, "not_found")
    for number in ("1000", "-1", "x", "..%2F..%2Fsecrets"):
        assert get(f"/candidates/parts/{number}").status_code in (404, 422)


def test_ranges_are_within_a_part_and_never_of_the_next_one(file, study, get):
    content, path = whole(file, study), "/candidates/parts/1"
    first = len(get("/candidates/parts/0").content)
    size = len(get(path).content)
    for wanted, start, stop in (
        ("bytes=0-9", 0, 10),
        ("bytes=100-", 100, size),
        ("bytes=-7", size - 7, size),
        (f"bytes=5-{10**9}", 5, size),
    ):
        reply = get(path, Range=wanted)
        assert (reply.status_code, reply.content) == (206, content[first + start : first + stop])
        assert reply.headers["content-range"] == f"bytes {start}-{stop - 1}/{size}"
    past = get(path, Range=f"bytes={size}-")
    problem(past, 416, "range_not_satisfiable")
    assert past.headers["content-range"] == f"bytes */{size}"
    assert get(path, **{"If-None-Match": get(path).headers["etag"]}).status_code == 304


def test_the_log_has_the_digest_of_each_part_and_a_changed_list_is_noticed(file, study, get):
    get("/candidates/parts/2")
    view = wire.StudyView.model_validate_json(get("").content)
    with file.in_process.context.database.read() as db:
        records = [entry.record for entry in audit_log.walk(db)]
        exchanges = [record["exchange"] for record in records if record.get("exchange")]
        log_checks.check(db, iter(records))
    of_parts = [e for e in exchanges if e["path"].endswith("/candidates/parts/2") and e["status"] == 200]
    assert {e["reply_sha256"] for e in of_parts} == {view.parts[2].sha256}
    (released,) = [record["details"] for record in records if record["kind"] == "study.released"]
    assert released["sha256"] == view.release_sha256 == wire.digest_of_parts(view.parts)


def test_a_list_that_was_changed_is_not_served_nor_any_part_of_it(tmp_path):
    """A receipt would name bytes that are not sent."""
    file = FileOfRecords(tmp_path, csv=CSV, public=True, part_bytes=1_100)
    study = file.study(answers=wire.NONE, release=wire.IdentityRelease(mechanism="identity"))
    path, of_file = file.in_process.context.database.path, f"/v1/studies/{study}"
    parts = file.in_process.call(study, "GET", of_file)["parts"]
    with closing(beside.connect(path)) as db:
        ((report,),) = db.execute("SELECT report FROM releases").fetchall()
    changed = json.dumps(json.loads(report) | {"parts": [parts[1], parts[0], parts[2]]})
    beside.edit(path, "UPDATE releases SET report = ?", changed)  # nobody but the machine's administrator can
    file.reopen()
    for each in ("", "/candidates", "/candidates/parts/1"):
        problem(file.in_process.send(study, "GET", f"{of_file}{each}"), 503, "record_changed")
    file.in_process.curator.close()
    file.in_process.close()


def test_a_small_release_has_no_parts_and_an_erased_one_has_none_any_more(tmp_path):
    identity = {"answers": wire.NONE, "release": wire.IdentityRelease(mechanism="identity")}
    file = FileOfRecords(tmp_path, csv=CSV, public=True, part_bytes=1_100)
    small = file.in_process.register(CSV[:200].rpartition(b"\n")[0], public=True)
    small, parted = file.study(small, **identity), file.study(**identity)
    path = f"/v1/studies/{small}"
    assert file.in_process.call(small, "GET", path)["parts"] == []
    assert file.in_process.send(small, "GET", f"{path}/candidates").status_code == 200
    problem(file.in_process.send(small, "GET", f"{path}/candidates/parts/0"), 404, "not_found")
    path = f"/v1/studies/{parted}/candidates/parts/2"
    assert file.in_process.send(parted, "GET", path).status_code == 200
    mark = whole(file, parted)[-256:]  # 16 rows of Z
    files = tmp_path / "data"
    assert len([each for each in files.rglob("*") if each.is_file() and mark in each.read_bytes()]) == 1
    for verb in (f"studies/{parted}:close", f"datasets/{file.dataset}:archive", f"datasets/{file.dataset}:erase"):
        file.in_process.call("owner", "POST", f"/v1/{verb}")
    assert file.in_process.send(parted, "GET", path).status_code == 410
    assert not [each for each in files.rglob("*") if each.is_file() and mark in each.read_bytes()]
    assert len([path for path in (files / "files").glob("rel_*.npy") if ".order" not in path.name]) == 1
    file.close()
