"""The same people in another file: found at its registration, and withheld in every file once in one."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curator_service import store
from curator_service.budget import people
from curator_service.datasets import persons
from tests.curator_service.budget.file_of_records import FileOfRecords, spec_of

NAMES = [f"p{i}" for i in range(10)]
ROWS = [(f"{i}.5", f"{i % 3}", f"{i}", NAMES[i // 2]) for i in range(20)]


def csv(rows, separator=",", end="\n", encoding="utf-8", header=("a", "b", "y", "person")):
    lines = [separator.join(header), *(separator.join(row) for row in rows)]
    return (end.join(lines) + end).encode(encoding)


def parquet(rows):
    a, b, y, who = zip(*rows, strict=True)
    columns = {"a": map(float, a), "b": map(float, b), "y": map(float, y), "person": who}
    file = io.BytesIO()
    pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), file)
    return file.getvalue()


MORE = [(*row[:3], row[3], "7") for row in ROWS]
FORMS = {
    "another order": csv(ROWS[::-1]),
    "other line ends": csv(ROWS, end="\r\n"),
    "with a mark of its encoding": csv(ROWS, encoding="utf-8-sig"),
    "another separator": csv(ROWS, separator=";"),
    "other figures of the same numbers": csv([(a + "0", b, y, who) for a, b, y, who in ROWS]),
    "a person more": csv([*ROWS, ("99.5", "1", "99", "p-new")]),
    "a person less": csv(ROWS[:18]),
    "another column": csv(MORE, header=("a", "b", "y", "person", "c")),
    "columns in another order": csv([row[::-1] for row in ROWS], header=("person", "y", "b", "a")),
    "Parquet": parquet(ROWS),
}
"""One table in the forms that an export takes."""
OF_PERSONS = {"person": "person", "rows_per_person": "2"}


@pytest.fixture(params=[OF_PERSONS, {}], ids=["persons", "records"])
def may(request, tmp_path):
    file = FileOfRecords(tmp_path, csv=csv(ROWS), name="may", fields=request.param or {"columns": '["a", "b", "y"]'})
    file.fields = request.param
    yield file
    file.close()


def register(file, content, name="june", public=False):
    suffix = "parquet" if content[:4] == b"PAR1" else "csv"
    data = {"name": name, "public": str(public).lower(), **file.fields}
    if not file.fields:
        data["columns"] = '["a", "b", "y", "c"]' if b"person,c" in content else '["a", "b", "y"]'
    return file.in_process.call("owner", "POST", "/v1/datasets", files={"file": (f"f.{suffix}", content)}, data=data)


def withhold_first(file, dataset):
    body = {"person": "p0"} if file.fields else {"record": 1}
    path = f"/v1/datasets/{dataset}:withhold"
    return file.in_process.call("owner", "POST", path, json=body)["records"]


def withheld(file, dataset):
    items = file.in_process.call("owner", "GET", f"/v1/datasets/{dataset}/withheld")["withheld"]
    return [item["record"] or item["person"] for item in items]


@pytest.mark.parametrize("form", FORMS)
def test_an_export_in_another_form_has_the_same_people_and_withholds_them(may, form):
    first = may.dataset
    may.study(first)
    assert may.caps("1.5").status_code == 200
    assert withhold_first(may, first) == (2 if may.fields else 1)
    reply = register(may, FORMS[form])
    overlap = {each["dataset_id"]: each for each in reply["overlaps"]}[first]
    count = 10 if may.fields else 20
    less, more = form == "a person less", form == "a person more"
    gone = (1 if may.fields else 2) * less
    assert overlap["unit"] == ("person" if may.fields else "record")
    assert (overlap["matched"], overlap["of"]) == (count - gone, count - gone + more)
    matched = f"{overlap['matched']} of {overlap['of']} {overlap['unit']}s are in may"
    used = f"which has used epsilon 1 of its cap 1.5 and withholds 1 {overlap['unit']}"
    assert overlap["sentence"] == f"{matched}, {used}. Continue its account?"
    checked = may.in_process.call("owner", "POST", "/v1/studies:check", json=spec_of(reply["id"]))
    assert overlap["sentence"] in checked["account"]["sentence"]
    refused = may.release(may.draft(reply["id"]))
    assert (refused.status_code, refused.json()["code"]) == (409, "overlap_undecided")
    assert may.decide(reply["id"], continues=[first]).json()["overlaps"][0]["decision"] == "continues"
    account = may.account(reply["id"])
    # A record that is in no other file may be a corrected one: it has used as much as any.
    shares = {"1": count, "0": 1} if more and may.fields else {"1": count - gone + more}
    assert {share.epsilon: share.units for share in account.losses} == shares
    assert (account.account, account.epsilon, account.cap_epsilon) == (first, "1", "1.5")
    assert may.release(may.draft(reply["id"])).json()["code"] == "privacy_budget_exhausted"
    assert may.caps("3", raise_caps=True, reason="another export").status_code == 200
    study = may.study(reply["id"], measurement=spec_of(first)["measurement"])
    assert may.account().epsilon == may.account(reply["id"]).epsilon == "2"
    a0 = {0, 1} if may.fields else {0}  # the indices in may's order
    numbers = {len(ROWS) - i for i in a0} if form == "another order" else {i + 1 for i in a0}
    curator = may.in_process.curator
    registered = curator.vault.numbers(reply["id"]) if may.fields else range(1, 30)
    assert not numbers & {int(registered[record]) for record in may.order(study)}
    assert len(withheld(may, reply["id"])) == 1


def test_who_is_withheld_in_a_later_file_is_withheld_in_the_earlier_one_too(may):
    june = register(may, FORMS["a person more"])["id"]
    first = may.dataset
    study = may.study(first)
    withhold_first(may, june)
    assert len(withheld(may, first)) == 1
    declined = [may.ask(study, may.row_of(study, record)) for record in ((0, 1) if may.fields else (0,))]
    assert {reply.status_code for reply in declined} <= {200, 201, 403, 409, 422}
    assert all('"declined"' in reply.text or reply.status_code >= 400 for reply in declined), declined[0].text
    assert len(may.records("record.withheld")) == 2


def send(file, dataset, verb, **body):
    return file.in_process.send("owner", "POST", f"/v1/datasets/{dataset}:{verb}", **({"json": body} if body else {}))


@pytest.fixture
def of_persons(tmp_path):
    file = FileOfRecords(tmp_path, csv=csv(ROWS), fields=OF_PERSONS)
    file.fields = OF_PERSONS
    yield file
    file.close()


def test_a_person_and_a_record_are_withheld_in_a_file_with_persons_and_in_one_without(of_persons):
    """Records of the person are found by their values where no column names persons, and the other way round."""
    for body in ({"person": "p0"}, {"record": 5}):
        assert send(of_persons, of_persons.dataset, "withhold", **body).status_code == 200
    june = register(of_persons, FORMS["a person more"])["id"]
    # p0 by the digest, and of record 5 all records of its person, who is p2
    assert len(withheld(of_persons, june)) == 3
    of_persons.fields = {}
    assert withheld(of_persons, register(of_persons, FORMS["a person less"])["id"]) == [1, 2, 5, 6]  # of the two files


def test_a_record_that_is_withheld_in_a_later_file_without_persons_is_withheld_in_the_first(of_persons):
    fields, of_persons.fields = of_persons.fields, {}
    june = register(of_persons, FORMS["another order"])["id"]
    assert send(of_persons, june, "withhold", record=20).status_code == 200
    assert withheld(of_persons, of_persons.dataset) == [1]
    of_persons.fields = fields
    assert withheld(of_persons, register(of_persons, FORMS["a person more"])["id"])


@pytest.mark.parametrize("ended", ["archive", "delete"])
def test_whoever_is_withheld_stays_so_after_the_file_is_archived_or_deleted(of_persons, ended):
    assert send(of_persons, of_persons.dataset, "withhold", person="p0").status_code == 200
    assert send(of_persons, of_persons.dataset, ended).status_code == 200
    june = register(of_persons, FORMS["a person more"])["id"]
    assert len(withheld(of_persons, june)) == 1
    data = {"name": "again", "public": "false", "columns": '["a", "b", "y"]'}
    again = of_persons.in_process.send("owner", "POST", "/v1/datasets", files={"file": ("f.csv", csv(ROWS))}, data=data)
    assert (again.status_code, "register it with its person column" in again.text) == (409, True), again.text


def test_public_and_other_files_have_no_overlap(may):
    assert register(may, csv([(f"{i}.25", "5", "3", f"q{i}") for i in range(9)]))["overlaps"] == []
    assert register(may, FORMS["another order"], public=True)["overlaps"] == []


def test_equal_values_in_some_columns_alone_are_chance(tmp_path):
    """Ages and sexes agree in any two files: of repeated values none counts."""
    file = FileOfRecords(tmp_path, csv=b"age,sex,y\n" + b"".join(b"%d,%d,%d\n" % (i % 5, i % 2, i) for i in range(20)))
    file.fields = {}
    other = b"age,sex,z\n" + b"".join(b"%d,%d,%d\n" % (i % 5, i % 2, i) for i in range(20))
    reply = file.in_process.call(
        "owner", "POST", "/v1/datasets", files={"file": ("f.csv", other)}, data={"name": "other", "public": "false"}
    )
    assert reply["overlaps"] == []
    file.close()


def test_the_controls_without_the_comparison_or_its_key_nothing_is_found_or_a_name_is_guessed(may, monkeypatch):
    june = FORMS["a person more"]
    monkeypatch.setattr(people.People, "digests", lambda self, dataset, other: None)
    monkeypatch.setattr(people.People, "named", lambda self, dataset, persons: set())
    withhold_first(may, may.dataset)
    reply = register(may, june)
    assert (reply["overlaps"], withheld(may, reply["id"])) == ([], [])


def test_digests_are_keyed_and_none_of_records_is_stored(may, tmp_path):
    """By hand: the common digest of a name or of a record's values is in no file of the curator."""
    import hashlib

    register(may, FORMS["a person more"])
    values = [hashlib.sha256(name.encode()).digest()[:16] for name in NAMES]
    key = may.in_process.context.seal.key_for("persons")
    column = persons.PersonColumn("person", key)
    column.add(NAMES)
    keyed = [bytes(digest) for digest in column.digests]
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert not any(value in stored for value in values)
    assert all((digest in stored) == bool(may.fields) for digest in keyed)  # the control: what is stored is found
    curator = may.in_process.curator
    with may.in_process.context.database.read() as db:
        dataset = store.find(db, store.datasets, may.dataset)
    of_records = curator.same_people._people.of_records(dataset, ["a", "b", "y"])
    assert len(of_records) == 20
    assert not any(digest.tobytes() in stored for digest in of_records)
