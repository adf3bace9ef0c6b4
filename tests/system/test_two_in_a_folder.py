"""A service that is started in the folder of another one says so: its database and its keys would be there, too."""

from dataclasses import replace

import pytest


@pytest.mark.parametrize(("first", "second"), [("curator", "modeler"), ("modeler", "curator")])
def test_a_service_makes_itself_no_home_in_the_folder_of_another(make_service, tmp_path, first, second):
    """One that has its own data there goes on, as after an earlier version."""
    host, guest = make_service(first, tmp_path), make_service(second, tmp_path / "b")
    create = ("token", "create", "--name", "a")
    assert host.run(*create).returncode == 0
    before = sorted(path.name for path in host.data.iterdir())
    moved = replace(guest, folder=host.folder)
    for command in (("serve",), create, ("token", "list")):
        refused = moved.run(*command)
        assert refused.returncode == 4
        assert f"{host.data}" in refused.stderr
    assert f"holds the data of blindopt-{first}: set BLINDOPT_{second.upper()}_DATA_DIR" in moved.run("serve").stderr
    assert sorted(path.name for path in host.data.iterdir()) == before
    assert guest.run(*create).returncode == 0
    for path in guest.data.glob(f"{second}.sqlite*"):
        path.rename(host.data / path.name)
    (guest.data / "secrets").rename(host.data / "others")
    assert host.run("token", "list").returncode == 0


@pytest.mark.parametrize(("first", "second"), [("curator", "modeler"), ("modeler", "curator")])
def test_with_postgresql_the_saved_checkpoint_tells_whose_a_folder_is(make_service, tmp_path, first, second):
    """The tables are elsewhere. Control: the service itself goes as far as its server, which does not answer."""
    elsewhere = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    host, guest = make_service(first, tmp_path), make_service(second, tmp_path / "b")
    host.start().stop()
    host.database.rename(host.database.with_suffix(".moved"))
    for service, status, words in (
        (replace(guest, folder=host.folder, settings=elsewhere), 4, f"holds the data of blindopt-{first}"),
        (replace(host, settings=elsewhere), 1, "OperationalError"),
    ):
        refused = service.run("token", "list")
        assert (refused.returncode, words in refused.stderr) == (status, True), refused.stderr
