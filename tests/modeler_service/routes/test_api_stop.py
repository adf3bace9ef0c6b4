"""A stop that comes at the very moment a run leaves the queue."""

import secrets
import threading

import pytest

from blindopt import wire
from modeler_service import store
from modeler_service.app import build
from modeler_service.settings import Settings
from service_kit.context.request import RequestContext
from service_kit.store.database import Database

SPEC = wire.RunCreate(curator_url="http://127.0.0.1:9", study_id="std_0123456789abcdef", token="t")


@pytest.fixture
def modeler(tmp_path):
    app = build(Settings(data_dir=tmp_path / "data", concurrent_runs=1, retry_attempts=1))
    app.state.modeler.work()
    yield app.state.modeler
    app.state.modeler.close()
    app.state.context.database.close()


def test_a_run_that_is_stopped_between_its_queue_and_its_start_is_never_shown_as_running_again(
    modeler, monkeypatch, until
):
    vendor = modeler.context.authentication.issue("vendor", "v", days=1)[1]

    def asked():
        return RequestContext(vendor, secrets.token_hex(16), "POST", "/x", secrets.token_hex(16), "0" * 64)

    write, here, stopped = Database.write, threading.get_ident(), []

    def stopped_just_before(database, work):
        """The first write of the run's own thread says that it is running."""
        if threading.get_ident() != here and not stopped:
            with modeler.context.database.read() as db:
                stopped.append(store.run_page(db, after=0, limit=1)[0].id)
            modeler.stop(asked(), stopped[0])
        return write(database, work)

    monkeypatch.setattr(Database, "write", stopped_just_before)
    run = wire.RunView.model_validate_json(modeler.start(asked(), SPEC).body)
    ended = until(lambda: (view := modeler.run(run.id)).ended_at and view)
    monkeypatch.undo()
    # The next run on the only thread is taken up when the first one was let go.
    after = wire.RunView.model_validate_json(modeler.start(asked(), SPEC).body)
    until(lambda: modeler.run(after.id).ended_at)
    assert stopped == [run.id]
    assert (ended.state, modeler.run(run.id).state) == ("stopped", "stopped")
