"""Another outcome on stored candidates: a study that reads an earlier release uses epsilon for its answers alone."""

import io

import numpy as np
import pytest

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import LogBroken
from curator_service.store import studies as stored_studies
from curator_service.studies import grants
from tests.builders import group_release
from tests.curator_service.budget.file_of_records import FileOfRecords, spec_of

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


def withhold(file, record):
    file.in_process.call("owner", "POST", f"/v1/datasets/{file.dataset}:withhold", json={"record": record + 1})


def test_who_was_withheld_is_left_out_of_what_a_grant_gets_and_numbers_stay(file):
    source = file.study(answers=ANSWERS)
    withhold(file, 3)
    other = file.study(answers=ANSWERS, release_of=source)
    assert file.order(other) == file.order(source)  # one number is one record in both studies
    left_out = file.row_of(source, 3)
    expected = candidates(file, source)
    assert expected.all()
    expected[left_out] = 0
    assert np.array_equal(candidates(file, other), expected)
    view = file.in_process.call(other, "GET", f"/v1/studies/{other}")
    assert (view["left_out"], view["n"]) == ([left_out], len(expected))
    for study in (source, other):
        assert file.ask(study, file.row_of(study, 5)).status_code == 201
        assert file.ask(study, left_out).json()["declined"] == [left_out]
    assert (file.account().epsilon, file.account().worst_record) == ("1.4", 6)


def test_who_is_withheld_after_the_copy_is_left_out_of_what_a_later_grant_gets(file):
    source = file.study(answers=ANSWERS)
    other = file.study(answers=ANSWERS, release_of=source)
    withhold(file, 4)
    file.in_process.grant(other, "later")
    withhold(file, 6)
    file.in_process.grant(other, "latest")
    file.in_process.tokens["later again"] = file.in_process.call(
        "owner", "POST", f"/v1/studies/{other}/grants/{grant_id(file, other, 'later')}:rotate", json={}
    )["token"]
    left_out = sorted((file.row_of(source, 4), file.row_of(source, 6)))
    for grant, numbers in (
        (other, []),
        ("later", [file.row_of(source, 4)]),
        ("later again", [file.row_of(source, 4)]),
        ("latest", left_out),
    ):
        expected = candidates(file, source)
        expected[numbers] = 0
        reply = file.in_process.send(grant, "GET", f"/v1/studies/{other}/candidates")
        view = file.in_process.call(grant, "GET", f"/v1/studies/{other}")
        assert view["left_out"] == numbers
        assert np.array_equal(np.load(io.BytesIO(reply.content)), expected)
        assert sha256(reply.content) == view["release_sha256"] == reply.headers["ETag"].strip('"')[7:]
    assert file.ask(other, left_out[0]).json()["declined"] == left_out[:1]  # an earlier grant has its numbers
    file.in_process.check()


def grant_id(file, study, grant):
    return file.in_process.call(grant, "GET", f"/v1/studies/{study}")["grant_id"]


def test_a_grant_of_a_draft_gets_what_one_after_the_release_would(file):
    source = file.study(answers=ANSWERS)
    draft = file.grant(file.draft(answers=ANSWERS, release_of=source))
    withhold(file, 2)
    assert file.release(draft).status_code == 200
    assert file.in_process.call(draft, "GET", f"/v1/studies/{draft}")["left_out"] == [file.row_of(source, 2)]
    assert not candidates(file, draft)[file.row_of(source, 2)].any()


def test_an_ordinary_study_leaves_out_who_was_withheld_before_a_grant_and_groups_leave_out_nothing(file):
    study, groups = file.study(), file.study(release=group_release("0.5", parts=(3, 1), min_count=1), answers=ANSWERS)
    withhold(file, 0)
    for name in (study, groups):
        file.in_process.grant(name, f"later {name}")
    view = file.in_process.call(f"later {study}", "GET", f"/v1/studies/{study}")
    assert view["left_out"] == [file.row_of(study, 0)]
    of_groups = [file.in_process.call(name, "GET", f"/v1/studies/{groups}") for name in (groups, f"later {groups}")]
    assert of_groups[0]["release_sha256"] == of_groups[1]["release_sha256"]
    assert [view["left_out"] for view in of_groups] == [[], []]


def test_parts_and_ranges_are_of_what_the_grant_gets(tmp_path):
    file = FileOfRecords(tmp_path, csv=CSV)
    file.in_process.curator.vault._part_bytes = 48  # three candidates
    source = file.study(answers=ANSWERS)
    withhold(file, 1)
    other = file.study(answers=ANSWERS, release_of=source)
    view = file.in_process.call(other, "GET", f"/v1/studies/{other}")
    study = wire.StudyView.model_validate(view)  # the digest is that of the list of parts
    path = f"/v1/studies/{other}/candidates/parts"
    parts = [file.in_process.send(other, "GET", f"{path}/{i}").content for i in range(len(study.parts))]
    assert [sha256(part) for part in parts] == [part.sha256 for part in study.parts]
    z = np.load(io.BytesIO(b"".join(parts)))
    (left_out,) = np.flatnonzero(~z.any(axis=1))
    assert view["left_out"] == [left_out] == [file.row_of(source, 1)]
    whole = file.in_process.send(source, "GET", f"/v1/studies/{source}/candidates/parts/{left_out // 3}").content
    part = parts[left_out // 3]
    assert whole != part
    for first in range(max(0, len(part) - 40), len(part)):
        ranged = file.in_process.send(other, "GET", f"{path}/{left_out // 3}", headers={"Range": f"bytes={first}-"})
        assert (ranged.status_code, ranged.content) == (206, part[first:])
    file.close()


def test_where_everybody_is_withheld_there_is_nothing_to_grant(file):
    study = file.study()
    for record in range(8):
        withhold(file, record)
    reply = file.in_process.send("owner", "POST", f"/v1/studies/{study}/grants", json={"name": "m"})
    assert (reply.status_code, reply.json()["code"]) == (409, "state_conflict"), reply.text


def test_a_person_who_is_withheld_while_a_grant_is_made_is_left_out(file, monkeypatch):
    study, read = file.study(), grants.next_download

    def withheld_meanwhile(db, vault, study_id, before=None):
        download = read(db, vault, study_id, before)
        if before is None and download is not None and len(download.left_out) == 1:
            monkeypatch.undo()
            withhold(file, 7)
        return download

    withhold(file, 5)
    monkeypatch.setattr(grants, "next_download", withheld_meanwhile)
    file.in_process.grant(study, "later")
    view = file.in_process.call("later", "GET", f"/v1/studies/{study}")
    assert view["left_out"] == sorted((file.row_of(study, 5), file.row_of(study, 7)))


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
