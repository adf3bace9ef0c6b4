"""The floor of an exchange writes the rows of the curator's own tables, whatever columns they get."""

from contextlib import closing

from benchmarks.floor import Rows
from curator_service import app
from curator_service.settings import Settings


def test_the_floor_of_an_exchange_fits_the_tables_of_this_version(tmp_path):
    built = app.build(Settings(data_dir=tmp_path / "curator"))
    built.state.context.database.close()
    rows = Rows(str(tmp_path / "floor.sqlite"), str(tmp_path / "curator" / "curator.sqlite"))
    with closing(rows.db):
        for number in range(3):
            reply, note = rows.add("grt_" + "0" * 16, f"key-{number}", "0" * 64, '{"rows":[{"row":1}]}')
            assert len(reply) == 414
            assert note.startswith(b"curator/grt_")
        for table, count in (("ledger", 3), ("queries", 3), ("replies", 3), ("log", 6), ("shared", 3)):
            assert rows.db.execute(f"SELECT count(*) FROM {table}").fetchone() == (count,)
