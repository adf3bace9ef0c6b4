"""Candidates that are published in parts: fetched side by side, resumed, checked one by one, and whole or not there."""

import io
import re
import threading

import numpy as np
import pytest

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.client import StudyClient, Vendor
from blindopt.client.connection import Watch
from blindopt.client.downloads import unfinished
from blindopt.errors import ProtocolViolated, Remote, StorageUnavailable, Unreachable
from blindopt.formats.release_files import sections_of
from tests.given_settings import GIVEN
from tests.modeler_service.lying_curator import FakeCurator


class InParts(FakeCurator):
    """Publishes its candidates in so many parts. ``served`` are the parts that were requested, each with its Range."""

    def __init__(self, study, candidates=None, parts=4):
        super().__init__(study)
        self.candidates = candidates or self.candidates
        n, r = np.load(io.BytesIO(self.candidates)).shape
        header, rows = len(self.candidates) - 8 * n * r, -(-n // parts)
        ends = [header + 8 * r * min(row, n) for row in range(rows, n + rows, rows)]
        self.pieces = [self.candidates[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        self.served = []
        self.bodies_of = dict(enumerate(self.pieces))
        """What is sent as each part."""
        sizes = [min(rows, n - rows * number) for number in range(len(self.pieces))]
        self.name([part(rows, piece) for rows, piece in zip(sizes, self.pieces, strict=True)])
        self.study |= {"n": n, "r": r}

    def name(self, parts):
        lines = "".join(f"{p['rows']} {p['bytes']} {p['sha256']}\n" for p in parts)
        self.study |= {"parts": parts, "release_sha256": sha256(lines.encode())}

    def exchange(self, request, path):
        match = re.search(r"/candidates(?:/parts/(\d+))?$", path)
        if match is None or match[1] is None:
            assert match is None, "candidates in parts are requested as a whole"
            return super().exchange(request, path)
        number, wanted = int(match[1]), request.headers["Range"]
        self.served.append((number, wanted))
        digest = {"ETag": f'"sha256-{self.study["parts"][number]["sha256"]}"'}
        first = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted else 0
        return (206 if wanted else 200), self.bodies_of[number][first:], digest


def sections(curator):
    parts = [wire.ReleasePart(**each) for each in curator.study["parts"]]
    return sections_of(40, curator.study["release_sha256"], parts)


def part(rows, piece):
    return {"rows": rows, "bytes": len(piece), "sha256": sha256(piece)}


def fetched(curator, target):
    with StudyClient(curator.url, "t", curator.study_id, timeout_s=60) as client:
        study = client.study()
        client.download(target, study.release_sha256, max_bytes=1 << 30, parts=study.parts)


def test_a_run_over_parts_chooses_what_one_over_the_whole_file_does(study, vendor, own):
    with FakeCurator(study) as whole, InParts(study, whole.candidates) as parted:
        trials = []
        for curator in (whole, parted):
            given = {"curator_url": curator.url, "study_id": curator.study_id, "token": "t"}
            chosen = {"algorithm": wire.GpUcb(name="gp_ucb"), "iterations": 6, "initial_rows": 2, "seed": 3}
            run = vendor.wait(vendor.start(wire.RunCreate(**GIVEN | given | chosen)).id, timeout_s=240)
            assert run.state == "completed"
            trials.append([(t.row, t.mean, t.sd, t.acquisition) for t in vendor.export(run.id).trials])
        assert trials[0] == trials[1]
        assert sorted(parted.served) == [(number, None) for number in range(4)]
        file = own.data / "candidates" / f"{parted.study['release_sha256']}.npy"
        assert file.read_bytes() == whole.candidates


def test_four_parts_are_fetched_at_a_time(study, tmp_path):
    together = threading.Barrier(4)
    with InParts(study) as curator:
        curator.before = lambda request: "/parts/" in request.path and together.wait(240)
        fetched(curator, tmp_path / "z.npy")
        assert (tmp_path / "z.npy").read_bytes() == curator.candidates
    assert [path.name for path in tmp_path.iterdir()] == ["z.npy"]


def changed(piece):
    return bytes([*piece[:-1], piece[-1] ^ 1])


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("bit", Unreachable, "do not match"),
        ("short", Unreachable, "do not match"),
        ("long", Unreachable, "larger"),
        ("another", Unreachable, "do not match"),
        ("of another study", ProtocolViolated, "not those of their release"),
        ("missing", Remote, "not_found"),
        ("elsewhere", Unreachable, "redirect"),
        ("shifted", Unreachable, "do not match"),
    ],
)
def test_a_wrong_part_is_refused_and_the_others_are_not_fetched_again(kind, error, words, study, tmp_path):
    target, honest = tmp_path / "z.npy", InParts.exchange
    with InParts(study) as curator:
        lies = {"bit": changed, "short": lambda piece: piece[:-8], "long": lambda piece: piece + b"0"}
        lies["another"] = lambda piece: curator.pieces[1]

        def exchange(request, path):
            status, body, headers = honest(curator, request, path)
            if not path.endswith("/parts/2"):
                return status, body, headers
            if kind == "missing":
                problem = {"type": "about:blank", "title": "no", "status": 404, "detail": "no", "instance": path}
                problem |= {"code": "not_found", "retryable": False, "request_id": "0" * 32}
                return 404, wire.Problem.model_validate(problem).model_dump_json().encode(), {}
            if kind == "elsewhere":
                return 302, b"", {"Location": f"{path[:-1]}1"} | headers
            if kind == "shifted":  # a range of other bytes than those that were requested
                return 206, curator.candidates[: len(body)], headers | {"Content-Range": f"bytes 0-{len(body) - 1}/*"}
            if kind == "of another study":
                return status, body, {"ETag": f'"sha256-{"0" * 64}"'}
            return status, lies[kind](body), headers

        curator.exchange = exchange
        with pytest.raises(error, match=words):
            fetched(curator, target)
        assert not target.exists()
        del curator.exchange
        partial = tmp_path / "z.npy.part"  # unless no part was whole when that one was refused
        there = {
            number for number, section in enumerate(sections(curator)) if partial.exists() and section.is_in(partial)
        }
        assert 2 not in there or kind == "of another study"  # its bytes came
        curator.served.clear()
        fetched(curator, target)
        assert {number for number, _ in curator.served} == {0, 1, 2, 3} - there
        assert target.read_bytes() == curator.candidates
    assert [path.name for path in tmp_path.iterdir()] == ["z.npy"]


def test_a_fetch_that_is_cut_goes_on_where_it_was_cut(study, tmp_path, bad_network):
    file = io.BytesIO()
    np.save(file, np.random.default_rng(1).normal(size=(100_000, 2)))
    with InParts(study, file.getvalue()) as curator:
        with StudyClient(curator.url, "t", curator.study_id) as client:
            view = client.study()
        with bad_network(int(curator.url.rpartition(":")[2]), [250_000] * 3) as cutting:
            with StudyClient(cutting.url, "t", curator.study_id, timeout_s=60) as client:
                client.download(tmp_path / "z.npy", view.release_sha256, max_bytes=1 << 30, parts=view.parts)
            assert cutting.broken  # what is left of a part may be in a connection that was to be cut
        assert (tmp_path / "z.npy").read_bytes() == curator.candidates
        resumed = [wanted for _, wanted in curator.served if wanted]
        assert resumed
        assert all(int(wanted[6:-1]) > 0 for wanted in resumed)


def test_a_fetch_that_is_stopped_does_not_wait_for_parts_that_never_come(study, tmp_path):
    """A curator that sends nothing, or a byte now and then, holds no run that is stopped."""
    stopped, goes_on, waited = threading.Event(), threading.Event(), []
    with InParts(study) as curator:
        with StudyClient(curator.url, "t", curator.study_id) as client:
            view = client.study()

        def before(request):
            stopped.set()
            waited.append(goes_on.wait(240))
            raise ConnectionAbortedError

        curator.before = before
        with (
            StudyClient(
                curator.url, "t", curator.study_id, timeout_s=120, watch=Watch(cancelled=stopped.is_set)
            ) as client,
            pytest.raises(Unreachable, match="stopped while fetching"),
        ):
            client.download(tmp_path / "z.npy", view.release_sha256, max_bytes=1 << 30, parts=view.parts)
        assert waited == []  # the curator holds its replies back still
        goes_on.set()
    assert list(tmp_path.iterdir()) == []


def test_a_fetch_that_a_fault_on_this_side_ends_leaves_nothing(study, tmp_path):
    """Such as a disk that its parts have filled, on which no exchange can be recorded."""

    def observe(exchange, receipt):
        if exchange.path.endswith("/parts/3"):
            raise StorageUnavailable("full")

    with InParts(study) as curator, StudyClient(curator.url, "t", curator.study_id, watch=Watch(observe)) as client:
        view = client.study()
        with pytest.raises(StorageUnavailable):
            client.download(tmp_path / "z.npy", view.release_sha256, max_bytes=1 << 30, parts=view.parts)
    assert list(tmp_path.iterdir()) == []


def test_a_second_fetch_that_fails_leaves_nothing(study, tmp_path):
    """Nobody would go on with its file: of each time that it is tried again, one would stay."""
    with InParts(study) as curator:
        curator.bodies_of[3] = changed(curator.pieces[3])
        with unfinished(tmp_path / "z.npy", resumed=True) as first, pytest.raises(Unreachable, match="do not match"):
            fetched(curator, tmp_path / "z.npy")
        assert (3, None) in curator.served
    assert list(tmp_path.iterdir()) == [first]


LISTS = {
    "reordered": lambda parts: parts[::-1],
    "two change places": lambda parts: [parts[0], parts[2], parts[1], parts[3]],
    "one twice": lambda parts: [*parts[:2], parts[1], parts[1], parts[1]],
    "one missing": lambda parts: parts[:-1],
    "too many": lambda parts: [part(1, b"0" * 16)] * 1_001,
    "other sizes": lambda parts: [parts[0] | {"bytes": parts[0]["bytes"] + (1 << 20)}, *parts[1:]],
    "no row": lambda parts: [*parts, part(0, b"")],
    "a path": lambda parts: [parts[0] | {"sha256": "../../secrets"}, *parts[1:]],
}
LEGAL = ("two change places", True)
"""That is another release, whose parts are there."""


@pytest.mark.parametrize(
    ("kind", "named"), [(kind, named) for kind in LISTS for named in (False, True) if (kind, named) != LEGAL]
)
def test_a_list_that_is_not_that_of_the_candidates_is_refused_before_anything_is_fetched(kind, named, study, tmp_path):
    """Whether or not the digest of the study is that of the list."""
    with InParts(study) as curator:
        digest, parts = curator.study["release_sha256"], LISTS[kind](curator.study["parts"])
        curator.name(parts)
        if not named:
            curator.study["release_sha256"] = digest
        with pytest.raises((ProtocolViolated, Unreachable), match="this version of the protocol"):
            fetched(curator, tmp_path / "z.npy")
        assert curator.served == []
    assert list(tmp_path.iterdir()) == []


def test_a_modeler_that_is_killed_while_it_fetches_goes_on_with_the_parts_that_it_lacks(
    study, make_service, tmp_path, until
):
    modeler = make_service("modeler", tmp_path / "modeler").start()
    goes_on = threading.Event()
    with InParts(study) as curator:
        curator.before = lambda request: request.path.endswith("/parts/3") and goes_on.wait(240)
        given = {"curator_url": curator.url, "study_id": curator.study_id, "token": "t", "iterations": 2}
        with Vendor(modeler.url, modeler.token) as vendor:
            algorithm = wire.RandomRows(name="random")
            run = vendor.start(wire.RunCreate(**GIVEN | given | {"algorithm": algorithm})).id
        file = modeler.data / "candidates" / f"{curator.study['release_sha256']}.npy.part"
        until(lambda: file.exists() and all(section.is_in(file) for section in sections(curator)[:3]))
        modeler.kill()
        goes_on.set()
        modeler.start()
        with Vendor(modeler.url, modeler.token) as vendor:
            assert vendor.wait(run, timeout_s=240).state == "completed"
        assert sorted(number for number, _ in curator.served) in ([0, 1, 2, 3], [0, 1, 2, 3, 3])
        assert file.with_suffix("").read_bytes() == curator.candidates
    assert not file.exists()
    modeler.stop()
