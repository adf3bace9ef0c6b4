"""Folders that services of version 0.1.0 left: they open, verify, replay, and give the same bytes to a retry.

``tests/data/version_0_1_0.tar.xz`` holds both data folders after a run with private answers and a query that people
answered and corrected, and ``expected.json`` what a modeler was sent. Its tokens are valid for ten years.
"""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from blindopt import wire
from blindopt.client import StudyClient, Vendor
from tests import postgres

SNAPSHOT = Path(__file__).parents[2] / "data" / "version_0_1_0.tar.xz"


@pytest.fixture(scope="module")
def parties(make_service, tmp_path_factory):
    """Curator and modeler on the folders of 0.1.0, not started, and what 0.1.0 sent."""
    folder = tmp_path_factory.mktemp("version_0_1_0")
    with tarfile.open(SNAPSHOT) as archive:
        archive.extractall(folder, filter="data")
    services = make_service("curator", folder), make_service("modeler", folder)
    for service in services if postgres.ON else ():  # into the empty tables of each
        moved = service.run("database", "move")
        assert moved.returncode == 0, moved.stderr
    return *services, json.loads((folder / "expected.json").read_text())


@pytest.fixture(scope="module")
def serving(parties):
    """Both services, serving these folders."""
    curator, modeler, expected = parties
    return curator.start(), modeler.start(), expected


def test_the_same_request_gets_the_bytes_that_version_0_1_0_sent(serving):
    curator, _, expected = serving
    query = wire.QueryRequest.model_validate({"rows": [{"row": expected["row"]}]})
    with StudyClient(curator.url, expected["grant_token"], expected["study"]) as client:
        _, reply = client.ask(query, key=expected["key"])
    assert reply.body.decode() == expected["reply"]


def test_a_corrected_answer_is_read_as_it_was(serving):
    curator, _, expected = serving
    with curator.http(expected["inbox_token"]) as modeler:
        answered = modeler.get(f"/v1/studies/{expected['inbox_study']}/queries/{expected['query']}")
    assert (answered.status_code, answered.text) == (200, expected["inbox_reply"])


def test_a_run_is_replayed_exported_and_recommended_from(serving):
    _, modeler, expected = serving
    replayed = modeler.run("replay", expected["run"])
    assert (replayed.returncode, replayed.stderr) == (0, "")
    token = modeler.run("token", "create", "--name", "later").stdout.strip()
    with Vendor(modeler.url, token) as vendor:
        assert [trial.row for trial in vendor.export(expected["run"]).trials] == expected["rows"]
        assert np.isfinite(vendor.recommendation(expected["run"]).mean)


def test_both_logs_verify_and_tell_the_same(serving, tmp_path):
    curator, modeler, expected = serving
    exports = []
    for service in (curator, modeler):
        verified = service.run("audit", "verify")
        assert verified.returncode == 0, verified.stderr
        exported = service.run("audit", "export")
        exports.append(tmp_path / f"{service.name}.jsonl")
        exports[-1].write_text(exported.stdout)
    reconciled = curator.run("audit", "reconcile", expected["study"], *map(str, exports))
    *differences, summary = reconciled.stdout.splitlines()
    assert summary.startswith(("11 exchanges", "12 exchanges")), reconciled.stderr
    # The query beside the run, and its retry by a test above, are in the curator's copy alone.
    assert [line for line in differences if "only the curator has it" not in line] == []
