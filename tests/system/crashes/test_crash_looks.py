"""Looking at a service while it works, or after it was killed, tells what is there and raises no false alarm."""

import pytest

from blindopt.audit import reconciliation
from curator_service.context import open_context
from curator_service.settings import Settings
from service_kit.store import audit_log


@pytest.fixture
def contexts(tmp_path):
    """Two processes' views of one curator's data: the service, and a command beside it."""
    settings = Settings(data_dir=tmp_path / "data")
    with open_context(settings) as service, open_context(settings) as beside:
        service.audit_trail.begin()
        yield service, beside


def _work(service):
    """One record, and the checkpoint that the service keeps of it."""
    service.database.write(lambda db: audit_log.append(db, "worked", actor="test", now=service.clock()))
    service.audit_trail._save_now()


def test_an_export_that_the_service_overtakes_verifies(contexts, monkeypatch):
    """The service goes on while its log is read: what it keeps meanwhile is newer than what is exported."""
    service, beside = contexts
    _work(service)
    walk = audit_log.walk

    def slowly(db, *rest, **named):
        entries = list(walk(db, *rest, **named))
        _work(service)
        return iter(entries)

    monkeypatch.setattr(audit_log, "walk", slowly)
    with beside.database.read() as db:
        exported = beside.audit_trail.export(db)
        assert reconciliation.verify_export(exported).size == exported.size


def test_a_read_sees_one_moment_though_the_service_goes_on(contexts):
    """Whatever is read first: statements of the hot path are no exception."""
    service, beside = contexts
    _work(service)
    with beside.database.read() as db:
        before = audit_log.head(db)
        _work(service)
        assert (audit_log.head(db), len(list(audit_log.walk(db)))) == (before, before.size)
