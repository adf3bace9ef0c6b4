"""On PostgreSQL, a role without the rights to change append-only tables erases a dataset, and changes nothing else."""

import secrets
import shutil

import pytest

from service_kit.store.database import StoreFault
from tests import postgres
from tests.curator_service.budget.file_of_records import FileOfRecords
from tests.curator_service.erasure.test_erasure import CSV, erase, marked, used, words
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator

REFUSED = {
    "UPDATE entries SET value = 5 WHERE value IS NOT NULL": "IntegrityError",
    "UPDATE entries SET note = 'another' WHERE note IS NOT NULL": "IntegrityError",
    "UPDATE messages SET body = replace(body, '3', '4')": "IntegrityError",
    'UPDATE replies SET body = \'{"erased":"ds_1", "id":"x"}\'': "IntegrityError",
    "UPDATE releases SET report = replace(report, ':1', ':2')": "IntegrityError",
    "SET LOCAL search_path = own, pg_catalog; UPDATE curator.entries SET value = 5 WHERE value > 0": "IntegrityError",
    "UPDATE entries SET actor = 'ann'": "ProgrammingError",
    "UPDATE ledger SET cost = NULL": "ProgrammingError",
    "UPDATE log SET body = ''": "ProgrammingError",
    "DELETE FROM entries": "ProgrammingError",
    "DELETE FROM replies": "ProgrammingError",
    "TRUNCATE log": "ProgrammingError",
    "DROP TRIGGER log_update ON log": "ProgrammingError",
    "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'":
    "ProgrammingError",
}  # fmt: skip


@pytest.fixture
def file(tmp_path):
    server, name, role = postgres.server(), f"clerk{secrets.token_hex(4)}", f"clerk{secrets.token_hex(4)}"
    url = server.create(name)
    owner = InProcessCurator(tmp_path / "owner", database_url=url)
    rights = owner.context.database.rights_of(role)
    owner.close()
    server.execute(name, f"CREATE ROLE {role} LOGIN")
    server.execute(name, rights)
    server.execute(name, f"CREATE SCHEMA own AUTHORIZATION {role}")  # in which it has functions of its own
    server.execute(name, "CREATE FUNCTION own.pg_has_role(oid, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'")
    limited = url.replace(f"{postgres.USER}:", f"{role}:")
    shutil.copytree(tmp_path / "owner" / "data" / "secrets", tmp_path / "data" / "secrets")
    file = FileOfRecords(tmp_path, csv=CSV, public=True, database_url=limited)
    yield file
    file.close()


def test_a_role_without_the_rights_erases_a_dataset_and_can_change_nothing_else(file):
    used(file)
    database = file.in_process.context.database
    database.check_writable()
    assert {kind for _, kind in marked(file)} == {"text", "double", "estimate"}

    def change(db, statement):
        db.exec_driver_sql("SELECT set_config('blindopt.unguarded', '*', true)")
        db.exec_driver_sql(statement)

    for statement, kind in REFUSED.items():
        with pytest.raises(StoreFault, match=kind):
            database.write(lambda db, statement=statement: change(db, statement))
    assert words(file) == ""
    erase(file)
    assert marked(file) == set()
    assert words(file).startswith("erased: 1 datasets with 2 studies, 3 queries, 1 measurements")
