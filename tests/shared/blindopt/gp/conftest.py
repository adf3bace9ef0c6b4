import numpy as np
import pytest

from blindopt.gp import parts


@pytest.fixture
def small_blocks(monkeypatch):
    """A few hundred candidates are updated in several blocks, as very many are."""
    monkeypatch.setattr(parts, "COLUMN_ROWS", 100)
    monkeypatch.setattr(parts, "BLOCK_NUMBERS", 500)


@pytest.fixture(params=[np.float64, np.float32], ids=str)
def dtype(request, small_blocks):
    return request.param
