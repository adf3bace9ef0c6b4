"""A connection to a scheduler that is not there leaves nothing that the garbage collector would have to close."""

import gc
import threading

import pytest

pytest.importorskip("distributed", reason="the extra dask is not installed")

from distributed import LocalCluster
from distributed.utils import LoopRunner

from blindopt.errors import EngineUnavailable
from service_kit import dask_cluster
from service_kit.dask_cluster import DaskCluster


def loops():
    return sum(thread.name == "IO loop" for thread in threading.enumerate())


@pytest.fixture
def refused(monkeypatch):
    """A connection that failed, before the garbage collector has run."""
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 0.2)
    gc.collect()
    gc.disable()
    before = loops()
    with pytest.raises(EngineUnavailable, match="does not answer"):
        DaskCluster("tcp://127.0.0.1:1", None)
    yield before
    gc.enable()
    gc.collect()


def test_a_connection_that_fails_leaves_no_thread(refused):
    assert loops() == refused


def test_the_collector_does_not_wait_for_the_lock_of_the_thread_that_connects():
    with LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as local:
        connection = DaskCluster(local.scheduler_address, None)
        runner = connection.client._loop_runner
        del connection  # as one whose scheduler is gone, and whose end failed

        def collect():
            with LoopRunner._lock:  # as when it runs in the midst of another connection
                gc.collect()

        thread = threading.Thread(target=collect, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        runner.stop()
