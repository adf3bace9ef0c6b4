"""Files of a run: no cell that a spreadsheet computes, and a clear word where Parquet is not to be had."""

import sys

import pytest

from blindopt.errors import Invalid
from modeler_service.use_cases import exports


def test_without_pyarrow_parquet_is_refused_in_words(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as where it is not installed
    with pytest.raises(Invalid, match="pyarrow"):
        exports.as_parquet(None)
