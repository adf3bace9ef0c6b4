"""What a start finds after a crash between writing a file and recording it."""

import pytest

from blindopt import wire
from curator_service.datasets.datasets import Datasets
from curator_service.releases.releases import Releases
from curator_service.vault import Vault
from tests.builders import a_study_of
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.interventions import fail_at


@pytest.fixture
def curator(tmp_path):
    curator = InProcessCurator(tmp_path)
    yield curator
    curator.close()


def _nothing(*args, **kwargs):
    """What a dead process does to clean up."""


@pytest.fixture
def dead(monkeypatch):
    """No clean-up runs, as after kill -9; the effect of the request was not recorded."""

    def die(owning, effect):
        fail_at(monkeypatch, owning, effect, RuntimeError("the process ends here"))
        for cleaning, name in ((Vault, "drop"), (Releases, "_abandon")):
            monkeypatch.setattr(cleaning, name, _nothing)

    yield die
    monkeypatch.undo()


def _files(tmp_path):
    return sorted(path.name for path in (tmp_path / "data" / "files").rglob("*.npy"))


def test_a_file_whose_dataset_was_not_recorded_is_forgotten(curator, dead, monkeypatch, tmp_path, small):
    sent = {"files": {"file": ("a.csv", small.csv)}, "data": {"name": "n"}, "key": "k"}
    dead(Datasets, "_add")
    assert curator.send("owner", "POST", "/v1/datasets", **sent).status_code == 500
    assert len(_files(tmp_path)) == 1
    monkeypatch.undo()
    curator.reopen()
    assert _files(tmp_path) == []
    dataset = curator.call("owner", "POST", "/v1/datasets", **sent)
    curator.reopen()
    assert _files(tmp_path) == [f"{dataset['id']}.npy"]


def test_candidates_whose_release_was_not_recorded_are_forgotten_with_their_order(
    curator, dead, monkeypatch, tmp_path, small
):
    dataset = curator.register(small.csv)
    release = wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5)
    path = f"/v1/studies/{curator.draft(a_study_of(small, dataset, release))['id']}:release"
    dead(Releases, "_publish")
    assert curator.send("owner", "POST", path, key="3").status_code == 500
    assert len(_files(tmp_path)) == 3
    monkeypatch.undo()
    curator.reopen()
    assert _files(tmp_path) == [f"{dataset}.npy"]
    released = curator.call("owner", "POST", path, key="3")
    assert released["state"] == "open"
    curator.reopen()
    of_release = {f"{released['release_id']}.npy", f"{released['release_id']}.order.npy"}
    assert set(_files(tmp_path)) == {f"{dataset}.npy"} | of_release
