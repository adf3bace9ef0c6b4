"""Which engine a run gets, and which settings are refused."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from blindopt import wire
from modeler_service import engines
from modeler_service.settings import Settings


def given(**values):
    return Settings(**values)


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("dask://10.0.0.7:8786", "beyond this machine"),
        ("dask://scheduler:8786", "beyond this machine"),
        ("tls://scheduler:8786", "ENGINE_TLS_CA"),
        ("tcp://127.0.0.1:8786", "pattern"),
        ("tls://user@scheduler:8786", "pattern"),
        ("ray://scheduler:8786", "pattern"),
    ],
)
def test_an_engine_that_strangers_could_use_is_refused_in_words(address, word):
    with pytest.raises(ValidationError, match=word):
        given(candidates_engine=address)


def test_addresses_of_this_machine_and_those_with_certificates_are_taken(tmp_path):
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text("")
    files = {f"engine_tls_{name}": tmp_path / name for name in ("ca", "cert", "key")}
    assert given(candidates_engine="dask://127.0.0.1:8786").engine_certificates is None
    closed = given(candidates_engine="tls://scheduler:8786", **files)
    assert closed.engine_certificates == tuple(str(tmp_path / name) for name in ("ca", "cert", "key"))


def test_parts_follow_the_processors_and_the_setting():
    settings = given(candidates_engine="threads")
    assert [engines.parts_of(settings, n, workers=4) for n in (10, 249_999, 600_000, 1_000_000, 10**7, 10**8)] == [
        1,
        1,
        2,
        4,
        4,
        25,
    ]
    assert engines.parts_of(given(engine_partition_rows=100), 401, workers=4) == 5


def test_only_algorithms_whose_choice_is_a_maximum_are_divided(tmp_path):
    settings = given(candidates_engine="dask://127.0.0.1:1", data_dir=tmp_path)
    for algorithm in (wire.RandomRows(name="random"), wire.EiDeblurred(name="ei_deblurred")):
        plan = wire.Plan(
            algorithm=algorithm, fit=None, initial_rows=0, initial_design="random", repeats="never", reasons=[]
        )
        assert not engines.is_remote(settings, plan)
        assert engines.engine_of(settings, plan, None, Path("z.npy"), 7, lambda: None).view.name == "process"


def test_workers_read_releases_from_the_folder_that_is_set(tmp_path):
    assert given(data_dir=tmp_path).candidates_folder == tmp_path / "candidates"
    assert given(data_dir=tmp_path, candidates_dir=tmp_path / "shared").candidates_folder == tmp_path / "shared"
