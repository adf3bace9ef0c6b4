"""`config show`: the settings as they are, without a secret, and status 2 for what would not start."""

import json

import pytest
from typer.testing import CliRunner

from curator_service import cli as curator_cli
from modeler_service import cli as modeler_cli

SECRET = "zq_" * 20


@pytest.fixture(params=["curator", "modeler"])
def show(request, tmp_path, monkeypatch):
    """Runs `config show` with settings: ``show("--json", port=8410)``."""
    name = request.param
    monkeypatch.setenv(f"BLINDOPT_{name.upper()}_DATA_DIR", str(tmp_path / "data"))
    cli = {"curator": curator_cli, "modeler": modeler_cli}[name].app

    def run(*arguments, **settings):
        given = {f"BLINDOPT_{name.upper()}_{key.upper()}": str(value) for key, value in settings.items()}
        return CliRunner().invoke(cli, ("config", "show", *arguments), env=given)

    run.prefix = f"BLINDOPT_{name.upper()}_"
    return run


@pytest.fixture
def notified(tmp_path):
    (tmp_path / "key").write_text(SECRET)
    return {"notify_url": f"https://ann:{SECRET}@hooks.example/x?key={SECRET}", "notify_secret_file": tmp_path / "key"}


def test_every_setting_is_shown_with_its_origin_and_no_secret(show, notified, tmp_path):
    done = show(port=8499, https_proxy=f"http://ann:{SECRET}@proxy:3128", **notified)
    assert done.exit_code == 0, done.output
    lines = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert lines[show.prefix + "PORT"] == ["set", "8499"]
    assert lines[show.prefix + "HOST"] == ["default", "127.0.0.1"]
    assert lines[show.prefix + "NOTIFY_URL"] == ["set", "https://***@hooks.example/x?***"]
    assert lines[show.prefix + "HTTPS_PROXY"] == ["set", "http://***@proxy:3128"]
    assert SECRET not in done.output
    assert not (tmp_path / "data").exists()  # it looks, and makes nothing


def test_json_has_the_same(show, notified):
    done = show("--json", port=8499, **notified)
    shown = json.loads(done.stdout)
    assert (shown[show.prefix + "PORT"], shown[show.prefix + "METRICS"]) == (8499, False)
    assert SECRET not in done.output


def test_what_would_not_start_is_named_and_ends_with_2(show, tmp_path, notified):
    (tmp_path / "short").write_text("short")
    (tmp_path / "file").write_text("no folder, and no certificate")
    faults = {
        "PORT": {"port": 99_999},
        "THERE_IS_NONE": {"there_is_none": 1},
        "_TLS_CERT and BLINDOPT_": {"tls_cert": tmp_path / "file"},
        "it is no certificate or key in PEM": {"tls_cert": tmp_path / "file", "tls_key": tmp_path / "file"},
        "HTTPS_PROXY must be": {"https_proxy": f"https://ann:{SECRET}@proxy:3128"},
        "TRUSTED_PROXIES": {"trusted_proxies": "proxy.example"},
        "NOTIFY_URL must begin with http:// or https://, and a host": notified | {"notify_url": "http://[::1"},
        "NOTIFY_CA: TLS does not take it": notified | {"notify_ca": tmp_path / "file"},
        "32 characters": notified | {"notify_secret_file": tmp_path / "short"},
        "is no folder that this user can write to": {"data_dir": tmp_path / "file" / "data"},
    }
    for words, settings in faults.items():
        done = show(**settings)
        assert (done.exit_code, words in done.stderr) == (2, True), (words, done.output)
        assert SECRET not in done.output


@pytest.mark.parametrize("url", ["https://", "http://[x", "https://host:port/", "http://a host/", "ftp://host/"])
@pytest.mark.parametrize("name", ["NOTIFY", "SCORER", "MEASURER"])
def test_an_address_that_leads_nowhere_is_named(tmp_path, monkeypatch, name, url):
    (tmp_path / "key").write_text(SECRET)
    given = {"DATA_DIR": tmp_path / "data", f"{name}_URL": url, f"{name}_SECRET_FILE": tmp_path / "key"}
    done = CliRunner().invoke(
        curator_cli.app, ("config", "show"), env={f"BLINDOPT_CURATOR_{key}": str(value) for key, value in given.items()}
    )
    assert done.exit_code == 2, done.output
    assert f"{name}_URL must begin with http:// or https://, and a host" in done.stderr
