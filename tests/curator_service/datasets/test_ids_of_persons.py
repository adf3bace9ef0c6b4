"""Ids of persons that a clerk would read as one are one person, or a question; never two persons in silence."""

import csv
import io
import json
import random
import unicodedata
from decimal import Decimal
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curator_service.datasets.persons import as_written, folded_1
from curator_service.datasets.records import person_ids_of
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator

IDS = ("folded_1", "as_written")


@pytest.fixture(scope="module")
def curator(tmp_path_factory):
    made = InProcessCurator(tmp_path_factory.mktemp("ids"))
    made.tokens["owner"] = made.context.authentication.issue("owner", "o", days=3)[0].text
    yield made
    made.curator.close()
    made.close()


def table(ids, extra=""):
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([["who", "x" + extra], *([cell, i] for i, cell in enumerate(ids))])
    return text.getvalue().encode()


def register(curator, content, filename="t.csv", **more):
    data = {"name": "n", "person": "who", "rows_per_person": "2", **more}
    return curator.send("owner", "POST", "/v1/datasets", data=data, files={"file": (filename, content)})


# --- what programs and people make of an id ------------------------------------------------------------


def spreadsheet(rng, cell):
    """Numbers lose their zeros, and may have groups or an exponent."""
    if cell.isdecimal():
        value = int(cell)
        return rng.choice([str(value), f"{value:,}", f"{value:.6E}" if value < 10**7 else str(value)])
    return f"\u00a0{cell} "


def data_frame(rng, cell):
    """A join with gaps makes floats."""
    return str(float(cell)) if cell.isdecimal() and int(cell) < 10**15 else cell


def database(rng, cell):
    """Fixed widths: zeros before numbers, blanks after texts, capitals."""
    return cell.rjust(12, "0") if cell.isdecimal() else cell.upper().ljust(20)


def person(rng, cell):
    """Cases, dashes and letters of other keyboards."""
    cell = rng.choice([str.lower, str.title, str])(cell)
    cell = cell.replace("-", rng.choice(["-", " ", "", "\u2013", "_", " - "]))
    return unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKC"]), cell) + rng.choice(["", "\u200b", " "])


WRITERS = (spreadsheet, data_frame, database, person)


def true_ids(rng):
    """Ids of different persons."""
    draw = rng.choice(
        [
            lambda: str(rng.randint(1, 10 ** rng.choice([3, 6, 9]))),
            lambda: f"{rng.choice(['P', 'Pat', 'Ä', 'ward'])}-{rng.randint(0, 9_999):04}",
            lambda: f"{rng.choice(['Müller', 'Şahin', 'Nguyễn', 'Ольга', 'ひろし'])}-{rng.randint(1, 99)}",
        ]
    )
    ids = {draw() for _ in range(rng.randint(3, 12))}
    return sorted({folded_1(cell): cell for cell in sorted(ids)}.values())


@pytest.mark.parametrize("seed", range(12))
def test_ids_as_programs_and_people_rewrite_them_are_the_true_persons_or_a_question(curator, seed):
    rng = random.Random(seed)
    ids = true_ids(rng)
    cells = [cell for each in ids for cell in (each, rng.choice(WRITERS)(rng, each))]
    rng.shuffle(cells)
    content, n = table(cells, str(seed)), len(ids)
    reply = register(curator, content)
    if len({as_written(cell) for cell in cells}) == n:
        assert (reply.status_code, reply.json()["persons"]) == (201, n)
        return
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (422, "person_ids")
    for first, second in reply.json()["errors"][0]["spellings"]:
        assert {first, second} <= set(cells)
        assert as_written(first) != as_written(second)
        assert folded_1(first) == folded_1(second)
    assert not any(cell in reply.json()["detail"] for cell in cells if len(cell) > 4)
    # The control: as the ids are written, which was the only rule of earlier versions, there are more persons.
    other = register(curator, content + b"\r\n", person_ids="as_written").json()
    assert other["persons"] == len({as_written(cell) for cell in cells}) > n
    stored = register(curator, content, person_ids="folded_1").json()
    assert (stored["persons"], stored["reading"]["person_ids"]) == (n, "folded_1")
    assert register(curator, content).json()["persons"] == n  # the file's answer counts again


@pytest.mark.parametrize("ids", [["8801", "", "8802", "8801.0", "8803"], ["", "8811", "", "", "8812", "8811.0"]])
def test_ids_are_quoted_of_their_own_lines_whatever_lines_are_empty(curator, ids):
    content = "".join(f"{line}\n" for line in ["who,x", *(cell and f"{cell},1" for cell in ids)]).encode()
    reply = register(curator, content)
    assert reply.status_code == 422, reply.text
    assert reply.json()["errors"][0]["spellings"] == [[cell for cell in ids if cell[:4] == max(ids, key=len)[:4]]]


@given(st.from_regex(r"[0-9]{1,30}", fullmatch=True), st.integers(0, 5), st.integers(0, 12))
def test_numbers_are_exact_whatever_their_length(digits, decimals, zeros):
    written = "0" * zeros + digits + ("." + "0" * decimals if decimals else "")
    assert folded_1(written) == str(int(digits))
    assert folded_1(str(int(digits) + 1)) != folded_1(written)
    assert folded_1(str(Decimal(digits) + Decimal("0.5"))) != folded_1(written)


@given(st.text(max_size=12))
def test_a_folded_form_is_its_own_folded_form_and_no_id_has_none(cell):
    assert folded_1(folded_1(cell)) == folded_1(cell)
    assert folded_1(cell) or not cell.strip()


def test_the_folded_form_stays_as_it_is():
    """Digests of it are stored: these never change."""
    forms = {
        "1017.0": "1017", "1,017": "1017", "1.017.000": "1017000", "1.000": "1", "1.017": "1017", "2,000": "2000",
        "1e3": "1000", "-7": "-7", "0": "0", "1017.50": "1017.5", "12345678901234567890123": "12345678901234567890123",
        "P-0412": "p-412", "Straße 7": "strasse-7", "\uff30\uff11\uff12": "p-12", "\u0661\u0662": "12", "A+": "a",
        "कि-1": "कि-1", "--": "--",
    }  # fmt: skip
    assert {cell: folded_1(cell) for cell in forms} == forms


@pytest.mark.parametrize("cell", ["", " ", "NA", "n/a", "NaN", "null", "None", "unbekannt"])
def test_a_missing_id_is_refused_in_every_spelling(curator, cell):
    content = table(["a", cell, "b"])
    reply = register(curator, content, missing_values='["unbekannt"]')
    assert (reply.status_code, "missing person" in reply.json()["detail"]) == (422, True)
    if cell == "unbekannt":  # the control: it is an id unless it is declared
        assert register(curator, content).status_code == 201


@pytest.mark.parametrize("kind", ["float64", "decimal128(20, 2)", "int64", "string"])
def test_numbers_of_persons_in_parquet_are_the_persons_of_csv(curator, kind):
    kinds = {"float64": pa.float64(), "int64": pa.int64(), "string": pa.string()}
    ids = [1017, 1018, 1017]
    values = list(map(str, ids)) if kind == "string" else [Decimal(i) for i in ids] if "decimal" in kind else ids
    file = io.BytesIO()
    column = pa.array(values, kinds.get(kind, pa.decimal128(20, 2)))
    pq.write_table(pa.table({"who": column, "x": [1.0, 2.0, 3.0], kind: [1, 2, 3]}), file)
    stored = register(curator, file.getvalue(), "t.parquet").json()
    assert stored["persons"] == 2
    of_csv = register(curator, table(["1017", "1018.0", "1019"], kind)).json()
    overlap = next(each for each in of_csv["overlaps"] if each["dataset_id"] == stored["id"])
    assert (overlap["unit"], overlap["matched"]) == ("person", 2)
    floats = io.BytesIO()
    pq.write_table(pa.table({"who": [1.0, None], "x": [1.0, 2.0]}), floats)
    assert "missing person" in register(curator, floats.getvalue(), "t.parquet").json()["detail"]


def test_a_waiting_file_asks_too_and_its_answer_is_registered(curator):
    upload_id = curator.call("owner", "POST", "/v1/uploads", files={"file": ("t.csv", table(["7", "7.0", "8"]))})["id"]
    choice = {"columns": ["x"], "person": "who", "rows_per_person": 1}
    reply = curator.send("owner", "POST", f"/v1/uploads/{upload_id}:read", json=choice)
    assert (reply.status_code, reply.json()["errors"][0]["spellings"]) == (422, [["7", "7.0"]])
    choice["person_ids"] = "folded_1"
    view = curator.send("owner", "POST", f"/v1/uploads/{upload_id}:read", json=choice).json()
    assert view["remaining"]["rows"] == 2
    data = {"name": "n", "upload": upload_id, "columns": json.dumps(["x"]), "person": "who", "rows_per_person": "1"}
    stored = curator.call("owner", "POST", "/v1/datasets", data=data | {"person_ids": "folded_1"})
    assert (stored["persons"], stored["person_rows_dropped"]) == (2, 1)


@pytest.mark.parametrize("ids", [["1\u2019017", "1017"], ["1000", "1.000"], ["7", "12`345`678", "12345678"]])
@pytest.mark.parametrize("person_ids", [None, "folded_1"])
def test_ids_that_group_digits_to_a_clerk_alone_are_asked_back(curator, ids, person_ids):
    named = {} if person_ids is None else {"person_ids": person_ids}
    refused = register(curator, table(ids), **named)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "person_ids")
    assert sorted(refused.json()["errors"][0]["spellings"][0]) == sorted(ids[-2:])
    assert register(curator, table(ids), person_ids="as_written").json()["persons"] == len(ids)
    others = table([*ids[:-1], "99"])  # the control
    assert register(curator, others, **named).json()["persons"] == len(ids)


# --- files whose ids were folded, and files of earlier versions -------------------------------------------


@pytest.mark.parametrize("kind", [f"{first} {second}" for first in IDS for second in IDS])
def test_files_of_all_versions_of_ids_are_compared_and_withhold_the_same_persons(tmp_path, kind):
    made = InProcessCurator(tmp_path)
    made.tokens["owner"] = made.context.authentication.issue("owner", "o", days=3)[0].text
    first_ids, second_ids = kind.split()
    ids = [f"P-{i:03}" for i in range(8)]
    others = [cell.replace("-", " ").lower() for cell in ids] if first_ids == second_ids == "folded_1" else ids
    first = register(made, table(ids), person_ids=first_ids).json()
    with_both = table([*ids[:2], "X-9"], "early")
    early = register(made, with_both, person_ids=first_ids).json()
    assert made.send("owner", "POST", f"/v1/datasets/{early['id']}:withhold", json={"person": ids[0]}).is_success
    second = register(made, table([*others[:5], "Q-1"], "2"), person_ids=second_ids).json()
    overlap = next(each for each in second["overlaps"] if each["dataset_id"] == first["id"])
    assert (overlap["unit"], overlap["matched"], overlap["of"]) == ("person", 5, 6)

    def listed(dataset):
        return made.call("owner", "GET", f"/v1/datasets/{dataset['id']}/withheld")["withheld"]

    assert [len(listed(each)) for each in (first, second)] == [1, 1]
    assert made.send("owner", "POST", f"/v1/datasets/{second['id']}:withhold", json={"person": others[3]}).is_success
    assert made.send("owner", "POST", f"/v1/datasets/{first['id']}:withhold", json={"person": ids[4]}).is_success
    assert [len(listed(each)) for each in (first, second)] == [3, 3]
    spelled = made.send("owner", "POST", f"/v1/datasets/{second['id']}:withhold", json={"person": "p4"})
    assert spelled.status_code == (200 if second_ids == "folded_1" else 422)  # the control
    assert len(listed(second)) == 3
    made.curator.close()
    made.close()


def test_a_dataset_of_an_earlier_version_keeps_its_ids_as_they_are_written(curator):
    """Its reading says nothing of ids, or it has none. A file that is registered again is read as it was."""
    content = table(["1017", "1017.0", "1018"], "earlier")
    stored = register(curator, content, person_ids="as_written").json()
    reading = {name: value for name, value in stored["reading"].items() if name != "person_ids"}
    for stored_reading in (None, json.dumps(reading)):
        assert person_ids_of(SimpleNamespace(reading=stored_reading)) == "as_written"
    again = register(curator, content).json()
    assert (again["persons"], again["reading"]["person_ids"]) == (3, "as_written")
    refused = register(curator, content, person_ids="folded_1")
    assert (refused.status_code, "must agree" in refused.json()["detail"]) == (409, True)
