"""What is set in the process of a command before it begins."""

import os

import pytest

from service_kit.cli.program import one_thread_for_products


@pytest.mark.parametrize(("given", "threads"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "4"}, "4")])
def test_blas_starts_no_threads_unless_the_environment_asks_for_some(monkeypatch, given, threads):
    monkeypatch.setattr(os, "environ", dict(given))
    one_thread_for_products()
    assert os.environ == {"OPENBLAS_NUM_THREADS": threads}
