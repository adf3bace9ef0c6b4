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
