"""Files of the curator that somebody took away or damaged: nothing is spent, and what is put back is served again."""

import pytest

from tests.curator_service.erasure.test_retention import CSV, study
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator

DAMAGE = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-8]),
    "another": lambda path: path.write_bytes(b"no numbers"),
}
UNREADABLE = ("storage_unavailable", "a file of the data folder is missing, damaged or not readable")
ORDER = "rel_*.order.npy"
"""The row order of a release, whose digest is in the log."""
CHANGED = ("record_changed", "the stored row order of the release is not the one in the audit log")


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", [ORDER, "ds_*.npy"])
def test_a_file_that_is_missing_or_damaged_is_a_503_that_says_so_and_charges_nothing(tmp_path, name, damage):
    before = InProcessCurator(tmp_path)
    identity = before.open(CSV, study)
    before.close()
    curator = InProcessCurator(tmp_path)  # has no file open yet
    curator.tokens["modeler"] = before.tokens["modeler"]
    (path,) = (tmp_path / "data" / "files").glob(name)
    kept = path.read_bytes()
    DAMAGE[damage](path)
    body = {"rows": [{"row": 0}]}
    reply = curator.send("modeler", "POST", f"/v1/studies/{identity}/queries", "k", json=body)
    problem = reply.json()
    assert (reply.status_code, problem["retryable"]) == (503, True)
    assert (problem["code"], problem["detail"]) == (CHANGED if name == ORDER and damage != "missing" else UNREADABLE)
    path.write_bytes(kept)
    assert curator.send("modeler", "POST", f"/v1/studies/{identity}/queries", "k", json=body).status_code == 202
    curator.check()
    curator.close()
