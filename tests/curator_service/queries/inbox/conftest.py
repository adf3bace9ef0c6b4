"""Studies that people or a system measure, and curators for them."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from blindopt import wire
from tests.conftest import Small
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.curator_service.queries.inbox.measured_study import draft, open_measured_study


@pytest.fixture
def in_process(tmp_path: Path) -> Iterator[InProcessCurator]:
    """A curator in this process."""
    curator = InProcessCurator(tmp_path)
    yield curator
    curator.close()


@pytest.fixture(scope="session")
def draft_of(small: Small) -> Callable[..., wire.StudyCreate]:
    """Makes a draft of a study that people measure, on a dataset."""
    return partial(draft, small)


@pytest.fixture(scope="session")
def open_measured(small: Small) -> Callable[..., Any]:
    """Opens such a study at a curator, on a dataset."""
    return partial(open_measured_study, small)
