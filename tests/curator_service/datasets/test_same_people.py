"""The same people in another file: found at its registration, and withheld in every file once in one."""

import io
import random

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


@pytest.mark.slow(every=4)
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
    chance = (
        " The only columns of both files are a, b, y: if equal values there are chance, keep the accounts separate."
    )
    is_chance = form == "another column" and not may.fields
    assert overlap["sentence"] == f"{matched}, {used}.{chance * is_chance} Continue its account?"
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


@pytest.mark.parametrize("acts", [["archive"], ["archive", "erase"]], ids=["archived", "erased"])
def test_whoever_is_withheld_stays_so_after_the_file_is_archived_or_erased(of_persons, acts):
    assert send(of_persons, of_persons.dataset, "withhold", person="p0").status_code == 200
    assert [send(of_persons, of_persons.dataset, act).status_code for act in acts] == [200] * len(acts)
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


def clinic(seed, outcome, columns="nr,age,bmi", numbered=None, n=300):
    """A table of strangers to those of other seeds, with a column that numbers its rows."""
    draw = random.Random(seed)
    numbers = numbered or range(1, n + 1)
    rows = [(str(i), str(draw.randrange(18, 90)), f"{draw.gauss(26, 4):.4f}", f"{draw.random():.6f}") for i in numbers]
    header = [*columns.split(","), outcome]
    return csv([(*row[: len(header) - 1], row[3]) for row in rows], header=header)


@pytest.mark.parametrize(("columns", "outcome"), [("nr", "hba"), ("nr", "ldl"), ("nr,age", "hba")])
@pytest.mark.parametrize("first", [0, 1])
def test_a_number_of_rows_alone_makes_nobody_the_same(tmp_path, columns, outcome, first):
    numbers = list(range(first, 300 + first))
    random.Random(3).shuffle(numbers)
    file = FileOfRecords(tmp_path, csv=clinic(1, "hba", columns), fields={})
    file.fields = {}
    june = plain(file, clinic(2, outcome, columns, numbers))
    assert june["overlaps"] == []
    assert send(file, file.dataset, "withhold", record=7).status_code == 200
    assert withheld(file, june["id"]) == []
    assert withheld(file, file.dataset) == [7]
    file.close()


def plain(file, content, name="june"):
    data = {"name": name, "public": "false"}
    return file.in_process.call("owner", "POST", "/v1/datasets", files={"file": ("f.csv", content)}, data=data)


@pytest.mark.parametrize(
    ("columns", "outcome", "matched"),
    [
        ("nr,age,bmi", "hba", 300),
        ("nr,age,bmi", "ldl", 300),  # by age and bmi
        ("nr,age", "hba", 300),  # whole records, also those whose age is not theirs alone
    ],
)
def test_whole_records_and_own_values_are_found_beside_a_number_of_rows(tmp_path, columns, outcome, matched):
    file = FileOfRecords(tmp_path, csv=clinic(1, "hba", columns), fields={})
    file.fields = {}
    lines = clinic(1, outcome, columns).decode().splitlines()
    june = plain(file, "\n".join([lines[0], *lines[:0:-1]]).encode())
    assert [overlap["matched"] for overlap in june["overlaps"]] == [matched]
    assert send(file, file.dataset, "withhold", record=7).status_code == 200
    assert withheld(file, june["id"]) == [294]
    file.close()


def test_of_few_common_columns_the_question_says_that_it_may_be_chance(tmp_path):
    """Records whose values are not theirs alone count among all, and not as one."""
    file = FileOfRecords(tmp_path, csv=clinic(1, "hba", "nr,age"), fields={}, name="A")
    file.fields = {}
    june = plain(file, clinic(2, "ldl", "nr,age"))
    (overlap,) = june["overlaps"]
    ages = [[line.split(",")[1] for line in clinic(seed, "y", "nr,age").decode().splitlines()[1:]] for seed in (1, 2)]
    single = [{age for age in of_file if of_file.count(age) == 1} for of_file in ages]
    matched = len(single[0] & single[1])
    assert (overlap["matched"], overlap["of"]) == (matched, 300)
    assert matched > 0
    says = "The only columns of both files are nr, age: if equal values there are chance, keep the accounts separate."
    assert says in overlap["sentence"]
    reply = file.decide(june["id"], separate="other clinics")
    assert (reply.status_code, says in reply.text) == (200, False)
    file.close()


def test_people_are_found_in_an_export_whose_rows_are_numbered_anew(tmp_path):
    file = FileOfRecords(tmp_path, csv=clinic(1, "hba"), fields={})
    file.fields = {}
    numbers = [*range(2, 301), 1]
    (overlap,) = plain(file, clinic(1, "hba", numbered=numbers))["overlaps"]
    assert overlap["matched"] == 300
    file.close()


def test_whole_records_of_ranks_are_found(tmp_path):
    """Two orders of the same people agree by chance in about one of them."""
    ranks = list(range(1, 41))
    random.Random(5).shuffle(ranks)
    rows = [(str(i), str(rank)) for i, rank in enumerate(ranks, start=1)]
    file = FileOfRecords(tmp_path, csv=csv(rows, header=("age_rank", "stay_rank")), fields={})
    file.fields = {}
    (overlap,) = plain(file, csv(rows[::-1], header=("age_rank", "stay_rank")))["overlaps"]
    assert overlap["matched"] == 40
    file.close()


def test_equal_records_are_found_by_the_number_of_their_rows_too(tmp_path):
    """A number of rows tells repeated records apart: all whole records that agree are found, and no others."""
    rows = [(str(i), str(i % 2)) for i in range(1, 21)]
    file = FileOfRecords(tmp_path, csv=csv(rows, header=("nr", "sex")), fields={})
    file.fields = {}
    other = [(nr, sex if int(nr) <= 15 else "2") for nr, sex in rows]
    (overlap,) = plain(file, csv(other, header=("nr", "sex")))["overlaps"]
    assert overlap["matched"] == 15
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
