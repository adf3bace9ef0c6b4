"""An engine in other processes, without any: whatever its workers do, the choices are those of one process."""

from functools import cache
from itertools import pairwise
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blindopt.errors import EngineUnavailable, NumericalFailure
from blindopt.formats import npy_files
from blindopt.gp.parts import Leaders
from modeler_service.engines import remote as module
from modeler_service.engines.host import Packed, packed, unpacked
from modeler_service.engines.remote import TRIES, Workers
from tests.modeler_service.engines.fake_cluster import FakeCluster, sections
from tests.shared.blindopt.gp.test_gp_parts import grid, walk

CASES = ("plain", "nugget", "hidden", "batch", "refined")


@cache
def whole(case="plain"):
    return walk(grid(), case=case, steps=8)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "z.npy"
    with path.open("wb") as written:
        npy_files.write(written, [grid()])
    return path


@pytest.fixture
def remote(file):
    """The choices through a cluster, and the cluster."""

    def go(cluster, case="plain", tick=lambda: None, dtype=np.float64, part_bytes=1 << 30):
        engine = Workers(cluster, str(file), sections(file, part_bytes), 5.0, tick)
        try:
            return walk(grid(), engine, case=case, steps=8, dtype=dtype)
        finally:
            engine.drop()

    return go


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("case", CASES)
def test_remote_parts_choose_as_one_process_does(remote, case, dtype):
    cluster = FakeCluster(3)
    assert remote(cluster, case, dtype=dtype) == whole(case)
    assert cluster.builds == 3
    assert cluster.closed


@pytest.mark.parametrize("part_bytes", [8 * 2 * 899, 8 * 2 * 200])
def test_candidates_that_were_published_in_parts_are_chosen_from_as_from_one_file(remote, part_bytes):
    """Edges of the parts of the file are not those of the workers' parts."""
    assert remote(FakeCluster(3), part_bytes=part_bytes) == whole()


def test_a_worker_reads_the_parts_of_its_rows_alone_and_no_other_header_shifts_them(file, remote):
    sent, content = [], file.read_bytes()

    class Cluster(FakeCluster):
        def build(self, worker, spec):
            sent.append([section.rows for section in spec.sections])
            return super().build(worker, spec)

    assert remote(Cluster(2), part_bytes=8 * 2 * 300) == whole()
    assert sent == [[range(300), range(300, 600)], [range(300, 600), range(600, 900)]]
    for changed in (content[:8] + bytes([content[8] - 16]) + content[9:], content.replace(b"False", b"True ", 1)):
        engine = Workers(FakeCluster(3), str(file), sections(file, 8 * 2 * 300)[1:], 5.0, lambda: None)
        file.write_bytes(changed)  # the header, which is in a section that no worker reads here
        with pytest.raises(EngineUnavailable, match=r"z\.npy"):
            walk(grid(), engine)
        file.write_bytes(content)
    engine = Workers(FakeCluster(3), str(file), sections(file, 8 * 2 * 300)[:-1], 5.0, lambda: None)
    file.write_bytes(content[:-8])  # the end, in a section that no worker reads here
    with pytest.raises(EngineUnavailable, match=r"z\.npy"):
        walk(grid(), engine)


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("number", [4, 5, 9, 14])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_worker_that_is_killed_costs_a_rebuild_and_no_choice(remote, number, when):
    """Killed before a call, or after it with the reply lost."""

    def fault(cluster, worker, verb):
        if cluster.calls == number:
            if when == "before":
                cluster.kill(worker)
            else:
                return lambda host, arguments, reply: cluster.kill(worker) or _lost()
        return None

    cluster = FakeCluster(2, fault)
    assert remote(cluster, "batch") == whole("batch")
    assert cluster.builds == 3


def _lost():
    raise ConnectionError


def test_both_workers_may_be_killed_and_one_is_enough(remote):
    def fault(cluster, worker, verb):
        if cluster.calls in (6, 11):
            cluster.kill(worker, replace=cluster.calls == 6)

    assert remote(FakeCluster(2, fault)) == whole()


def test_repeated_late_and_forgotten_messages_change_nothing(remote):
    """Every call is made twice; of two parts one answers an old question first, and loses what it knew."""
    earlier = {}

    def again(host, arguments, reply):
        if (old := earlier.get(id(host))) is not None:
            host.leaders(*old)  # a late one goes back to what it says, or is refused
        earlier[id(host)] = arguments
        return host.leaders(*arguments)

    cluster = FakeCluster(2, lambda cluster, worker, verb: again if verb == "leaders" else None)
    assert remote(cluster, "batch") == whole("batch")

    def forget(cluster, worker, verb):
        if cluster.calls == 9:
            for host in cluster.held.values():
                host._observations.retract(0)

    assert remote(FakeCluster(2, forget), "batch") == whole("batch")


@settings(max_examples=8, deadline=None, derandomize=True)
@given(cuts=st.sets(st.integers(1, 899), max_size=5), seed=st.integers(0, 2**32))
def test_any_edges_with_lost_repeated_and_late_replies_give_the_same_choices(cuts, seed, release):
    """Each call may come twice, or after an older one, or lose its reply, and workers may end."""
    limits, earlier, chance = [0, *sorted(cuts), 900], {}, Random(seed)

    def again(host, arguments, reply):
        if (old := earlier.get(id(host))) is not None and chance.random() < 0.5:
            host.leaders(*old)
        earlier[id(host)] = arguments
        if chance.random() < 0.1:
            raise ConnectionError
        return host.leaders(*arguments)

    def fault(cluster, worker, verb):
        if chance.random() < 0.02:
            cluster.kill(worker)
        return again if verb == "leaders" else None

    ranges = [range(first, last) for first, last in pairwise(limits)]
    cluster, parts = FakeCluster(2, fault), sections(release)
    executor = Workers(cluster, str(release), parts, 5.0, lambda: None)
    with patch.object(module, "edges", lambda rows, workers: ranges):
        chosen = walk(grid(), executor, case="batch", steps=4)
    assert chosen == whole("batch")[:16]


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    path = tmp_path_factory.mktemp("release") / "z.npy"
    with path.open("wb") as written:
        npy_files.write(written, [grid()])
    return path


@pytest.mark.parametrize("case", CASES)
def test_a_worker_with_three_threads_chooses_the_same(remote, case):
    assert remote(FakeCluster(2, threads=3), case) == whole(case)


def broken(answers):
    """A cluster whose first part answers wrongly each time that it is questioned."""

    def fault(cluster, worker, verb):
        return (lambda host, arguments, reply: answers(reply)) if verb == "leaders" else None

    return FakeCluster(2, fault)


WRONG = {
    "nothing": lambda reply: None,
    "a text": lambda reply: "no",
    "another type": lambda reply: Leaders(reply.rows.astype(float), reply.low, reply.high),
    "rows of another part": lambda reply: Leaders(reply.rows + 10_000, reply.low, reply.high),
    "a shorter bound": lambda reply: Leaders(reply.rows, reply.low[:0], reply.high),
    "rows twice": lambda reply: Leaders(*(np.concatenate([v, v]) for v in reply)),
    "bits of another part": lambda reply: Packed(np.zeros(1, np.uint8), 1.0, reply),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_no_part_answers_ends_as_an_engine_that_is_not_available(remote, kind):
    cluster = broken(WRONG[kind])
    with pytest.raises(EngineUnavailable, match="what no part answers"):
        remote(cluster)
    assert cluster.builds >= TRIES
    assert cluster.closed


def test_the_comparison_finds_a_worker_whose_bounds_are_too_small(remote):
    """A negative control: that is what no check of types can find."""
    assert remote(broken(lambda reply: replace_bounds(reply, 0.0))) == whole()
    try:
        chosen = remote(broken(lambda reply: replace_bounds(reply, -1e7)))
    except NumericalFailure:
        chosen = []
    assert chosen != whole()


def replace_bounds(reply, by):
    first = len(reply.rows) and reply.rows[0] < 450
    return Leaders(reply.rows, reply.low + by * first, reply.high + by * first)


def test_a_file_that_is_missing_or_changed_is_an_error_with_its_name_and_no_number(file, remote):
    digest, content = sections(file), bytearray(file.read_bytes())
    for change in (bytes(content[:-8]), bytes([*content[:-1], content[-1] ^ 1]), None):
        file.unlink()
        if change is not None:
            file.write_bytes(change)
        engine = Workers(FakeCluster(2), str(file), digest, 5.0, lambda: None)
        with pytest.raises(EngineUnavailable, match=r"z\.npy.*" + ("899" if change else "")) as error:
            walk(grid(), engine)
        assert str(file.parent) not in str(error.value)
        file.write_bytes(content)

    def fault(cluster, worker, verb):
        if cluster.calls == 7:
            file.write_bytes(content[:-800])

    with pytest.raises(EngineUnavailable, match=r"z\.npy"):
        remote(FakeCluster(2, fault))


def test_no_worker_other_versions_and_too_little_memory_are_said(remote):
    with pytest.raises(EngineUnavailable, match="has no worker"):
        remote(FakeCluster(0))

    def older(host, arguments, reply):
        return reply[0], {**reply[1], "numpy": "1.0"}

    with pytest.raises(EngineUnavailable, match=r"numpy 1\.0 instead of"):
        remote(FakeCluster(2, lambda cluster, worker, verb: older if verb == "about" else None))
    width = 8 * (32 + 2 + 2) + 48
    with pytest.raises(MemoryError, match="3 workers would do"):
        remote(FakeCluster(2, memory=(256 << 20) + 300 * width))
    assert remote(FakeCluster(3, memory=(256 << 20) + 300 * width)) == whole()


def test_a_call_that_takes_too_long_is_given_up_and_what_interrupts_a_run_is_not_held_up(remote):
    class Slow:
        def result(self, timeout):
            raise TimeoutError

        def done(self):
            return False

    class Halt(Exception):
        pass

    def halt():
        raise Halt

    cluster = FakeCluster(2)
    call = cluster.call
    cluster.call = lambda held, verb, *arguments: Slow() if verb == "leaders" else call(held, verb, *arguments)
    with pytest.raises(Halt):
        remote(cluster, tick=halt)


def test_an_answer_with_many_equal_rows_takes_a_bit_for_each():
    rng, rows = np.random.default_rng(1), range(5_000, 25_000)
    numbers = np.flatnonzero(rng.random(len(rows)) < 0.7) + rows.start
    low = np.where(rng.random(len(numbers)) < 0.9, 7.0, 6.5)
    answer = Leaders(numbers, low, low + (low < 7))
    small = packed(answer, rows)
    assert isinstance(small, Packed)
    assert small.bits.nbytes + sum(values.nbytes for values in small.others) < 0.2 * sum(v.nbytes for v in answer)
    for mine, theirs in zip(unpacked(small, rows), answer, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    few = Leaders(*(values[:5] for values in answer))
    assert packed(few, rows) is few


def test_a_choice_sends_no_candidate_and_few_bytes(remote):
    """Two messages of about 16 t bytes for t observations, beside what is the same each time."""
    sizes = []

    def fault(cluster, worker, verb):
        sizes.append(cluster.bytes)

    remote(FakeCluster(2, fault))
    assert max(np.diff(sizes)[4:]) < 3_000
