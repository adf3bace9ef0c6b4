"""Released studies that stay read: bounded, and one map for the records of a dataset."""

from pathlib import Path

import pytest

from blindopt import wire
from curator_service.use_cases.studies import release_cache
from tests.curator_service.use_cases.inbox.in_process_curator import House

CSV = ("a,b,y\n" + "".join(f"{i / 100},{(i * 7 % 100) / 100},{i % 5}\n" for i in range(100))).encode()


@pytest.fixture
def house(tmp_path):
    made = House(tmp_path, rate_per_second=10_000, rate_burst=10_000)
    yield made
    made.close()


def study(dataset):
    return wire.StudyCreate(
        name="s",
        dataset_id=dataset,
        features=[wire.Feature(column=c, lower=0, upper=1) for c in "ab"],
        measurement=wire.ColumnMeasurement(column="y", direction="maximize"),
        release=wire.IdentityRelease(mechanism="identity"),
    )


def opened(folder):
    """Descriptors of this process on files of ``folder``."""
    places = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    return sorted(place for place in places if place.startswith(str(folder)))


def test_studies_that_are_read_hold_a_bounded_number_of_files_open(house, tmp_path, monkeypatch):
    monkeypatch.setattr(release_cache, "KEPT", 3)
    house.open(CSV, study)
    dataset = house.done("owner", "GET", "/v1/datasets")["datasets"][0]["id"]
    body = study(dataset).model_dump(mode="json")
    asked = []
    for number in range(6):
        identity = house.done("owner", "POST", "/v1/studies", json=body)["id"]
        house.done("owner", "POST", f"/v1/studies/{identity}:release")
        grant = house.done("owner", "POST", f"/v1/studies/{identity}/grants", json={"name": f"m{number}"})
        asked.append((identity, grant["token"]))
    for _ in range(2):  # those that were let go are read again
        for identity, token in asked:
            house.tokens["modeler"] = token
            rows = {"rows": [{"row": 1}]}
            house.done("modeler", "POST", f"/v1/studies/{identity}/queries", json=rows)
            mapped = [place for place in opened(tmp_path) if place.endswith(".npy")]
            assert len(mapped) <= 3 + 1, mapped
            assert sum(".order." not in place for place in mapped) == 1
