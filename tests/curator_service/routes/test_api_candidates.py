"""GET /v1/studies/{id}/candidates: whole, in parts, not at all, and over a connection that breaks."""

import hashlib
import io

import numpy as np
import pytest

from blindopt import wire
from blindopt.client import StudyClient
from blindopt.client.connection import Watch
from blindopt.errors import ProtocolViolated, Remote, Unreachable


@pytest.fixture
def modeler(curator, opened):
    with curator.http(opened.token) as client:
        yield client


@pytest.fixture
def path(opened):
    return f"/v1/studies/{opened.id}/candidates"


@pytest.fixture
def whole(modeler, path):
    return modeler.get(path).content


def _problem(reply, status, code):
    assert (reply.status_code, reply.headers["content-type"]) == (status, "application/problem+json")
    assert wire.Problem.model_validate_json(reply.content).code == code


def test_candidates_are_a_float64_npy_file_that_needs_no_pickle(modeler, path, opened):
    reply = modeler.get(path)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/x-npy")
    z = np.load(io.BytesIO(reply.content), allow_pickle=False)
    assert (z.shape, z.dtype) == ((opened.view.report.n, opened.view.report.r), np.float64)
    assert np.isfinite(z).all()


def test_the_etag_the_study_and_the_bytes_name_one_digest(curator, modeler, path, opened, whole):
    digest = hashlib.sha256(whole).hexdigest()
    stored = (curator.data / "files" / f"{opened.view.release_id}.npy").read_bytes()
    assert hashlib.sha256(stored).hexdigest() == digest
    assert modeler.get(path).headers["etag"] == f'"sha256-{digest}"'
    assert modeler.get(f"/v1/studies/{opened.id}").json()["release_sha256"] == digest == opened.sha256


@pytest.mark.parametrize("form", ['"sha256-{}"', 'W/"sha256-{}"', '"other", "sha256-{}"', "*"])
def test_a_known_etag_saves_the_body(form, modeler, path, opened):
    reply = modeler.get(path, headers={"If-None-Match": form.format(opened.sha256)})
    assert (reply.status_code, reply.content) == (304, b"")
    assert reply.headers["etag"] == f'"sha256-{opened.sha256}"'


def test_another_etag_brings_the_whole_file(modeler, path, whole):
    assert modeler.get(path, headers={"If-None-Match": f'"sha256-{"0" * 64}"'}).content == whole


def test_parts_put_together_are_the_file(modeler, path, whole, opened):
    size, parts = len(whole), []
    for first in range(0, size, 1000):
        reply = modeler.get(path, headers={"Range": f"bytes={first}-{first + 999}"})
        last = min(first + 999, size - 1)
        assert (reply.status_code, reply.headers["content-range"]) == (206, f"bytes {first}-{last}/{size}")
        assert reply.headers["etag"] == f'"sha256-{opened.sha256}"'
        parts.append(reply.content)
    assert b"".join(parts) == whole


@pytest.mark.parametrize(
    ("wanted", "start", "end"), [("bytes=100-", 100, None), ("bytes=-50", -50, None), ("bytes=0-0", 0, 1)]
)
def test_open_ranges_and_suffixes_are_served(wanted, start, end, modeler, path, whole):
    reply = modeler.get(path, headers={"Range": wanted})
    assert (reply.status_code, reply.content) == (206, whole[start:end])


def test_a_range_of_the_file_that_was_there_before_brings_the_whole_new_one(modeler, path, whole, opened):
    part = {"Range": "bytes=100-199"}
    old = modeler.get(path, headers=part | {"If-Range": f'"sha256-{"0" * 64}"'})
    assert (old.status_code, old.content) == (200, whole)
    same = modeler.get(path, headers=part | {"If-Range": f'"sha256-{opened.sha256}"'})
    assert (same.status_code, same.content) == (206, whole[100:200])


@pytest.mark.parametrize(
    "wanted", ["bytes=6528-", "bytes=99999999-", "bytes=9-3", "bytes=0-1,5-9", "bytes=-0", "bytes=", "bytes=a-b"]
)
def test_a_range_that_cannot_be_served_is_a_416_problem(wanted, modeler, path, whole):
    assert len(whole) == 6528
    reply = modeler.get(path, headers={"Range": wanted})
    _problem(reply, 416, "range_not_satisfiable")
    assert reply.headers["content-range"] == "bytes */6528"


@pytest.mark.parametrize("wanted", ["rows=1-2", "x"])
def test_a_range_in_another_unit_is_ignored(wanted, modeler, path, whole):
    reply = modeler.get(path, headers={"Range": wanted})
    assert (reply.status_code, reply.content) == (200, whole)


def test_the_file_is_neither_cached_by_others_nor_sniffed(modeler, path):
    headers = modeler.get(path).headers
    assert headers["cache-control"] == "private, no-cache"
    assert headers["x-content-type-options"] == "nosniff"


def test_each_download_is_a_record_with_the_digest_of_the_file(curator, modeler, path, opened):
    before = len(curator.records())
    for headers in ({}, {"Range": "bytes=0-99"}, {"If-None-Match": "*"}):
        modeler.get(path, headers=headers)
    exchanges = [record["exchange"] for record in curator.records()[before:]]
    assert [(e["status"], e["reply_sha256"]) for e in exchanges] == [(s, opened.sha256) for s in (200, 206, 304)]


def test_a_download_that_breaks_goes_on_where_it_broke(curator, owner, small, open_study, bad_network, tmp_path):
    """A release of 3.2 MB over two connections that break: each megabyte that arrived is requested once."""
    values = small.x[np.random.default_rng(0).integers(400, size=200_000)]
    lines = [",".join(small.names), *(f"{a!r},{b!r},0" for a, b in values.tolist())]
    study = open_study(owner, owner.register("large", "\n".join(lines).encode(), public=True))
    stored = (curator.data / "files" / f"{study.view.release_id}.npy").read_bytes()
    requests, target, size = [], tmp_path / "z.npy", len(stored)
    before = len(curator.records())
    with bad_network(curator.port, [1_500_000, 1_500_000]) as proxy:
        with StudyClient(
            proxy.url, study.token, study.id, watch=Watch(lambda exchange, _: requests.append(exchange))
        ) as client:
            client.download(target, study.sha256, max_bytes=size)
        assert (proxy.broken, proxy.connections) == (2, 3)
        assert sum(map(len, proxy.back)) < size + 2 * (1 << 20)
    assert target.read_bytes() == stored
    assert list(tmp_path.iterdir()) == [target]
    recorded = [record["exchange"] for record in curator.records()[before:]]
    assert [e["status"] for e in recorded] == [200, 206, 206]
    assert [e.as_json() for e in requests] == recorded[-1:]  # those that broke are told by the curator alone


def test_a_download_that_never_gets_through_leaves_no_file(curator, opened, bad_network, tmp_path):
    with bad_network(curator.port, [500] * 50) as proxy:
        with StudyClient(proxy.url, opened.token, opened.id) as client, pytest.raises(Unreachable):
            client.download(tmp_path / "z.npy", opened.sha256, max_bytes=1 << 20)
        assert 2 <= proxy.broken <= 50
    assert list(tmp_path.iterdir()) == []


def test_candidates_of_another_digest_are_not_kept(curator, opened, tmp_path):
    with StudyClient(curator.url, opened.token, opened.id) as client, pytest.raises(ProtocolViolated):
        client.download(tmp_path / "z.npy", "0" * 64, max_bytes=1 << 20)
    assert list(tmp_path.iterdir()) == []


def test_more_candidates_than_were_announced_are_not_kept(curator, opened, whole, tmp_path):
    with StudyClient(curator.url, opened.token, opened.id) as client:
        with pytest.raises(Unreachable, match="larger"):
            client.download(tmp_path / "z.npy", opened.sha256, max_bytes=len(whole) - 1)
        assert list(tmp_path.iterdir()) == []
        client.download(tmp_path / "z.npy", opened.sha256, max_bytes=len(whole))
    assert (tmp_path / "z.npy").read_bytes() == whole


def test_a_refused_download_says_why(curator, opened, tmp_path):
    with StudyClient(curator.url, opened.token, "std_0000000000000000") as client, pytest.raises(Remote) as refused:
        client.download(tmp_path / "z.npy", opened.sha256, max_bytes=1 << 20)
    assert (refused.value.remote_status, refused.value.remote_code) == (404, "not_found")
