"""What a start finds after a crash between writing a file and recording it."""

import asyncio
import tempfile

import httpx
import pytest

from blindopt import wire
from curator_service import app as curator_app
from curator_service.datasets.datasets import Datasets
from curator_service.releases.releases import Releases
from curator_service.settings import Settings
from curator_service.vault import Vault
from tests.interventions import fail_at


@pytest.fixture
def start(tmp_path):
    """Builds the curator on one folder, again at each call; closes the one before."""
    built, tempdir = [], tempfile.tempdir

    def again():
        if built:
            built[-1].state.context.database.close()
        built.append(curator_app.build(Settings(data_dir=tmp_path / "data")))
        return built[-1]

    yield again
    built[-1].state.context.database.close()
    tempfile.tempdir = tempdir


def _post(app, token, path, key, **sent):
    async def talk():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
            return await client.post(path, headers=headers, **sent)

    return asyncio.run(talk())


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


def test_a_file_whose_dataset_was_not_recorded_is_forgotten(start, dead, monkeypatch, tmp_path, small):
    app = start()
    token = app.state.context.authentication.issue("owner", "o", days=1)[0].text
    sent = {"files": {"file": ("a.csv", small.csv)}, "data": {"name": "n"}}
    dead(Datasets, "_add")
    assert _post(app, token, "/v1/datasets", "k", **sent).status_code == 500
    assert len(_files(tmp_path)) == 1
    monkeypatch.undo()
    app = start()
    assert _files(tmp_path) == []
    dataset = _post(app, token, "/v1/datasets", "k", **sent)
    assert dataset.status_code == 201
    start()
    assert _files(tmp_path) == [f"{dataset.json()['id']}.npy"]


def test_candidates_whose_release_was_not_recorded_are_forgotten_with_their_order(
    start, dead, monkeypatch, tmp_path, small
):
    app = start()
    token = app.state.context.authentication.issue("owner", "o", days=1)[0].text
    sent = {"files": {"file": ("a.csv", small.csv)}, "data": {"name": "n"}}
    dataset = _post(app, token, "/v1/datasets", "1", **sent).json()["id"]
    spec = wire.StudyCreate(
        name="s",
        dataset_id=dataset,
        features=small.features,
        measurement=wire.ColumnMeasurement(column=small.names[2], direction="maximize"),
        release=wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-5),
        answers=wire.NONE,
    )
    study = _post(app, token, "/v1/studies", "2", json=spec.model_dump(mode="json")).json()["id"]
    dead(Releases, "_publish")
    assert _post(app, token, f"/v1/studies/{study}:release", "3").status_code == 500
    assert len(_files(tmp_path)) == 3
    monkeypatch.undo()
    app = start()
    assert _files(tmp_path) == [f"{dataset}.npy"]
    released = _post(app, token, f"/v1/studies/{study}:release", "3")
    assert (released.status_code, released.json()["state"]) == (200, "open")
    kept = {f"{dataset}.npy", f"{released.json()['release_id']}.npy", f"{released.json()['release_id']}.order.npy"}
    start()
    assert set(_files(tmp_path)) == kept
