"""A real PostgreSQL server for tests: made as an ordinary user, on a socket only, fsync on, not sorting by code point.

With BLINDOPT_TEST_POSTGRES (`make test-postgres`) every database of every test is there: each in a database of its
own, a copy of a template with the tables of both services. BLINDOPT_POSTGRES_BIN is the folder of another version's
programs.
"""

import atexit
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

USER = "blindopt"
TEMPLATE = "ready"
ON = "BLINDOPT_TEST_POSTGRES" in os.environ
ICU = ["--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en"]
LOCALE = os.environ.get("BLINDOPT_POSTGRES_LOCALE")
"""A locale of this machine that does not sort by code point, for a server that was built without ICU."""
_KEPT = 60
"""Databases of earlier tests that are kept; each takes 8 MB."""


def programs() -> Path | None:
    """The folder of PostgreSQL's programs: BLINDOPT_POSTGRES_BIN, or the newest version's; None where there is none."""
    if (chosen := os.environ.get("BLINDOPT_POSTGRES_BIN")) is not None:
        return Path(chosen)
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    path = shutil.which("initdb")
    return folders[-1] if folders else None if path is None else Path(path).resolve().parent


def why_not() -> str | None:
    """Why there can be no server; None where there can."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed (extra postgres)"
    return None if programs() else "PostgreSQL is not installed (apt-get install postgresql, as root)"


class Server:
    """A server in a folder of its own; with ``of``, a replica of another one. ``wal`` is where its log is."""

    def __init__(
        self,
        folder: Path | None = None,
        of: "Server | None" = None,
        wal: Path | None = None,
        address: str = "",
    ) -> None:
        """``address``: where it listens too, for anybody."""
        self._address = address
        self.folder = folder or Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
        self._as: list[str] = []
        if os.getuid() == 0:  # initdb refuses root
            self._as = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        self.give(self.folder)
        if of is not None:
            self._run("pg_basebackup", "-R", "-c", "fast", "-d", of.url("postgres"))
        else:
            locale = [f"--locale={LOCALE}"] if LOCALE else ICU
            log_folder = [] if wal is None else [f"--waldir={wal}"]
            self._run("initdb", "-U", USER, "-A", "trust", "--wal-segsize=1", *locale, *log_folder)
        if address:
            with (self.folder / "data" / "pg_hba.conf").open("a", encoding="utf-8") as file:
                file.write("host all all samenet trust\n")
        atexit.register(self.remove)
        self.start()

    @staticmethod
    def give(folder: Path) -> None:
        """Let the server write into a folder."""
        if os.getuid() == 0:
            shutil.chown(folder, "nobody", "nogroup")

    @property
    def runs(self) -> bool:
        """Whether it was started and has not ended."""
        return (self.folder / "data" / "postmaster.pid").exists()

    def _run(self, program: str, *arguments: str) -> None:
        found_in = programs()
        assert found_in is not None
        command = [*self._as, str(found_in / program), "-D", str(self.folder / "data"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        """Start it, and wait until it serves."""
        where = f"-c listen_addresses={self._address} -c unix_socket_directories={self.folder}"
        # After an immediate stop all files of all its databases are synchronized: each by itself takes a minute.
        options = f"{where} -c max_connections=1000 -c fsync=on -c recovery_init_sync_method=syncfs"
        self._run("pg_ctl", "start", "-w", "-t", "300", "-s", "-l", str(self.folder / "log"), "-o", options)

    def stop(self, how: str = "fast") -> None:
        """Stop it: fast, or immediate, which is like a loss of power."""
        self._run("pg_ctl", "stop", "-w", "-s", "-m", how)

    def signal(self, number: int) -> None:
        """Send a signal to all its processes."""
        parent = (self.folder / "data" / "postmaster.pid").read_text().split()[0]
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="utf-8").split()
        for pid in (parent, *children):
            with suppress(ProcessLookupError):  # a child has ended meanwhile
                os.kill(int(pid), number)

    def remove(self) -> None:
        """Stop it for good."""
        if self.runs:
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str) -> str:
        return f"postgresql://{USER}:zq-secret@/{database}?host={self.folder}"

    def execute(self, database: str, sql: str, values: Sequence[object] = ()) -> list[Any]:
        """Run a statement as the owner of everything; its rows."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as db:
            done = db.execute(sql, values or None)
            return done.fetchall() if done.description else []

    def create(self, name: str, template: str = "template0") -> str:
        """Create a database unless there is one of this name; its address."""
        if not self.execute("postgres", "SELECT 1 FROM pg_database WHERE datname = %s", [name]):
            self.execute("postgres", f'CREATE DATABASE "{name}" TEMPLATE {template}')
        return self.url(name)


@cache
def server() -> Server:
    """The server of this process of tests. Skips the test where there can be none."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    started = Server()
    started.create(TEMPLATE)
    return started


@cache
def _template() -> str:
    """The template, with the tables of both services, and what SQLite's functions of text do with bytes."""
    for service in ("curator", "modeler"):
        importlib.import_module(f"{service}_service.context")  # every table is there, whichever test comes first
    from curator_service.store import base as curator
    from modeler_service import store as modeler
    from service_kit.store import base
    from service_kit.store.database import Database

    for name, schema in (("curator", curator), ("modeler", modeler)):
        Database(
            Path("/nowhere") / f"{name}.sqlite",
            (base.METADATA, schema.METADATA),
            append_only=(*base.APPEND_ONLY, *schema.APPEND_ONLY),
            migrations=(base.MIGRATIONS, schema.MIGRATIONS),
            url=server().url(TEMPLATE),
        ).close()
    server().execute(
        TEMPLATE,
        "CREATE FUNCTION public.replace(bytea, text, text) RETURNS bytea LANGUAGE sql AS $$ SELECT"
        " convert_to(replace(convert_from($1, 'UTF8'), $2, $3), 'UTF8') $$;"
        "CREATE FUNCTION public.zeroblob(integer) RETURNS bytea LANGUAGE sql AS $$ SELECT"
        " decode(repeat('00', $1), 'hex') $$;"
        "CREATE FUNCTION public.json_set(text, text, integer) RETURNS text LANGUAGE sql AS $$ SELECT"
        " jsonb_set($1::jsonb, string_to_array(substr($2, 3), '.'), to_jsonb($3))::text $$;"
        "CREATE FUNCTION public.as_bytes(text) RETURNS bytea LANGUAGE sql AS $$ SELECT convert_to($1, 'UTF8') $$;"
        "CREATE FUNCTION public.as_bytes(bytea) RETURNS bytea LANGUAGE sql AS $$ SELECT $1 $$",
    )
    return TEMPLATE


_made: dict[str, float] = {}


def url_of(folder: Path) -> str:
    """The address of the database that belongs to a folder of data."""
    name = _name_for(folder)
    if name not in _made:
        if len(_made) >= _KEPT:
            _drop_unused()
        server().create(name, _template())
    _made[name] = time.monotonic()
    return server().url(name)


def address_for(path: Path) -> str | None:
    """The address of the database that a test opens as ``path``; None: it is a file of SQLite."""
    return url_of(path.parent) if ON else None


def _name_for(folder: Path) -> str:
    return "t" + hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]


def copy_database(source: Path, target: Path) -> None:
    """Copy the database of a folder, if it has one, for a copy of the folder; also beside a service that is in it."""
    name, new = _name_for(source), _name_for(target)
    if name not in _made:
        return
    if server().execute("postgres", "SELECT 1 FROM pg_stat_activity WHERE datname = %s", [name]):
        for schema in ("curator", "modeler"):
            dump(server().url(name), url_of(target), schema)
    else:
        server().create(new, name)
    _made[name] = _made[new] = time.monotonic()


def settings_for(folder: Path) -> dict[str, str]:
    """Settings, without their prefix, of a service whose data is in a folder."""
    return {"DATABASE_URL": url_of(folder)} if ON else {}


def dump(source: str, target: str, schema: str) -> None:
    """Make a schema of one database that of another one, as it is."""
    server().execute(name_of(target), f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    bin_folder = programs()
    assert bin_folder is not None
    written = subprocess.run([bin_folder / "pg_dump", "-n", schema, source], capture_output=True, check=True)
    read_script(target, written.stdout)


def read_script(address: str, script: bytes) -> None:
    """Run what ``pg_dump`` wrote, of whichever version: older programs do not know its first and last command."""
    script = re.sub(rb"(?m)^\\(un)?restrict .*$", b"", script)
    bin_folder = programs()
    assert bin_folder is not None
    command = [str(bin_folder / "psql"), "-q", "-v", "ON_ERROR_STOP=1", address]
    done = subprocess.run(command, input=script, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def files_of(url: str) -> list[Path]:
    """The files in which the server has the tables of a database, as they are now."""
    server().execute("postgres", "CHECKPOINT")
    ((oid,),) = server().execute("postgres", "SELECT oid FROM pg_database WHERE datname = %s", [name_of(url)])
    return [path for path in (server().folder / "data" / "base" / str(oid)).iterdir() if path.is_file()]


def _drop_unused() -> None:
    used = {row[0] for row in server().execute("postgres", "SELECT DISTINCT datname FROM pg_stat_activity")}
    for name in sorted(_made, key=lambda each: _made[each])[: _KEPT // 2]:
        if name not in used:
            server().execute("postgres", f'DROP DATABASE IF EXISTS "{name}"')
            del _made[name]


def name_of(url: str) -> str:
    """The name of the database at an address."""
    return url.partition("?")[0].rpartition("/")[2]


def session(url: str) -> Any:
    """A session of a test's own, which begins no transaction by itself."""
    import psycopg

    return psycopg.connect(url, autocommit=True)


SQLITE_ONLY = {
    "test_schema.py": "writes older files of SQLite; test_postgres.py has the same for PostgreSQL",
    "test_postgres.py": "compares both by itself",
    "test_database_move.py": "begins with a file of SQLite",
    "test_store.py::test_what_is_append_only_cannot_be_changed_by_the_service": "statements of SQLite (PRAGMA, rowid)",
    "test_store.py::test_what_was_not_read_to_its_end_holds_no_connection_at_an_old_moment": (
        "statements of SQLite outlive their transaction"
    ),
    "test_store.py::test_an_answer_is_found_though_no_number_is_stored_as_its_position": (
        "a column of numbers holds nothing else"
    ),
    "test_store.py::test_writes_that_returned_are_there_after_kill_9": "another process opens the file",
    "test_store.py::test_processes_that_open_a_new_database_at_once_share_one_log": "other processes open the file",
    "test_store.py::test_a_second_process_on_the_same_folder_is_refused_and_the_first_goes_on": "it waits as a standby",
    "test_store.py::test_the_writer_waits_for_the_disk_and_readers_do_not_wait_for_it": "the disk is the server's",
    "test_store.py::test_a_database_that_is_opened_again_has_the_indexes_of_this_program": "at a new version alone",
    "test_store.py::test_a_database_that_is_opened_again_has_its_triggers_and_its_rows": "at a new version alone",
    "test_locales.py::test_an_earlier_state_is_noticed_in_every_locale": "the database is a file",
    "test_metrics.py::test_gauges_tell_the_size_of_the_database_and_the_disk": "the size of a file",
    "test_database_ends.py::test_the_same_holds_for_a_single_row": "a statement of SQLite",
    "test_database_ends.py::test_a_refused_read_is_reported_without_the_driver_s_words": "statements of SQLite",
    "test_tampering.py::test_a_record_that_is_no_bytes_is_found_as_any_other": "a column of bytes holds nothing else",
    "test_account_history.py::test_a_database_of_version_0_1_0_shows_what_its_ledgers_say": "reads the file of 0.1.0",
    "test_curve.py::test_a_list_of_runs_is_read_from_indexes": "plans of SQLite's queries",
    "test_restore.py::test_a_session_that_ended_after_the_backup_opens_nothing_after_a_restore": "serves a backup",
    "test_restore.py::test_a_new_disk_is_an_empty_folder_and_its_own_folder_stays": "the database is a file",
    "test_program.py::test_a_damaged_database_is_reported_in_a_line": "test_damaged_server.py has it",
    "test_two_in_a_folder.py": "begins with files of SQLite",
    "test_serve.py::test_at_a_terminal_serve_says_where_it_is_and_what_is_missing": "it may be a standby",
    **dict.fromkeys(
        (
            "test_full_disk.py::test_on_a_full_disk_every_query_is_refused_and_later_answered_once",
            "test_full_disk.py::test_a_service_that_is_killed_on_a_full_disk_comes_back_when_there_is_room",
            "test_full_disk.py::test_where_no_file_may_grow_the_same_holds",
            "test_full_disk.py::test_a_run_waits_while_its_modeler_s_disk_is_full_and_goes_on_by_itself",
        ),
        "test_full_server.py has it",
    ),
}
"""Files and tests that cannot apply to PostgreSQL, and why: FILE, FILE::TEST or FILE::TEST[CASE]."""


def reason_to_skip(file: str, test: str) -> str | None:
    """Why a test cannot apply to PostgreSQL; None: it does."""
    names = file, f"{file}::{test}", f"{file}::{test.partition('[')[0]}"
    return next((SQLITE_ONLY[name] for name in names if name in SQLITE_ONLY), None)


def use_everywhere() -> None:
    """From now on, settings of this process without a DATABASE_URL have the database of their folder."""
    from service_kit.settings import ServiceSettings

    real = ServiceSettings._given_address

    def address(settings: ServiceSettings) -> str | None:
        is_chosen = settings.model_fields_set & {"database_url", "database_url_file"}
        return real(settings) if is_chosen else url_of(settings.data_dir)

    pytest.MonkeyPatch().setattr(ServiceSettings, "database_address", property(address))
