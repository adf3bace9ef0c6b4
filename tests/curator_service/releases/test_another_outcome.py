"""Another outcome on stored candidates: a study that reads an earlier release uses epsilon for its answers alone."""

import io

import numpy as np
import pytest

from blindopt import wire
from blindopt.errors import LogBroken
from curator_service.releases.releases import Releases
from curator_service.store import studies as stored_studies
from tests.builders import group_release
from tests.curator_service.budget.file_of_records import FileOfRecords, spec_of
from tests.interventions import act_after

ANSWERS = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.2", value_bound=4.0)
CSV = b"a,b,y,u,v,w,x\n" + b"\n".join(b"%d,%d,%d,1,2,3,4" % (i % 3, i % 2, i % 4) for i in range(8)) + b"\n"
INBOX = wire.InboxMeasurement(question="How much?", direction="maximize")


@pytest.fixture
def file(tmp_path):
    file = FileOfRecords(tmp_path, csv=CSV)
    yield file
    file.close()


def column(name):
    return wire.ColumnMeasurement(column=name, direction="maximize")


def candidates(file, study):
    reply = file.in_process.send(study, "GET", f"/v1/studies/{study}/candidates")
    assert reply.status_code == 200, reply.text
    return np.load(io.BytesIO(reply.content))


def refusal(file, **changed):
    body = spec_of(file.dataset) | changed
    reply = file.in_process.send("owner", "POST", "/v1/studies", json=body)
    assert reply.status_code in (409, 422), reply.text
    return reply.json()


def test_five_outcomes_with_an_answer_each_use_2_in_place_of_6(file):
    source = file.study(answers=ANSWERS)
    studies = [source] + [file.study(answers=ANSWERS, release_of=source, measurement=column(name)) for name in "uvwx"]
    for study in studies:
        assert file.ask(study, file.row_of(study, 3)).status_code == 201
    account = file.account()
    assert (account.epsilon, account.everyone_epsilon, account.worst_record) == ("2", "1", 4)
    assert [(use.release_epsilon, use.release_of) for use in account.uses] == [("1", None), *[("0", source)] * 4]
    assert {use.answers_epsilon for use in account.uses} == {"0.2"}
    separate = file.study(answers=ANSWERS)  # the control: candidates of its own
    assert file.account().epsilon == "3"
    assert not np.array_equal(candidates(file, source), candidates(file, separate))


def test_the_bytes_and_the_order_are_the_stored_ones_and_a_later_reading_names_the_first(file):
    source = file.study()
    other = file.study(release_of=source)
    first, second = (file.in_process.call("owner", "GET", f"/v1/studies/{study}") for study in (source, other))
    assert first["release_sha256"] == second["release_sha256"]
    assert file.order(source) == file.order(other)
    assert np.array_equal(candidates(file, source), candidates(file, other))
    (released,) = (record for record in file.records("study.released") if record["study_id"] == other)
    assert (released["release_of"], released["source_id"]) == (source, first["release_id"])
    assert "name " + source in refusal(file, release_of=other)["detail"]
    gap = "Joined answers: the candidates of this study are also those of another one"
    vendor = file.in_process.call(other, "GET", f"/v1/studies/{other}")
    assert any(said.startswith(gap) for said in vendor["not_protected"])
    assert not any(said.startswith(gap) for said in first["not_protected"])
    assert any("Vendors of both can then join" in said for said in first["not_protected"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("features", [{"column": "a", "lower": 0.0, "upper": 4.0}]),
        ("features", [{"column": c, "lower": 0.0, "upper": 4.5} for c in "ab"]),
        ("features", [{"column": c, "lower": 0.0, "upper": 4.0, "hidden_change": 2.0} for c in "ab"]),
        ("release", {"mechanism": "planar_laplace", "epsilon": "0.5"}),
        ("release", {"mechanism": "auto", "epsilon": "1"}),
        ("release", {"mechanism": "planar_laplace", "epsilon": "1", "delta": 1e-6}),
        ("release", {"mechanism": "planar_laplace", "epsilon": "1", "rotate": True}),
        ("rows_per_person", 2),
    ],
)
def test_all_that_made_the_candidates_is_inherited(file, field, value):
    source = file.study()
    said = refusal(file, **{"release_of": source, field: value})
    assert [fault["field"] for fault in said["errors"]] == [field]


def test_a_feature_is_no_outcome_and_another_registration_is_not_this_one(file):
    source = file.study()
    assert refusal(file, release_of=source, measurement={"column": "a", "direction": "maximize"})["errors"]
    again = file.register()
    assert refusal(file, release_of=source, dataset_id=again)["errors"][0]["field"] == "dataset_id"
    assert refusal(file, release_of="std_0123456789abcdef")["errors"][0]["field"] == "release_of"
    assert refusal(file, release_of=file.draft())["code"] == "state_conflict"


def test_a_release_that_promises_nothing_is_not_read_again(tmp_path):
    refuted = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1", delta=1e-6, r=1, acknowledge_refuted=True)
    file = FileOfRecords(tmp_path, csv=CSV)
    source = file.study(release=refuted)
    assert "refuted" in refusal(file, release_of=source, release=refuted.model_dump(mode="json"))["detail"]
    file.close()


def test_withheld_persons_are_cut_and_the_numbers_of_the_others_follow(file):
    source = file.study(answers=ANSWERS)
    file.in_process.call("owner", "POST", f"/v1/datasets/{file.dataset}:withhold", json={"record": 4})
    other = file.study(answers=ANSWERS, release_of=source)
    order, cut = file.order(source), file.order(other)
    assert cut == [record for record in order if record != 3]
    stays = [row for row, record in enumerate(order) if record != 3]
    assert np.array_equal(candidates(file, other), candidates(file, source)[stays])
    for study in (source, other):
        assert file.ask(study, file.row_of(study, 5)).status_code == 201
    assert (file.account().epsilon, file.account().worst_record) == ("1.4", 6)
    file.in_process.call("owner", "POST", f"/v1/datasets/{file.dataset}:withhold", json={"record": 6})
    reply = file.ask(other, row := file.row_of(other, 5)).json()
    assert (reply["answers"], reply["declined"]) == ([], [row])


@pytest.mark.parametrize("step", ["_in_secret_order", "_source"])
def test_a_record_that_is_withheld_between_two_reads_of_a_release_leaves_no_candidate_too_many(file, monkeypatch, step):
    source, withheld = file.study(answers=ANSWERS), []
    study = file.draft(answers=ANSWERS, release_of=source)

    def withhold(*_):
        if not withheld:
            path = f"/v1/datasets/{file.dataset}:withhold"
            withheld.append(file.in_process.call("owner", "POST", path, json={"record": 4}))

    act_after(monkeypatch, Releases, step, withhold)
    reply = file.release(study)
    assert withheld
    assert (reply.status_code, reply.json()["code"]) == (409, "state_conflict"), reply.text
    assert file.release(study).status_code == 200
    view = file.in_process.call("owner", "GET", f"/v1/studies/{study}")
    assert view["report"]["n"] == len(file.order(study)) == len(file.order(source)) - 1


def test_a_cap_on_the_file_counts_the_release_once_and_own_caps_count_it(file):
    source = file.study(answers=ANSWERS)
    assert file.caps("1.4").status_code == 200
    capped = wire.Budget(epsilon_per_row="1.2")
    other = file.study(answers=ANSWERS, release_of=source, budget=capped)  # a release of its own would be refused
    assert file.release(file.draft(answers=ANSWERS)).status_code == 403
    row = file.row_of(other, 2)
    assert file.ask(other, row).status_code == 201
    assert file.ask(other, row).json()["code"] == "privacy_budget_exhausted"  # 1 + 0.2 of its own
    assert file.ask(source, file.row_of(source, 2)).status_code == 201
    assert file.ask(source, file.row_of(source, 2)).status_code == 403  # 1.4 of the file
    checked = file.in_process.call("owner", "POST", "/v1/studies:check", json=spec_of(file.dataset, release_of=source))
    assert (checked["account"]["with_epsilon"], checked["account"]["problem"]) == ("1.4", None)


def test_groups_add_up_the_answers_of_all_studies_by_group(file):
    """Theorem C, by hand: numbers 0.5, once; answers of 0.4 about groups 0 and 1; 0.5 + (e_0 + e_1) / 2, or e_j."""
    answers = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.4", value_bound=4.0)
    release = group_release("0.5", parts=(3, 1), min_count=1)
    source = file.study(release=release, answers=answers)
    other = file.study(release=release, answers=answers, release_of=source, measurement=column("u"))
    assert file.account().epsilon == "0.5"
    count = len(candidates(file, source))
    assert np.array_equal(candidates(file, source), candidates(file, other))
    for study, row, epsilon in ((source, 0, "0.7"), (other, 0, "0.9"), (other, 0, "1.2"), (source, 0, "1.6")):
        assert file.ask(study, row).status_code == 201
        assert file.account().epsilon == epsilon
    if count > 1:
        assert file.ask(other, 1).status_code == 201
        assert file.account().epsilon == "1.6"  # 0.5 + (1.6 + 0.4) / 2 is 1.5


def test_where_each_answer_is_another_persons_the_dearest_of_each_study_adds_up(file):
    dear = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.7", value_bound=4.0)
    others = {"measurement": INBOX, "privacy_unit": "answer", "answers": dear}
    source = file.study(**others)
    studies = [source, *(file.study(release_of=source, **others) for _ in range(2))]
    for study, epsilon in zip(studies, ("1", "1.4", "2.1"), strict=True):  # max(1, 0.7 k)
        assert file.ask(study, 0).status_code in (201, 202)
        assert file.account().epsilon == epsilon


def test_an_erasure_takes_both_and_the_figures_stay(file):
    source = file.study(answers=ANSWERS)
    other = file.study(answers=ANSWERS, release_of=source)
    for study in (source, other):
        file.ask(study, file.row_of(study, 1))
    assert file.account().epsilon == "1.4"
    for study in (source, other):
        file.in_process.call("owner", "POST", f"/v1/studies/{study}:close")
    file.in_process.call("owner", "POST", f"/v1/datasets/{file.dataset}:archive")
    file.in_process.call("owner", "POST", f"/v1/datasets/{file.dataset}:erase")
    assert file.account().epsilon == "1.4"
    assert not list(file.in_process.settings.data_dir.glob("files/rel_*"))
    body = spec_of(file.dataset, release_of=source)
    assert file.in_process.send("owner", "POST", "/v1/studies", json=body).status_code in (409, 410, 422)


def test_what_the_log_says_of_the_reading_is_checked(file):
    source = file.study()
    other = file.study(release_of=source)
    with file.in_process.context.database.read() as db:
        (row,) = [r for r in db.execute(stored_studies.select()) if r.id == other]
    forged = row.spec.replace(f'"release_of":"{source}"', '"release_of":null')
    assert forged != row.spec

    def change(spec):
        def work(db):
            db.execute(stored_studies.update().where(stored_studies.c.id == other).values(spec=spec))

        file.in_process.context.database.write(work)

    change(forged)
    with pytest.raises(LogBroken):
        file.in_process.check()
    change(row.spec)


def test_a_stored_file_that_was_changed_is_not_read(file):
    source = file.study()
    release = file.in_process.call("owner", "GET", f"/v1/studies/{source}")["release_id"]
    path = file.in_process.curator.vault.candidates(release)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    reply = file.release(file.draft(release_of=source))
    assert reply.json()["code"] == "record_changed", reply.text
    path.write_bytes(content)
