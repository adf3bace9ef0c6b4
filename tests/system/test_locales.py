"""An owner's command line and service under the locale C without Python's mode of UTF-8, with names of many scripts."""

import codecs
import os
import pty
import shutil
import subprocess
import sys

import httpx
import pytest

from blindopt.audit.checkpoints import parse_unverified
from blindopt.client import Owner
from tests.builders import a_study_of

EIGHT_BITS = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NAMES = "Müller, Żółć, 山田, محمد"


@pytest.fixture
def service(make_service, tmp_path, monkeypatch):
    """A curator that an interpreter of its own starts in that locale, as the commands beside it."""
    for name, value in EIGHT_BITS.items():
        monkeypatch.setenv(name, value)
    return make_service("curator", tmp_path / "curator", fresh=True)


def test_an_earlier_state_is_noticed_in_every_locale(service, small, tmp_path):
    """The checkpoint beside the database is written, whatever its note holds."""
    service.start()
    with Owner(service.url, service.token) as owner:
        owner.register(NAMES, small.csv, public=True)
    service.stop()
    earlier = tmp_path / "earlier"
    shutil.copytree(service.data, earlier)
    service.start()
    with Owner(service.url, service.token) as owner:
        owner.register(f"{NAMES} 2", small.csv + b"1,2,3\n", public=True)
    service.stop()
    note = (service.data / "checkpoint").read_text(encoding="utf-8")
    assert parse_unverified(note).head.size > 0
    for file in service.data.glob("curator.sqlite*"):
        file.unlink()
    for file in earlier.glob("curator.sqlite*"):
        shutil.copy(file, service.data)
    service.process = service.spawn()
    while not service.listens():
        assert service.process.poll() is None, service.log
    assert httpx.get(f"{service.url}/readyz", trust_env=False, timeout=60).status_code == 503


def test_every_name_is_printed_and_a_token_file_of_windows_is_read(service, small, tmp_path):
    """In UTF-8 to a pipe or a file; at a terminal of Western Europe with ? for what it does not have."""
    service.start()
    environment = service.environment | {"PYTHONIOENCODING": "latin-1"}
    token = tmp_path / "token"
    token.write_bytes(codecs.BOM_UTF8 + service.token.encode())
    with Owner(service.url, service.token) as owner:
        dataset = owner.register("small", small.csv, public=True)
        owner.create_study(a_study_of(small, dataset.id, name=NAMES))
    listing = [sys.executable, "-m", "curator_service", "study", "list"]
    listing += ["--url", service.url, "--token-file", str(token)]
    piped = subprocess.run(listing, env=environment, capture_output=True, check=False)
    assert piped.returncode == 0, piped.stderr
    assert NAMES in piped.stdout.decode()
    parent, terminal = pty.openpty()
    shown = subprocess.run(listing, env=environment, stdout=terminal, stderr=terminal, check=False)
    os.close(terminal)
    text = os.read(parent, 100_000)
    os.close(parent)
    assert shown.returncode == 0, text
    assert "Müller, ?ó??, ??, ????".encode("latin-1") in text
