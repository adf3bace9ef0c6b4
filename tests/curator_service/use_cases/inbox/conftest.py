"""Studies that people or a system measure, and those who do."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from blindopt import wire
from tests.conftest import Small
from tests.curator_service.use_cases.inbox.measured_study import draft, opened


@pytest.fixture(scope="session")
def study_of(small: Small) -> Callable[..., wire.StudyCreate]:
    """A draft of a study that people measure, on a dataset."""
    return partial(draft, small)


@pytest.fixture(scope="session")
def asked_of(small: Small) -> Callable[..., Any]:
    """Opens such a study at a curator, on a dataset."""
    return partial(opened, small)
