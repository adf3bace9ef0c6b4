"""The reference of the Python library: complete, described, and with examples that run."""

import doctest
import inspect
import re

import numpy as np
import pytest

import blindopt as bo
from docs.website import python_api
from docs.website.python_api import described, entries, members, raised

ENTRIES = [(name, value) for name, value in entries() if not python_api._is_record(value)]
CALLS = [(f"{name}.{item}", member, value) for name, value in ENTRIES for item, member in members(value)]
EVERY = [(name, value, None) for name, value in ENTRIES] + CALLS
STORY = (
    *(
        "Owner",
        "UploadedFile",
        "Dataset",
        "Check",
        "Preview",
        "Forecast",
        "Draft",
        "ReleasedStudy",
        "Grant",
        "Study",
        "Vendor",
        "Offer",
        "Run",
    ),
    *("vendor.Comparison", "StudyAccount", "reports.DatasetAccount", "Message", "VerifiedLog", "auditing.Comparison"),
    *("Measurer", "Item"),
)
"""Classes whose examples need services, in the order in which their examples follow each other."""


@pytest.fixture(scope="module")
def page():
    return python_api.page({})


def test_all_that_owners_vendors_and_auditors_work_with_is_there(page):
    for name in (
        *("Dataset.study", "Draft.check", "Draft.preview", "Draft.forecast", "Draft.release", "ReleasedStudy.grant"),
        *("ReleasedStudy.account", "ReleasedStudy.report", "ReleasedStudy.messages", "Grant.save", "Forecast.plot"),
        *("Message.decide", "Item.answer", "Item.decline", "Moments", "vendor.Comparison", "auditing.Comparison"),
        *("VerifiedLog", "bo.Owner.close", "bo.Vendor.notices", "bo.Run.wait"),
    ):
        assert page.count(f"# `{name}`\n") == 1, name
    headings = re.findall(r"^##+ (.+)$", page, re.MULTILINE)
    assert len(headings) == len(set(headings))


def test_a_class_that_only_a_third_call_reaches_is_left_out():
    assert python_api.DEPTH == 2
    returned = dict(ENTRIES)
    assert {"Dataset", "Draft"} <= returned.keys()  # one call, and two
    assert "Difference" not in returned


def test_each_parameter_is_described(page):
    meanings = {name: described(value, owner) for name, value, owner in EVERY}
    assert {name: parameters for name, parameters in meanings.items() if not all(parameters.values())} == {}
    rows = re.findall(r"^\| `(\w+)` \| \S", page, re.MULTILINE)
    assert len(rows) > 250
    assert rows.count("client_cert") == 3  # of Owner, Vendor and Measurer


def test_a_parameter_that_nothing_describes_is_found():
    def call(first, second):
        """Take ``first``."""

    assert described(call) == {"first": "Take ``first``.", "second": ""}


def test_each_error_that_a_docstring_names_can_be_imported_and_is_in_the_reference(page):
    errors = set().union(*(raised(value) for _, value, _ in EVERY)) - {"IndexError"}
    assert {"Invalid", "LoopEnded", "StateConflict", "NumericalFailure", "LogBroken", "StillRunning"} <= errors
    for name in errors:
        assert issubclass(getattr(bo, name), bo.BlindoptError)
        assert f"## `bo.{name}`\n" in page


def test_signatures_have_true_defaults_and_named_types(page):
    assert '    name: str = "run",\n' in page
    assert '    algorithm: str | wire.AlgorithmChoice = "auto",\n' in page
    signatures = re.findall(r"^```python\n(\w+\(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(signatures) > 100
    assert max(len(line) for block in signatures for line in block.splitlines()) <= 120


def example_of(value):
    """The example in a docstring."""
    return "".join(item.source for item in doctest.DocTestParser().get_examples(inspect.getdoc(value) or ""))


def test_each_class_has_an_example():
    classes = [(name, value) for name, value in ENTRIES if inspect.isclass(value) and not issubclass(value, Exception)]
    assert [name for name, value in classes if not example_of(value)] == []
    skipped = {name.removeprefix("bo.") for name, value in classes if "+SKIP" in inspect.getdoc(value)}
    assert skipped == set(STORY)  # pytest runs the others


def test_the_examples_of_clients_run_one_after_another(make_service, modeler, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    curator = make_service("curator", tmp_path).start()  # whose inbox is empty
    rng = np.random.default_rng(1)
    area, built = rng.integers(40, 200, 400), rng.integers(1900, 2020, 400)
    rows = ("area_m2,built,price", *(f"{a},{b},{4 * a + b - 1900}" for a, b in zip(area, built, strict=True)))
    (tmp_path / "houses.csv").write_text("\n".join(rows), encoding="utf-8")
    names = {"bo": bo}
    values = {name.removeprefix("bo."): value for name, value in ENTRIES}
    for name in STORY:
        if name == "VerifiedLog":
            (tmp_path / "curator.jsonl").write_text(curator.run_in_process("audit", "export").stdout, encoding="utf-8")
        names["token"] = modeler.token if name == "Vendor" else curator.token
        content = example_of(values[name]).replace("https://curator.example", curator.url)
        exec(compile(content.replace("http://127.0.0.1:8420", modeler.url), name, "exec"), names)
    assert names["run"].recommendation.row in range(9)
    assert names["answer"].row == 3
    assert names["study"].account().row_epsilon == "1"
