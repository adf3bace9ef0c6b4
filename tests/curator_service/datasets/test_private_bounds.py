"""Private bounds over REST: one charge and one draw for a key, whatever crashes; nothing of the records in the log."""

import json
from contextlib import closing, contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import LogBroken
from curator_service.datasets import private_bounds
from curator_service.privacy.quantiles import Outer
from service_kit.store import audit_log
from tests import beside
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator

ROWS = 400
AGES = np.random.default_rng(3).normal(50.123456, 10, ROWS)
CSV = ("age,same\n" + "".join(f"{age!r},7.5\n" for age in AGES.tolist())).encode()
OUTER = [{"column": "age", "outer": [0.0, 128.0]}, {"column": "same", "outer": [0.0, 30.0]}]
BODY = {"columns": OUTER, "epsilon": "40"}


@pytest.fixture
def curator(tmp_path):
    curator = InProcessCurator(tmp_path)
    yield curator
    curator.check()  # as `audit verify` does: the account is that of the log
    curator.close()


@pytest.fixture
def dataset(curator):
    return curator.register(CSV)


def find(curator, dataset, body=BODY, key=None, role="owner"):
    return curator.send(role, "POST", f"/v1/datasets/{dataset}:bounds", key=key, json=body)


def listed(curator, dataset):
    return curator.call("owner", "GET", f"/v1/datasets/{dataset}/bounds")["bounds"]


def charges(curator, dataset):
    uses = curator.call("owner", "GET", f"/v1/datasets/{dataset}/account")["uses"]
    return [use for use in uses if use["kind"] == "bounds"]


def log_records(curator):
    with curator.context.database.read() as db:
        return [entry.record for entry in audit_log.walk(db)]


def test_bounds_are_drawn_within_the_outer_range_charged_and_public(curator, dataset):
    reply = find(curator, dataset)
    assert reply.status_code == 200, reply.text
    bounds = wire.PrivateBounds.model_validate_json(reply.content)
    age, same = bounds.columns
    assert (bounds.state, bounds.epsilon, bounds.unit) == ("drawn", "40", "record")
    assert bounds.quantiles == [0.01, 0.99] or bounds.quantiles[0] == pytest.approx(1 - bounds.quantiles[1])
    assert 0 < bounds.rank_error < 4
    assert abs(age.lower - np.quantile(AGES, bounds.quantiles[0])) < 10
    assert abs(age.upper - np.quantile(AGES, bounds.quantiles[1])) < 10
    assert np.isin(age.quantiles, Outer(0.0, 128.0).candidates).all()
    assert same.quantiles == [7.5, 7.5]  # a candidate, that all records share
    assert (same.lower, same.upper) == (7.5 - 30 / 128, 7.5 + 30 / 128)  # a study needs room between its bounds
    assert "40-differential privacy of each record" in bounds.guarantee
    assert listed(curator, dataset) == [json.loads(reply.content)]
    (charge,) = charges(curator, dataset)
    assert (charge["bounds_id"], charge["epsilon"], charge["delta"]) == (bounds.id, "40", "0")


def test_the_log_has_the_charge_and_the_release_and_no_value_of_a_record(curator, dataset):
    bounds = find(curator, dataset, BODY | {"epsilon": "40.00"}).json()
    curator.check()
    started, released = [r for r in log_records(curator) if r["kind"].startswith("bounds.")]
    assert (started["kind"], released["kind"]) == ("bounds.started", "bounds.released")
    of_both = {"bounds_id": bounds["id"], "dataset_id": dataset}
    charge = {"account": dataset, "epsilon": "40", "delta": "0", "guarantee_kind": "worst_case"}
    assert started["details"] == of_both | charge
    assert released["details"] == of_both


def test_bounds_whose_epsilon_an_older_log_has_as_it_was_typed_verify(curator, dataset, monkeypatch):
    """Version 0.2.0 logged "5.0" and charged 5; another price is found in such a log, too."""
    append = audit_log.append

    def as_typed(db, kind, *, details, **more):
        typed = {"epsilon": f"{details['epsilon']}.0"} if kind == "bounds.started" else {}
        return append(db, kind, details=details | typed, **more)

    monkeypatch.setattr(audit_log, "append", as_typed)
    bounds = find(curator, dataset, BODY | {"epsilon": "5.0"}).json()
    (started,) = [r for r in log_records(curator) if r["kind"] == "bounds.started"]
    assert started["details"]["epsilon"] == "5.0"
    curator.check()
    change = """UPDATE bounds SET spec = replace(spec, '"epsilon": "{}"', '"epsilon": "{}"')"""
    with closing(beside.connect(curator.context.database.path)) as db:
        db.execute(change.format("5.0", "9.0"))
        db.commit()
        with pytest.raises(LogBroken, match=f"bounds {bounds['id']} is not what the log says"):
            curator.check()
        db.execute(change.format("9.0", "5.0"))
        db.commit()


def test_the_same_request_again_gets_the_same_bytes_for_one_charge(curator, dataset):
    first, again = (find(curator, dataset, key="k") for _ in range(2))
    assert first.content == again.content
    assert len(charges(curator, dataset)) == 1
    assert find(curator, dataset, BODY | {"epsilon": "1"}, key="k").status_code == 422
    other = find(curator, dataset, key="another")
    assert other.json()["id"] != first.json()["id"]
    assert len(charges(curator, dataset)) == 2


@pytest.fixture
def replaced(monkeypatch):
    """A function that replaces a part of the search for bounds while its context is open."""

    @contextmanager
    def replace(part, by):
        with monkeypatch.context() as patch:
            patch.setattr(private_bounds, part, by)
            yield

    return replace


@pytest.mark.parametrize("part", ["private_quantiles", "view_of"])
def test_after_a_crash_between_charge_and_result_a_retry_draws_and_is_not_charged(part, curator, dataset, replaced):
    """Before the draw, or after it and before its result is stored: then the first draw is shown to nobody."""

    def crash(*args, **kwargs):
        raise RuntimeError

    with replaced(part, crash):
        assert find(curator, dataset, key="k").status_code == 500
    (waiting,) = listed(curator, dataset)
    assert (waiting["state"], waiting["columns"]) == ("interrupted", [])
    assert len(charges(curator, dataset)) == 1
    assert find(curator, dataset, BODY | {"epsilon": "1"}, key="k").status_code == 422  # not what was charged
    reply = find(curator, dataset, key="k")
    assert reply.status_code == 200, reply.text
    assert (reply.json()["id"], reply.json()["state"]) == (waiting["id"], "drawn")
    assert find(curator, dataset, key="k").content == reply.content
    assert len(charges(curator, dataset)) == 1


def test_of_two_draws_for_one_charge_one_is_shown(curator, dataset, replaced):
    """The same request twice at once: the second ends while the first draws."""
    draw, replies = private_bounds.private_quantiles, []

    def twice(*args):
        if not replies:
            replies.append(None)
            replies[0] = find(curator, dataset, BODY | {"epsilon": "0.01"}, key="k")
        return draw(*args)

    with replaced("private_quantiles", twice):
        reply = find(curator, dataset, BODY | {"epsilon": "0.01"}, key="k")
    assert reply.content == replies[0].content
    assert len(charges(curator, dataset)) == 1


def test_a_cap_of_the_account_refuses_and_nothing_is_drawn(curator, dataset, replaced):
    caps = {"epsilon": "1", "delta": None}
    curator.call("owner", "PUT", f"/v1/datasets/{dataset}/account/caps", json=caps)
    with replaced("private_quantiles", None):
        reply = find(curator, dataset)
    assert (reply.status_code, reply.json()["code"]) == (403, "privacy_budget_exhausted")
    assert listed(curator, dataset) == []
    assert charges(curator, dataset) == []


def test_a_file_that_is_registered_again_shows_the_same_bounds_and_has_the_same_account(curator, dataset):
    bounds = find(curator, dataset).json()
    other = curator.register(CSV)
    assert listed(curator, other) == [bounds]
    assert len(charges(curator, other)) == 1


def test_withheld_records_are_not_read(curator, dataset, replaced):
    seen = []
    draw = private_bounds.private_quantiles
    curator.call("owner", "POST", f"/v1/datasets/{dataset}:withhold", json={"record": 3})
    with replaced("private_quantiles", lambda values, *rest: seen.append(values) or draw(values, *rest)):
        assert find(curator, dataset).status_code == 200
    assert seen[0].shape == (ROWS - 1, 2)
    np.testing.assert_array_equal(seen[0][:, 0], np.delete(AGES, 2))


def test_bounds_that_a_record_was_withheld_from_meanwhile_are_drawn_again_under_one_charge(curator, dataset, replaced):
    def withheld_meanwhile(values, *rest):
        curator.call("owner", "POST", f"/v1/datasets/{dataset}:withhold", json={"record": 3})
        return np.zeros((2, 2))

    with replaced("private_quantiles", withheld_meanwhile):
        refused = find(curator, dataset, key="k")
    assert (refused.status_code, "withheld" in refused.json()["detail"]) == (409, True)
    assert listed(curator, dataset)[0]["columns"] == []
    assert find(curator, dataset, key="k").status_code == 200
    assert len(charges(curator, dataset)) == 1


def test_of_persons_with_several_rows_the_noise_is_for_all_of_them():
    wanted = wire.BoundsCreate.model_validate_json(json.dumps(BODY | {"epsilon": "0.4"}))
    persons = SimpleNamespace(person_column="patient", rows_per_person=3)
    records = SimpleNamespace(person_column=None, rows_per_person=None)
    specs = [private_bounds.spec_of(wanted, dataset, 10_000, "d") for dataset in (records, persons)]
    assert [(spec["unit"], spec["records"]) for spec in specs] == [("record", 1), ("person", 3)]
    assert specs[1]["quantiles"][0] == pytest.approx(3 * specs[0]["quantiles"][0], abs=0.002)
    row = SimpleNamespace(
        id="bnd_1", dataset_id="ds_1", spec=json.dumps(specs[1]), result=None, created_at="2026-01-01T00:00:00Z"
    )
    view = private_bounds.view_of(row)
    assert "each person, with up to 3 records" in view.guarantee
    assert view.rank_error == pytest.approx(3 * 2 / 0.1 * np.log(129 / 0.05))


def test_a_dataset_with_a_person_column_has_bounds_for_persons(curator):
    rows = "".join(f"{i % 150},{20 + i % 50}\n" for i in range(ROWS))
    dataset = curator.register(f"patient,age\n{rows}", person="patient", rows_per_person="2")
    reply = find(curator, dataset, {"columns": OUTER[:1], "epsilon": "0.5"})
    assert reply.status_code == 200, reply.text
    bounds = reply.json()
    assert bounds["unit"] == "person"
    assert "each person, with up to 2 records" in bounds["guarantee"]
    assert bounds["rank_error"] == pytest.approx(2 * 2 / 0.25 * np.log(129 / 0.05))
    account = curator.call("owner", "GET", f"/v1/datasets/{dataset}/account")
    assert (account["unit"], account["epsilon"]) == ("person", "0.5")
    assert "at most epsilon 0.5, over 1 request for private bounds." in account["sentence"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"columns": [{"column": "none", "outer": [0.0, 1.0]}]}, "columns.0.column"),
        ({"columns": [{"column": "age", "outer": [1.0, 1.0]}]}, "columns.0"),
        ({"columns": [{"column": "age", "outer": [1.0]}]}, "columns.0.outer"),
        ({"columns": [{"column": "age", "outer": [0.0, 1.0]}] * 2}, ""),
        ({"columns": []}, "columns"),
        ({"quantiles": [0.9, 0.1]}, ""),
        ({"quantiles": [0.0, 0.1]}, "quantiles.0"),
        ({"epsilon": "0"}, "epsilon"),
    ],
)
def test_requests_that_make_no_sense_are_refused_before_anything_is_charged(change, field, curator, dataset):
    reply = find(curator, dataset, BODY | change)
    assert reply.status_code == 422
    assert field in [error["field"] for error in reply.json()["errors"]] or not field
    assert charges(curator, dataset) == []


def test_more_values_than_a_request_may_read_are_refused(curator, dataset, monkeypatch):
    replies = []
    for most in (4 * ROWS - 1, 4 * ROWS):
        monkeypatch.setattr(wire, "BOUNDS_VALUES_MAX", most)
        replies.append(find(curator, dataset))
    refused, drawn = replies
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "columns")
    assert drawn.status_code == 200


def test_an_archived_dataset_and_an_unknown_one_are_refused(curator, dataset):
    curator.call("owner", "POST", f"/v1/datasets/{dataset}:archive")
    assert find(curator, dataset).status_code == 409
    assert find(curator, "ds_0000000000000000").status_code == 404
