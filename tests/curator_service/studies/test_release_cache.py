"""The cache of released studies: it is bounded, and has one memory map for the records of a dataset."""

from pathlib import Path

import pytest

from curator_service.studies.release_cache import ReleasedStudies
from tests.builders import a_study
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator

CSV = ("a,b,y\n" + "".join(f"{i / 100},{(i * 7 % 100) / 100},{i % 5}\n" for i in range(100))).encode()


@pytest.fixture
def in_process(tmp_path):
    made = InProcessCurator(tmp_path, rate_per_second=10_000, rate_burst=10_000)
    yield made
    made.close()


def study(dataset):
    return a_study(dataset_id=dataset, columns="ab")


def open_files(folder, ending):
    """Files of ``folder`` with this ending that this process has open."""
    paths = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    return sorted(path for path in paths if path.startswith(str(folder)) and path.endswith(ending))


def test_studies_that_are_read_hold_a_bounded_number_of_files_open(in_process, tmp_path):
    in_process.open(CSV, study)
    dataset = in_process.call("owner", "GET", "/v1/datasets")["datasets"][0]["id"]
    body = study(dataset).model_dump(mode="json")
    studies = []
    for _ in range(6):
        identity = in_process.call("owner", "POST", "/v1/studies", json=body)["id"]
        in_process.call("owner", "POST", f"/v1/studies/{identity}:release")
        studies.append(identity)
    assert open_files(tmp_path, ".npy") == []
    released = ReleasedStudies(in_process.curator.vault, kept=3)
    for _ in range(2):  # studies that left the cache are read again
        for identity in studies:
            with in_process.context.database.read() as db:
                assert len(released.of(db, identity).order) == 100
            mapped = open_files(tmp_path, ".npy")
            assert len(mapped) <= 3 + 1, mapped
            assert sum(".order." not in path for path in mapped) == 1
