"""A connection to a scheduler that is not there leaves nothing that the garbage collector would have to close."""

import gc
import threading

import pytest

pytest.importorskip("distributed", reason="the extra dask is not installed")

from distributed import LocalCluster
from distributed.utils import LoopRunner

from blindopt.errors import EngineUnavailable
from service_kit.dask_cluster import DaskCluster


def loops():
    return sum(thread.name == "IO loop" for thread in threading.enumerate())


@pytest.fixture
def refused():
    """A connection that failed, before the garbage collector has run."""
    gc.collect()
    gc.disable()
    try:
        before = loops()
        with pytest.raises(EngineUnavailable, match="does not answer"):
            DaskCluster("tcp://127.0.0.1:1", None, connect_seconds=0.2)
        yield before
    finally:
        gc.enable()
        gc.collect()


def test_a_connection_that_fails_leaves_no_thread(refused):
    assert loops() == refused


def test_a_connection_that_is_lost_ends_with_its_thread_and_is_not_closed_by_the_collector(monkeypatch):
    before = loops()
    with LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as local:
        idle = loops()
        connection = DaskCluster(local.scheduler_address, None)
        with monkeypatch.context() as patch:
            patch.setattr(type(connection.client), "_close", lost)
            connection.close()

        def collect():
            with LoopRunner._lock:  # as where the collector runs in the midst of another connection
                connection.client.__del__()

        thread = threading.Thread(target=collect, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        assert loops() == idle
    assert loops() == before


async def lost(*arguments, **options):
    raise OSError("the scheduler is gone")
