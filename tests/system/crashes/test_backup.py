"""Backups made beside running services, and what a restore promises: nothing changed, nothing spent twice, no keys."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from blindopt import wire
from blindopt.audit.checkpoints import Checkpoint
from blindopt.audit.merkle_log import Head
from blindopt.client import Owner, Vendor
from blindopt.formats.npy_files import digest
from tests import beside
from tests.builders import a_run
from tests.system.audit.tampering import Party
from tests.system.crashes import crash_checks as checks

KEYS = ("log.key", "seal.key")


@pytest.fixture(scope="module")
def parties(make_service, small, tmp_path_factory):
    """Both services, a study with noisy answers, and a backup of each made while a run asks. Z is in three parts."""
    folder = tmp_path_factory.mktemp("backup")
    curator = make_service("curator", folder, part_bytes="2400").start()
    modeler = make_service("modeler", folder, countersign_every="5").start()
    with Owner(curator.url, curator.token) as owner, Vendor(modeler.url, modeler.token) as vendor:
        dataset = owner.register("small", small.csv, public=True)
        study = owner.release(owner.create_study(checks.draft(small, dataset.id, epsilon="0.5")).id)
        assert len(study.report.parts) == 3
        draft = owner.create_study(checks.draft(small, dataset.id))
        grant = owner.grant(study.id, wire.GrantCreate(name="modeler"))
        spec = a_run(curator.url, study.id, grant.token, algorithm=wire.RandomRows(name="random"), iterations=60)
        while True:  # until a run is long enough for this machine
            run = vendor.start(spec).id
            while vendor.run(run).view.trials < 8:
                pass
            made = [checks.command(s, "backup", str(folder / f"{s.name}-backup")) for s in (modeler, curator)]
            later = vendor.run(run).view
            assert [code for code, _ in made] == [0, 0], made
            assert vendor.wait(run, timeout_s=240).state == "completed"
            if later.state == "running":
                break
            spec = spec.model_copy(update={"iterations": 4 * spec.iterations})
            for service in (modeler, curator):
                shutil.rmtree(folder / f"{service.name}-backup")
    yield curator, modeler, folder, study.id, draft.id, run
    for service in (curator, modeler):
        service.kill()


@pytest.fixture
def restored(parties, tmp_path) -> Callable[..., Any]:
    """Restores the backup of a party, or what a test made of it, into a folder of its own."""

    def make(name: str, source: Path | None = None, secrets: Path | None = None) -> tuple[Party, int, str]:
        service = parties[0 if name == "curator" else 1]
        party = Party(name, tmp_path / f"restored-{name}")
        source = source or parties[2] / f"{name}-backup"
        return (party, *party.command("restore", str(source), "--secrets", str(secrets or service.data / "secrets")))

    return make


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("name", ["curator", "modeler"])
def test_a_copy_made_beside_writes_verifies_and_is_of_one_moment(name, restored, parties):
    party, code, output = restored(name)
    assert code == 0, output
    assert output.startswith("restored ")
    assert party.command("audit", "verify")[0] == 0
    records = party.records()
    assert records[-1]["kind"] == "log.restored"
    service = parties[0 if name == "curator" else 1]
    whole = Party(name, service.data).records()
    assert 8 < len(records) < len(whole)
    assert records[:-1] == whole[: len(records) - 1]


@pytest.mark.parametrize("name", ["curator", "modeler"])
def test_a_seal_key_of_another_time_is_refused_and_nothing_is_restored(name, restored, parties, tmp_path):
    secrets = parties[0 if name == "curator" else 1].data / "secrets"
    shutil.copytree(secrets, tmp_path / "newer")
    (tmp_path / "newer" / "seal.key").write_bytes(Fernet.generate_key())
    party, code, output = restored(name, secrets=tmp_path / "newer")
    assert code == 4
    assert "seal.key does not open what is sealed here: put back the key that belongs to this database" in output
    assert not (party.data / f"{name}.sqlite").exists()
    assert restored(name)[1] == 0


@pytest.mark.parametrize("name", ["curator", "modeler"])
def test_no_key_is_in_a_backup_and_only_its_user_reads_it(name, parties):
    backup = parties[2] / f"{name}-backup"
    secrets = parties[0 if name == "curator" else 1].data / "secrets"
    files = [path for path in backup.rglob("*") if path.is_file()]
    assert files
    for key in KEYS:
        secret = (secrets / key).read_bytes().strip()
        raw = bytes.fromhex(secret.decode()) if key == "log.key" else secret
        for path in files:
            assert path.name != key
            assert secret not in path.read_bytes()
            assert raw not in path.read_bytes()
    for path in (backup, *backup.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_restored_curator_has_closed_its_studies_and_drafts_and_says_so(restored, parties, make_service, until):
    _, _, _, study, draft, _ = parties
    party, code, _ = restored("curator")
    assert code == 0
    ((dataset,),) = party.rows("SELECT id FROM datasets")
    assert party.records()[-1]["details"] == {"closed_studies": [study, draft], "closed_accounts": [dataset]}
    assert dict(party.rows("SELECT id, state FROM studies")) == {study: "closed", draft: "closed"}
    service = make_service("curator", party.data.parent)
    service = replace(service, folder=party.data.parent / "serving")
    beside.copytree(party.data, service.data)
    shutil.copy(parties[0].folder / "first-token", service.folder)
    service.start()
    try:
        with service.http() as owner:
            assert owner.get(f"/v1/studies/{study}").json()["state"] == "closed"
            # The draft may have been released after the backup: a second Z would leave for the charge of one.
            again = owner.post(f"/v1/studies/{draft}:release", headers={"Idempotency-Key": "again"})
            assert (again.status_code, again.json()["code"]) == (409, "state_conflict")
    finally:
        assert service.stop() == 0


def test_what_a_restored_modeler_was_doing_goes_on_to_the_same_end(restored, parties, make_service, tmp_path):
    """The trials after the backup are asked again under their keys, and get the stored answers: nothing is spent."""
    curator, modeler, _, _, _, run = parties
    charged = curator.rows("SELECT count(*) FROM ledger")
    party, code, _ = restored("modeler")
    assert code == 0
    answered = "SELECT count(*) FROM trials WHERE run_id = ? AND y IS NOT NULL"
    assert 8 <= party.rows(answered, run)[0][0] < modeler.rows(answered, run)[0][0]
    again = make_service("modeler", tmp_path, countersign_every="5")
    beside.copytree(party.data, again.data)
    shutil.copy(modeler.folder / "first-token", again.folder)
    again.start()
    with Vendor(again.url, again.token) as vendor:
        ended = vendor.wait(run, timeout_s=240)
        assert (ended.state, ended.problem) == ("completed", None)
    columns = "SELECT number, row, y FROM trials WHERE run_id = ? ORDER BY number"
    assert again.rows(columns, run) == modeler.rows(columns, run)
    assert curator.rows("SELECT count(*) FROM ledger") == charged
    for service in (curator, again):
        code, output = checks.command(service, "audit", "verify")
        assert code == 0, output
    assert again.stop() == 0


# --- refusals -----------------------------------------------------------------------------------------


def refused(outcome: tuple[Party, int, str], why: str) -> None:
    """In one line; nothing that a service would serve is left behind, nor in the way of the next try."""
    party, code, output = outcome
    assert (code in (3, 4), output.count("\n")) == (True, 1), output  # a check that failed, or a refusal
    assert why in output, output
    assert not (party.data / f"{party.name}.sqlite").exists()
    assert not (party.data / "secrets").exists()


@pytest.fixture
def copied(parties, tmp_path) -> Path:
    """The curator's backup, to be changed."""
    return Path(shutil.copytree(parties[2] / "curator-backup", tmp_path / "copied"))


def test_a_folder_with_anything_in_it_is_refused_and_left_alone(restored, tmp_path):
    party = Party("curator", tmp_path / "restored-curator")
    party.data.mkdir()
    (party.data / "note").write_text("mine")
    refused(restored("curator"), "is not empty")
    assert (party.data / "note").read_text() == "mine"
    (party.data / "note").unlink()
    assert restored("curator")[1] == 0
    code, output = party.command("restore", "x", "--secrets", "y")
    assert (code, "is not empty" in output) == (4, True)


@pytest.mark.parametrize("key", KEYS)
def test_a_missing_key_is_refused(key, restored, parties, tmp_path):
    shutil.copytree(parties[0].data / "secrets", tmp_path / "secrets")
    (tmp_path / "secrets" / key).unlink()
    refused(restored("curator", secrets=tmp_path / "secrets"), f"{key} is missing")


def test_the_key_of_another_service_is_refused(restored, parties, tmp_path):
    """With it the service would sign its old history as somebody else."""
    shutil.copytree(parties[0].data / "secrets", tmp_path / "secrets")
    (tmp_path / "secrets" / "log.key").write_text("07" * 32)
    refused(restored("curator", secrets=tmp_path / "secrets"), "no valid signature")


def manifest_of(folder: Path, **changes: Any) -> None:
    body = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(body | changes))


def digests(folder: Path) -> None:
    """Make the manifest fit whatever is there."""
    body = json.loads((folder / "manifest.json").read_text())["files"]
    manifest_of(folder, files={name: digest(folder / name) for name in body})


def test_a_file_with_a_flipped_bit_is_refused(restored, copied):
    for name in json.loads((copied / "manifest.json").read_text())["files"]:
        path = copied / name
        raw = path.read_bytes()
        path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
        refused(restored("curator", copied), "is missing or was changed: nothing was restored")
        path.unlink()
        refused(restored("curator", copied), "is missing or was changed: nothing was restored")
        path.write_bytes(raw)
    assert restored("curator", copied)[1] == 0


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "{}", '{"files": 7}', '{"service":1,"created_at":1,"checkpoint":1,"files":{}}', "\xff"],
)
def test_a_manifest_that_is_none_is_refused(text, restored, copied):
    (copied / "manifest.json").write_bytes(text.encode("latin-1"))
    refused(restored("curator", copied), "manifest")


@pytest.mark.parametrize("name", ["../x", "/etc/hostname", "files/../../x"])
def test_a_manifest_that_names_files_elsewhere_is_refused(name, restored, copied):
    manifest_of(copied, files={name: "0" * 64})
    refused(restored("curator", copied), "is missing or was changed")


def test_a_backup_without_its_database_is_refused(restored, copied):
    """Else a new and empty one would take its place, and verify."""
    body = json.loads((copied / "manifest.json").read_text())["files"]
    manifest_of(copied, files={name: value for name, value in body.items() if not name.endswith(".sqlite")})
    refused(restored("curator", copied), "backup")


def test_a_backup_without_a_file_that_its_database_names_is_refused(restored, copied):
    body = json.loads((copied / "manifest.json").read_text())["files"]
    gone = next(name for name in body if name.startswith("files/"))
    manifest_of(copied, files={name: value for name, value in body.items() if name != gone})
    refused(restored("curator", copied), gone)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("DELETE FROM log WHERE seq = 5", "record 5 is missing"),
        ("DELETE FROM log WHERE seq > 3", "checkpoint"),
        ("DELETE FROM ledger WHERE seq = 3", "ledger line 4"),
        ("DELETE FROM ledger", "ledger"),
    ],
)
def test_a_database_that_was_changed_with_its_digest_is_refused(change, why, restored, copied):
    """Who can write the backup can write its manifest."""
    with closing(sqlite3.connect(copied / "curator.sqlite")) as db:  # of a service on PostgreSQL too
        beside.drop_triggers(db)
        assert db.execute(change).rowcount > 0
        db.commit()
    digests(copied)
    refused(restored("curator", copied), why)


@pytest.mark.parametrize("size", [0, 5, 10_000])
def test_a_backup_that_is_not_of_its_signed_head_is_refused(size, restored, copied, parties):
    """Its log is whole, and shorter or longer than what was signed when it was made."""
    signer = Party("curator", parties[0].data).signer
    manifest_of(copied, checkpoint=signer.sign(Checkpoint(f"{signer.name}/log", Head(size, "0" * 64))))
    refused(restored("curator", copied), f"its signed checkpoint is of another of {size}")


def test_a_backup_goes_to_a_new_folder(parties):
    curator, _, folder, *_ = parties
    code, output = checks.command(curator, "backup", str(folder / "curator-backup"))
    assert (code, "exists: a backup goes to a new folder" in output) == (4, True)


def test_a_backup_of_nothing_is_refused(tmp_path):
    party = Party("curator", tmp_path / "nothing")
    code, output = party.command("backup", str(tmp_path / "target"))
    assert (code, "run where you ran serve" in output) == (4, True)
    assert not (tmp_path / "target").exists()
