"""Services of a file's own: whole logs are read, exported and compared here, and those of all tests are long."""

from collections.abc import Iterator

import pytest

from blindopt import wire
from blindopt.client import Owner, Vendor
from tests.conftest import Opened, Service


@pytest.fixture(scope="module")
def curator(make_service, tmp_path_factory) -> Service:
    return make_service("curator", tmp_path_factory.mktemp("audit")).start()


@pytest.fixture(scope="module")
def modeler(make_service, tmp_path_factory) -> Service:
    return make_service("modeler", tmp_path_factory.mktemp("audit")).start()


@pytest.fixture(scope="module")
def owner(curator) -> Iterator[Owner]:
    with Owner(curator.url, curator.token, timeout_s=240) as client:
        yield client


@pytest.fixture(scope="module")
def vendor(modeler) -> Iterator[Vendor]:
    with Vendor(modeler.url, modeler.token, timeout_s=240) as client:
        yield client


@pytest.fixture(scope="module")
def dataset(owner, small) -> wire.DatasetView:
    return owner.register("small", small.csv, public=True)


@pytest.fixture(scope="module")
def opened(owner, dataset, open_study) -> Opened:
    return open_study(owner, dataset)
