"""What a tuning promises decides what the account of its file says: in the worst case, on average, or nothing."""

import pytest

from blindopt import wire
from curator_service.budget import table, views
from curator_service.budget.ledger import Account
from service_kit.store import audit_log
from tests.curator_service.budget.file_of_records import FileOfRecords, spec_of

SCORER = {"scorer_url": "http://127.0.0.1:9/score"}
PRIOR = {"lengthscale": 1.0, "one_minus_k1": 0.01, "evaluations": 2}
BUILT_IN = {
    "kind": "logistic",
    "features": [{"column": "a", "lower": 0.0, "upper": 4.0, "scale": 4.0}],
    "label": "b",
    "loss": "zero_one",
}
TUNINGS = {
    "estimated": ({"name": "gp_design", "prior": PRIOR | {"estimated": ["lengthscale"]}}, None, "none"),
    "noise": ({"name": "gp_ucb_simulated", "prior": PRIOR | {"noise": "own"}, "pairs": 1500}, BUILT_IN, "none"),
    "ordinary": ({"name": "gp_design", "prior": PRIOR}, None, "prior_average"),
    "grid": ({"name": "grid_exponential"}, None, "worst_case"),
    "design": ({"name": "gp_design", "prior": PRIOR, "charge": "worst_case"}, None, "worst_case"),
}
"""Method, score (None: one over HTTP), and what its guarantee is."""


@pytest.fixture
def file(tmp_path):
    secret = tmp_path / "scorer.key"
    secret.write_bytes(b"k" * 40)
    opened = FileOfRecords(tmp_path / "curator", scorer_secret_file=secret, **SCORER)
    opened.in_process.curator.tunings._submit = lambda identity, name: None
    yield opened
    opened.close()


def _tuning(file, method, score, epsilon="2", delta=0.02, caps=None):
    http = {"kind": "http", "model": "m", "lower": 0.0, "upper": 1.0}
    axis = {"name": "depth", "values": [1.0, 2.0]} if score is None else {"name": "lambda", "values": [0.1, 1.0]}
    if score is not None:
        other = b"a,b\n" + b"\n".join(b"%d,%d" % (i % 4, i % 2) for i in range(9)) + b"\n"
        score = score | {"training_dataset_id": file.in_process.register(other, public=True)}
    return {
        "name": "t",
        "grid": [axis],
        "score": score or http,
        "validation_dataset_id": file.dataset,
        "method": method,
        "budget": {"epsilon": epsilon, "delta": 0.0 if method["name"] == "grid_exponential" else delta},
        "caps": caps or {"epsilon": "100", "delta": 0.5},
    }


def _tune(file, name, **more):
    method, score, _ = TUNINGS[name]
    return file.in_process.send("owner", "POST", "/v1/tunings", json=_tuning(file, method, score, **more))


def _report(file):
    return file.in_process.call("owner", "POST", f"/v1/datasets/{file.dataset}:report")["report"]


@pytest.mark.parametrize("name", ["estimated", "noise"])
def test_a_tuning_without_a_guarantee_leaves_no_bound_and_no_cap(file, name):
    reply = _tune(file, name)
    assert reply.status_code == 202, reply.text
    assert reply.json()["report"]["guarantee"].startswith("None: ")
    account = file.account()
    assert (account.epsilon, account.on_average, account.everyone_epsilon) == (None, None, None)
    assert [(use.kind, use.guarantee_kind, use.epsilon) for use in account.unbounded] == [("tuning", "none", None)]
    assert "at most" not in account.sentence
    assert "at most" not in _report(file)["verdict"]
    assert file.caps("10").status_code == 409


def test_a_tuning_on_average_is_a_line_of_its_own(file):
    assert _tune(file, "ordinary").status_code == 202
    account = file.account()
    assert (account.epsilon, account.delta, account.unbounded) == ("0", "0", [])
    assert account.on_average == wire.OnAverage(epsilon="2", delta="0.02", tunings=1)
    words = "Not in this figure: 1 tuning, which promises (2, 0.02) on average over its prior, and nothing in the worst"
    assert "at most epsilon 0, over 0 studies." in account.sentence
    assert words in account.sentence
    report = _report(file)
    assert "at most epsilon 0, over 0 uses." in report["verdict"]
    assert words in report["verdict"]
    outlook = file.in_process.call("owner", "POST", "/v1/studies:check", json=spec_of(file.dataset))["account"]
    assert (outlook["spent_epsilon"], outlook["with_epsilon"]) == ("0", "1")
    assert words in outlook["sentence"]
    refusal = file.caps("10")
    assert refusal.status_code == 409
    assert "1 tuning is private on average" in refusal.json()["detail"]
    assert _tune(file, "grid").status_code == 409  # its caps could not hold


def test_a_tuning_on_average_is_bounded_by_its_own_caps_alone(file):
    """And never with a cap on the account, which its sum cannot satisfy."""
    assert _tune(file, "ordinary", caps={"epsilon": "3"}).status_code == 202
    refusal = _tune(file, "ordinary", caps={"epsilon": "3"})
    assert (refusal.status_code, refusal.json()["budget"]["cap"]) == (403, "caps.epsilon")
    assert _tune(file, "ordinary", caps={"epsilon": "4"}).status_code == 202
    assert file.account().on_average == wire.OnAverage(epsilon="4", delta="0.04", tunings=2)


def test_with_a_cap_on_the_account_only_worst_cases_are_tuned(file):
    assert file.caps("10", 0.1).status_code == 200
    assert [_tune(file, name).status_code for name in ("ordinary", "estimated", "noise", "grid")] == [409] * 3 + [202]
    assert (file.account().epsilon, file.account().cap_epsilon) == ("2", "10")


def test_a_fixed_design_that_is_charged_its_worst_case_is_counted_and_capped(file):
    """Records are 6, so that g*/m is large: the figure is more than 2, and without a delta."""
    reply = _tune(file, "design")
    assert reply.status_code == 202, reply.text
    report, account = reply.json()["report"], file.account()
    assert float(report["epsilon"]) > 2
    assert (account.epsilon, account.delta, account.on_average) == (report["epsilon"], "0", None)
    assert f"at most epsilon {report['epsilon']}, over 1 tuning." in account.sentence
    assert file.caps(report["epsilon"], raise_caps=True, reason="more").status_code == 200
    assert _tune(file, "design").status_code == 403


def test_the_log_and_the_line_have_the_kind_of_each_charge(file):
    for name in ("ordinary", "estimated"):
        assert _tune(file, name).status_code == 202
    bounds = {"columns": [{"column": "a", "outer": [0.0, 8.0]}], "quantiles": [0.25, 0.75], "epsilon": "1"}
    file.in_process.call("owner", "POST", f"/v1/datasets/{file.dataset}:bounds", json=bounds)
    kinds = ["prior_average", "none", "worst_case"]
    assert [each["guarantee_kind"] for each in file.records("tuning.started", "bounds.started")] == kinds
    assert [use.guarantee_kind for use in file.account().uses] == kinds
    assert [use.total_epsilon for use in file.account().uses] == ["2", "4", "5"]


def test_a_line_of_an_earlier_version_has_the_kind_of_its_tuning(file, monkeypatch):
    """Without the column, and without the detail in the log, as version 0.3.0 wrote both; its caps were the account's.

    The database verifies, an open study goes on, and nothing new is charged under those caps.
    """
    study = file.study()
    add, append = table.add_to_account, audit_log.append
    monkeypatch.setattr(table, "add_to_account", lambda *args, guarantee_kind=None, **more: add(*args, **more))

    def without_a_kind(*args, details, **more):
        return append(*args, details={k: v for k, v in details.items() if k != "guarantee_kind"}, **more)

    monkeypatch.setattr(audit_log, "append", without_a_kind)

    def as_before(self, caps, kind):
        return self if caps is None else self.lowered(caps)

    monkeypatch.setattr(Account, "before", as_before)
    assert _tune(file, "ordinary").status_code == 202
    account = file.account()
    assert (account.epsilon, account.on_average) == ("1", wire.OnAverage(epsilon="2", delta="0.02", tunings=1))
    assert "guarantee_kind" not in file.records("tuning.started")[0]
    file.in_process.check()
    monkeypatch.undo()
    assert (file.account().cap_epsilon, file.ask(study, 0).status_code) == ("100", 201)
    assert _tune(file, "grid").status_code == 409
    assert file.caps(None, raise_caps=True, reason="they cannot hold").status_code == 200
    assert _tune(file, "estimated").status_code == 202
    assert file.account().epsilon is None


@pytest.mark.parametrize(
    ("words", "kind"), [("Worst case: 1-", "worst_case"), ("On average over", "prior_average"), ("None: the", "none")]
)
def test_a_stored_report_without_a_kind_has_that_of_its_first_words(words, kind):
    assert wire.TuningReport._without_a_kind({"guarantee": words}) == {"guarantee": words, "guarantee_kind": kind}
    assert wire.TuningReport._without_a_kind({"guarantee": "else"})["guarantee_kind"] == "none"


def test_the_control_a_kind_that_is_always_worst_case_certifies_what_is_not_promised(file, monkeypatch):
    """With the kind taken out, a tuning without a guarantee is in "at most", and a cap seems to hold."""
    tunings = file.in_process.curator.tunings
    plan, always = tunings._plan, {"guarantee_kind": "worst_case"}
    monkeypatch.setattr(tunings, "_plan", lambda job: plan(job).model_copy(update=always))
    assert _tune(file, "estimated").status_code == 202
    assert "at most epsilon 2 with delta 0.02" in file.account().sentence
    assert file.caps("10", 0.5).status_code == 200


def test_the_account_is_printed_from_its_statements(file):
    """Every use is counted in one statement and named in the other, and what it rests on is in the sentence."""
    study = file.study()
    file.ask(study, 0)
    assert _tune(file, "ordinary").is_success
    bounds = {"columns": [{"column": "a", "outer": [0.0, 8.0]}], "quantiles": [0.25, 0.75], "epsilon": "2"}
    file.in_process.call("owner", "POST", f"/v1/datasets/{file.dataset}:bounds", json=bounds)
    account, kinds = file.account(), ("worst_case", "prior_average")
    worst, average = account.statements
    by_kind = {kind: [use.seq for use in account.uses if use.guarantee_kind == kind] for kind in kinds}
    assert (worst.unit, worst.guarantee_kind, worst.epsilon, worst.delta) == ("record", "worst_case", "3.5", "0")
    assert (average.guarantee_kind, average.epsilon, average.delta) == ("prior_average", "2", "0.02")
    assert (worst.uses, worst.not_counted) == (by_kind["worst_case"], by_kind["prior_average"])
    assert (average.uses, average.not_counted) == (worst.not_counted, worst.uses)
    assert "moved by at most the hidden change of each study" in worst.relation
    assert any("the owner's program, which promises" in words for words in worst.rests_on)
    said = "Each record of this file has used at most epsilon 3.5, over 1 study and 1 request for private bounds."
    assert account.sentence.startswith(f"{said} Not in this figure: 1 tuning, which promises (2, 0.02) on average")
    assert account.sentence.endswith(" ".join(worst.rests_on))
    other = worst.model_copy(update={"epsilon": "9", "uses": worst.uses[:1], "rests_on": ["Control."]})
    printed = views.in_words([other, average], account.uses, None)  # the control: all is from the statements
    assert printed.startswith("Each record of this file has used at most epsilon 9, over 1 study.")
    assert printed.endswith("in the worst case. Control.")
    assert views.in_short([other, average]).startswith("Bounded: each record has used at most epsilon 9, over 1")


def test_a_statement_over_a_use_without_a_guarantee_bounds_nothing(file):
    assert _tune(file, "estimated").is_success
    (only,) = file.account().statements
    assert (only.guarantee_kind, only.epsilon, only.delta) == ("none", None, None)
