"""Files of a run: no cell that a spreadsheet computes, and a clear word where Parquet is not to be had."""

import importlib.util

import pytest

from modeler_service import exporting
from shared.errors import Invalid


@pytest.mark.parametrize("text", ["=1+1", "+1", "-cmd", "@x", "\tx", "\rx"])
def test_a_text_cell_that_a_spreadsheet_would_compute_is_quoted(text):
    assert exporting.guarded(text) == f"'{text}"


@pytest.mark.parametrize("value", [-1.5, -3, None, "initial", "2026-01-01", ""])
def test_numbers_and_plain_text_stay_as_they_are(value):
    assert exporting.guarded(value) == value


def test_without_pyarrow_parquet_is_refused_in_words(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Invalid, match="pyarrow"):
        exporting.as_parquet(None)
