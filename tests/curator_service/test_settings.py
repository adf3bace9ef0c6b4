"""Settings that are refused before anything starts."""

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from curator_service import cli
from curator_service.settings import Settings

ELSEWHERE = ["http://10.0.0.7:9000/score", "http://scorer.example", "http://localhost.example/", "http://[fe80::1]/"]
NEARBY = ["http://127.0.0.1:9000/score", "http://[::1]:9000", "http://localhost", "https://scorer.example"]


@pytest.mark.parametrize("kind", ["scorer", "measurer"])
def test_a_measurer_over_plain_http_on_another_machine_is_refused_at_the_start(kind, tmp_path, monkeypatch):
    """It is told values of records; the answer is a raw outcome."""
    file = tmp_path / "key"
    file.write_text("k" * 32)

    def settings(url, **more):
        return Settings(data_dir=tmp_path, **{f"{kind}_url": url, f"{kind}_secret_file": file}, **more)

    for url in ELSEWHERE:
        with pytest.raises(ValidationError, match=f"{kind.upper()}_URL .*plain http"):
            settings(url)
        settings(url, allow_plain_http=True)
    for url in NEARBY:
        settings(url)
    variables = {
        "DATA_DIR": str(tmp_path),
        f"{kind.upper()}_URL": ELSEWHERE[0],
        f"{kind.upper()}_SECRET_FILE": str(file),
    }
    for name, value in variables.items():
        monkeypatch.setenv(f"BLINDOPT_CURATOR_{name}", value)
    refused = CliRunner().invoke(cli.app, ["token", "create", "--name", "x"])
    assert refused.exit_code == 2
    assert "plain http" in refused.output
    assert not (tmp_path / "curator.sqlite").exists()
