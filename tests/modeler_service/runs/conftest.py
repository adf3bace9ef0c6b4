import pytest

from blindopt.client import StudyClient, Vendor
from tests.modeler_service.runs.human_measured_curator import HumanMeasuredCurator


@pytest.fixture(scope="module")
def own(modeler):
    """The modeler of a test file, unless it has one with settings of its own."""
    return modeler


@pytest.fixture(scope="module")
def vendor(own):
    with Vendor(own.url, own.token) as client:
        yield client


@pytest.fixture(scope="module")
def study(curator, opened):
    """The study of a real curator."""
    with StudyClient(curator.url, opened.token, opened.id) as client:
        return client.study().model_dump(mode="json")


@pytest.fixture
def inbox_curator(study):
    with HumanMeasuredCurator(study) as curator:
        yield curator
