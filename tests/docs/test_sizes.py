"""The documents stay small: few lines in all files together, and no data."""

from tests.docs.snippets import ROOT

LINES_MAX, PLOTS_MAX, PLOT_BYTES_MAX = 9_500, 4, 50_000


def test_the_folder_of_documents_is_small():
    files = [path for path in (ROOT / "docs").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert len(files) > 60
    assert sum(path.read_bytes().count(b"\n") for path in files) <= LINES_MAX
    plots = [path for path in files if path.suffix == ".svg"]
    assert len(plots) <= PLOTS_MAX
    assert [path.name for path in plots if path.stat().st_size >= PLOT_BYTES_MAX] == []
    assert [path.name for path in files if path.suffix == ".json"] == []
