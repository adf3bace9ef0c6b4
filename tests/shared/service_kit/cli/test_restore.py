"""What a restore must not bring back: sessions that have ended since the backup."""

import asyncio
import shutil

import httpx
import pytest
from typer.testing import CliRunner

from modeler_service.app import build
from modeler_service.cli import app as command_line
from modeler_service.settings import Settings

PASSWORD = "correct horse battery staple"
ORIGIN = "http://127.0.0.1:8411"


@pytest.fixture
def run(tmp_path):
    """Run a command of the modeler over ``data_dir``; it must succeed."""
    (tmp_path / "password").write_text(PASSWORD)

    def make(data_dir, *arguments):
        environment = {"BLINDOPT_MODELER_DATA_DIR": str(data_dir)}
        result = CliRunner().invoke(command_line, [str(argument) for argument in arguments], env=environment)
        assert result.exit_code == 0, result.output

    return make


def _browse(data_dir, act):
    """``act`` with a client of the console over ``data_dir``."""

    async def main():
        app = build(Settings(data_dir=data_dir))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ORIGIN) as client:
            try:
                return await act(client)
            finally:
                app.state.context.close()

    return asyncio.run(main())


def _opens(data_dir, cookie):
    """Whether the cookie opens the console's first page."""
    reply = _browse(data_dir, lambda client: client.get("/console/", headers={"cookie": cookie}))
    assert reply.status_code == 200 or reply.headers["location"] == "/console/login"
    return reply.status_code == 200


def test_a_session_that_ended_after_the_backup_opens_nothing_after_a_restore(run, tmp_path):
    served, backup, copied, restored = (tmp_path / name for name in ("served", "backup", "copied", "restored"))
    run(served, "user", "add", "ann", "--password-file", tmp_path / "password")
    form = {"name": "ann", "password": PASSWORD}
    reply = _browse(served, lambda client: client.post("/console/login", data=form, headers={"origin": ORIGIN}))
    cookie = reply.headers["set-cookie"].partition(";")[0]
    run(served, "backup", backup)
    run(served, "user", "password", "ann", "--password-file", tmp_path / "password")  # ends every session of ann
    assert not _opens(served, cookie)

    # A plain copy of the backup brings the session back to life: it was open when the backup was made.
    shutil.copytree(backup, copied)
    shutil.copytree(served / "secrets", copied / "secrets")
    assert _opens(copied, cookie)

    run(restored, "restore", backup, "--secrets", served / "secrets")
    assert not _opens(restored, cookie)


def test_a_new_disk_is_an_empty_folder_and_its_own_folder_stays(run, tmp_path):
    served, backup, restored = (tmp_path / name for name in ("served", "backup", "restored"))
    run(served, "token", "create", "--name", "ann")
    run(served, "backup", backup)
    (restored / "lost+found").mkdir(parents=True)
    run(restored, "restore", backup, "--secrets", served / "secrets")
    run(restored, "audit", "verify")
    assert {path.name for path in restored.iterdir()} >= {"lost+found", "modeler.sqlite", "secrets"}
