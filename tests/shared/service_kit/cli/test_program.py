"""What is set in the process of a command before it begins."""

import os

import pytest
from typer.testing import CliRunner

from curator_service.cli import app as curator
from modeler_service.cli import app as modeler
from service_kit.cli.program import one_thread_for_products


@pytest.mark.parametrize(("given", "threads"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "4"}, "4")])
def test_blas_starts_no_threads_unless_the_environment_asks_for_some(monkeypatch, given, threads):
    monkeypatch.setattr(os, "environ", dict(given))
    one_thread_for_products()
    assert os.environ == {"OPENBLAS_NUM_THREADS": threads}


@pytest.fixture(params=["curator", "modeler"])
def run(request, tmp_path, monkeypatch):
    """Run a command of either service over one folder: ``run("token", "list")``."""
    monkeypatch.setenv(f"BLINDOPT_{request.param.upper()}_DATA_DIR", str(tmp_path / "data"))
    app = {"curator": curator, "modeler": modeler}[request.param]
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("which", ["log", "seal"])
def test_a_lost_key_of_data_that_were_used_is_named_and_not_replaced(run, tmp_path, which):
    key = tmp_path / "data" / "secrets" / f"{which}.key"
    assert run("token", "create", "--name", "ann").exit_code == 0
    kept = key.read_bytes()
    key.unlink()
    for command in (["token", "list"], ["audit", "verify"], ["serve", "--port", "0"], ["key", "rotate", which]):
        done = run(*command)
        assert done.exit_code == 1, done.output
        assert f"{key} is missing, and the log has records: put back the key that was there" in done.stderr
        assert not key.exists()
    key.write_bytes(kept)
    assert run("audit", "verify").exit_code == 0
