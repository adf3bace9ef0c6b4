"""The site as `make docs` builds it, with all that needs running services: outputs of notebooks, examples of REST."""

import json
import os
import re
from importlib.util import find_spec

import jsonschema_rs
import pytest

from docs.website.rest import pages
from docs.website.tour import Example
from tests import processes
from tests.docs.site_checks import NOTEBOOKS, faults, unshown

BYTES = {"application/x-npy", "text/event-stream", "application/vnd.apache.parquet"}
"""Bodies that are no text, and streams whose schema is that of an event."""


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    done = processes.run("docs.website", str(folder), env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow(sibling="test_site.py::test_no_link_is_broken_and_nothing_comes_from_outside")
def test_no_link_is_broken_and_each_picture_is_there(out):
    assert faults(out / "site") == []


@pytest.mark.slow(sibling="test_notebooks.py::test_outputs_are_what_a_notebook_shows")
def test_each_notebook_runs_and_its_page_shows_every_output(out):
    texts = {path: (out / f"site-source/pages/notebooks/{path.stem}.md").read_text() for path in NOTEBOOKS}
    assert {path.stem: missing for path, content in texts.items() if (missing := unshown(path, content))} == {}
    own_loop = next(content for path, content in texts.items() if path.stem.startswith("c-"))
    assert ("BoTorch chooses." if find_spec("botorch") else "the product's optimizer chooses.") in own_loop
    first = next(content for path, content in texts.items() if path.stem.startswith("a-"))
    assert re.search(r"<caption>(Low|Notable) risk: ", first)  # each trial release is a draw


def wrong(document):
    """Operations without an example of a request or of a success, and examples that their schema refuses."""
    faults_found = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            success = min(status for status in operation["responses"] if status.startswith("2"))
            for body in (operation.get("requestBody", {}), operation["responses"][success]):
                contents = {kind: item for kind, item in body.get("content", {}).items() if kind not in BYTES}
                with_example = [item for item in contents.values() if "example" in item]
                if contents and not with_example:
                    faults_found.append(f"{method.upper()} {path}: no example")
                for item in with_example:
                    schema = item.get("schema", {}) | {"components": document["components"]}
                    if not jsonschema_rs.is_valid(schema, item["example"]):
                        faults_found.append(f"{method.upper()} {path}: an example that its schema refuses")
    return faults_found


@pytest.mark.slow(sibling="test_an_operation_without_a_right_example_is_found")
@pytest.mark.parametrize("service", ["curator", "modeler"])
def test_each_operation_has_examples_that_its_schema_accepts(out, service):
    document = json.loads((out / f"site/reference/{service}.openapi.json").read_text())
    assert wrong(document) == []
    written = "".join(path.read_text() for path in (out / f"site-source/pages/reference/{service}").glob("*.md"))
    operations = sum(len(methods) for methods in document["paths"].values())
    assert written.count("HTTP/1.1\n") >= operations - 2  # parts of a large release have none


def test_an_operation_without_a_right_example_is_found():
    sent = ("put", "/v1/runs/run_0123456789abcdef/labels", "application/json")
    right = Example(*sent, {"tags": ["a"]}, 200, "application/json", {})
    document = json.loads(pages({"modeler": [right]})["modeler.openapi.json"])
    named = [fault for fault in wrong(document) if "labels" in fault]
    assert named == ["PUT /v1/runs/{run_id}/labels: an example that its schema refuses"]  # of the reply alone
    assert "POST /v1/runs: no example" in wrong(document)
