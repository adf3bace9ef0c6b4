"""A small case of ``make soak``: hostile files and bodies beside an exchange."""

import pytest

from tests.system.hostile_load import Load


@pytest.mark.slow(
    sibling="test_bodies.py::test_a_refusal_costs_a_bounded_number_of_steps_however_many_errors_there_are"
)
def test_hostile_files_and_bodies_are_refused_beside_an_exchange(tmp_path):
    load = Load(tmp_path, fresh=False, pause=0.05)
    try:
        load.begin()
        load.last(1.0, 0.005)
        load.check(load.memory())
    finally:
        load.curator.kill()
    assert load.statuses.total() > 15
    assert all(load.latencies[phase] for phase in ("alone", "hostile files"))
