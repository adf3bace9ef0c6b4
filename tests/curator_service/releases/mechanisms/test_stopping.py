"""A curator that is stopped while it draws a large release: its processes end with it, and nothing was released."""

import io
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blindopt import wire
from blindopt.client import Owner
from curator_service.privacy.noise.parallel import PARALLEL_DRAWS, processors
from tests.builders import a_study

ROWS, FEATURES = 60_000, 10


def workers(pid: int) -> list[int]:
    children = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            children += [int(child) for child in (task / "children").read_text().split()]
    return children


def ended(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.skipif(processors() < 2, reason="one processor draws in the service itself")
def test_sigterm_leaves_no_worker_and_no_release(make_service, tmp_path, until):
    assert ROWS * FEATURES > PARALLEL_DRAWS
    service = make_service("curator", tmp_path, drain_seconds="1").start()
    names = [f"c{j}" for j in range(FEATURES)] + ["y"]
    values = np.random.default_rng(0).uniform(size=(ROWS, FEATURES + 1))
    file = io.BytesIO()
    pq.write_table(pa.table(dict(zip(names, values.T, strict=True))), file)
    with Owner(service.url, service.token, timeout_s=60) as owner:
        dataset = owner.register("large", file.getvalue(), filename="data.parquet")
        features = [wire.Feature(column=name, lower=0.0, upper=1.0) for name in names[:-1]]
        slow = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1")  # enough to be stopped
        draft = owner.create_study(a_study(slow, dataset_id=dataset.id, features=features))

        def release() -> None:
            with suppress(Exception):
                owner.release(draft.id)

        asking = threading.Thread(target=release, daemon=True)
        asking.start()
        pid = service.process.pid
        until(lambda: len(workers(pid)) >= 3)  # two and multiprocessing's own helper
        started = workers(pid)
        until(lambda: (owner.study(draft.id).view.progress or 0) > 0)
        assert owner.study(draft.id).view.progress < 1
        service.stop()
    until(lambda: all(ended(pid) for pid in started))
    service.start()
    with Owner(service.url, service.token, timeout_s=60) as owner:
        assert owner.study(draft.id).view.state == "draft"
    assert not list((service.data / "files").glob("rel_*"))
    service.stop()
