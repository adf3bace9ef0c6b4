"""From SQLite to PostgreSQL and back: the same records, byte for byte, and answers that were given before."""

from blindopt import wire
from blindopt.client import Owner, StudyClient
from tests import postgres


def test_data_move_to_postgresql_and_back_by_a_backup_with_the_same_export_byte_for_byte(
    make_service, tmp_path, small, open_study
):
    curator = make_service("curator", tmp_path).start()
    with Owner(curator.url, curator.token, timeout_s=240) as owner:
        dataset = owner.register("small", small.csv, public=True)
        study = open_study(owner, dataset)
    key = "the-same-key"
    with StudyClient(curator.url, study.token, study.id) as client:
        answer = client.ask(wire.QueryRequest(rows=[wire.RowPlays(row=7)]), key=key)[0]
    assert curator.stop() == 0
    first = curator.run_in_process("audit", "export").stdout
    curator.settings["DATABASE_URL"] = postgres.server().create("moved")
    moved = curator.run_in_process("database", "move")
    assert moved.returncode == 0, moved.stderr
    assert not curator.database.exists()
    assert curator.run_in_process("audit", "export").stdout == first
    assert curator.run_in_process("audit", "verify").returncode == 0
    assert curator.run_in_process("database", "move").returncode == 4
    curator.start()
    with StudyClient(curator.url, study.token, study.id) as client:
        assert client.ask(wire.QueryRequest(rows=[wire.RowPlays(row=7)]), key=key)[0] == answer
    assert curator.stop() == 0
    assert curator.run_in_process("backup", str(tmp_path / "copy")).returncode == 0
    ended = curator.run_in_process("audit", "export").stdout
    assert ended.startswith(first[: first.index("\n")])
    del curator.settings["DATABASE_URL"]
    (tmp_path / "copy" / "curator.sqlite").rename(curator.database)
    assert curator.run_in_process("audit", "export").stdout == ended
    for target in (None, postgres.server().create("restored")):
        again = make_service("curator", tmp_path / f"restored-{target is None}")
        if target is not None:
            again.settings["DATABASE_URL"] = target
        copy = curator.run_in_process("backup", str(tmp_path / f"copy-{target is None}"))
        assert copy.returncode == 0, copy.stderr
        source, secrets = str(tmp_path / f"copy-{target is None}"), str(curator.data / "secrets")
        done = again.run_in_process("restore", source, "--secrets", secrets)
        assert done.returncode == 0, done.stderr
        assert again.database.exists() == (target is None)
        assert again.run_in_process("audit", "verify").returncode == 0
