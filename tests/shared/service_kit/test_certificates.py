"""Certificates in files: when they expire, and what happens when their files change."""

import logging
from datetime import timedelta

import pytest

from blindopt import certificates as library
from blindopt.certificates import FileWatch
from blindopt.errors import StateConflict
from modeler_service.settings import Settings
from service_kit.certificates import WARN_BEFORE, Certificates
from service_kit.cli import tls
from service_kit.store.base import utc_now


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tls")
    tls.make_authority(path)
    tls.issue(path, "server", tls.alternatives(["modeler.example", "192.0.2.1", "2001:db8::1"]), 100)
    tls.issue(path, "client", None, 100)
    return path


@pytest.fixture
def files(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def settings(files, **more):
    own = {"tls_cert": files / "server.crt", "tls_key": files / "server.key"}
    return Settings(data_dir=files, **own | more)


def problems(certificates):
    return {view.setting.removeprefix("BLINDOPT_MODELER_"): view.problem for view in certificates.views()}


def test_every_certificate_of_the_settings_is_listed_and_warned_of_30_days_before(files, caplog):
    now = utc_now()
    more = {"tls_client_ca": files / "ca.crt", "curator_ca": files / "ca.crt"}
    client = {"curator_client_cert": files / "client.crt", "curator_client_key": files / "client.key"}
    certificates = Certificates(settings(files, **more, **client), lambda: now)
    assert problems(certificates) == dict.fromkeys(("TLS_CERT", "TLS_CLIENT_CA", "CURATOR_CLIENT_CERT", "CURATOR_CA"))
    now += timedelta(days=100) - WARN_BEFORE + timedelta(minutes=1)
    soon = problems(certificates)
    assert (soon["CURATOR_CA"], soon["TLS_CLIENT_CA"]) == (None, None)
    for setting in ("TLS_CERT", "CURATOR_CLIENT_CERT"):
        assert f"BLINDOPT_MODELER_{setting} expires on" in soon[setting]
        assert "in 29 days" in soon[setting]
    for _ in range(3):
        certificates.look()
    assert len([1 for record in caplog.records if "expires on" in record.getMessage()]) == 2, "once a day"
    now += timedelta(days=31)
    assert "expired on" in problems(certificates)["TLS_CERT"]
    assert certificates.remaining_seconds()["TLS_CERT"] < 0 < certificates.remaining_seconds()["CURATOR_CA"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("server.crt", b"nothing", "it is no certificate or key in PEM"),
        ("server.key", b"", "it is no certificate or key in PEM"),
        ("server.key", None, "the key is not that of the certificate"),
        ("ca.crt", b"nothing", "TLS does not take it"),
    ],
)
def test_a_broken_new_file_leaves_the_old_one_and_says_so_and_ends_a_start(files, caplog, name, content, words):
    chosen = settings(files, tls_client_ca=files / "ca.crt")
    certificates = Certificates(chosen, utc_now)
    before = certificates.server_context()
    good = (files / name).read_bytes()
    (files / name).write_bytes((files / "client.key").read_bytes() if content is None else content)
    library.look_again()
    with caplog.at_level(logging.ERROR):
        certificates.look()
    assert certificates.server_context() is before
    assert words in problems(certificates)["TLS_CERT"]
    assert words in caplog.text
    with pytest.raises(StateConflict, match=words):
        Certificates(chosen, utc_now)
    (files / name).write_bytes(good)
    library.look_again()
    certificates.look()
    assert certificates.server_context() is not before
    assert problems(certificates)["TLS_CERT"] is None


def test_files_are_looked_at_once_a_minute(tmp_path):
    now = [0.0]
    path = tmp_path / "file"
    path.write_text("a")
    watch = FileWatch([str(path)], lambda: now[0])
    path.write_text("changed")
    assert not watch.has_changed()
    now[0] += library.LOOK_SECONDS
    assert watch.has_changed()
    assert not watch.has_changed()
    path.unlink()
    now[0] += library.LOOK_SECONDS
    assert watch.has_changed(), "a file that is missing has changed"


def test_a_client_certificate_needs_its_key(files):
    with pytest.raises(ValueError, match="belong together"):
        settings(files, curator_client_cert=files / "client.crt")
