"""The records that a vendor recommends, as a table: each text stands below its own column."""

import csv
import io
import re

from blindopt import wire
from curator_service.console.messages import _cells, _columns
from tests.curator_service.queries.inbox.measured_study import open_measured_study


def test_a_withheld_record_is_marked_in_the_table_and_in_the_file(owner, service, small):
    with open_measured_study(small, service) as measured:
        rows = [wire.GoodRow(row=row) for row in (4, 0, 7)]
        measured.modeler.send_message(wire.RecommendationsMessage(rows=rows), key="many")
        (message,) = measured.owner.messages(study_id=measured.study)
        second = measured.owner._post(f"/v1/messages/{message.id}:open_records", wire.RecordTable).records[1]
        measured.owner.withhold(measured.owner.study(measured.study).view.spec.dataset_id, record=second.record)
        assert owner.get(f"/messages/{message.id}").status_code == 200, owner.shown
        owner.submit(f"/messages/{message.id}:open_records")
        marked = ["withheld" in row for row in re.findall(r"<tr>.*?</tr>", owner.text, re.DOTALL)[1:]]
        sent = owner.get(f"/messages/{message.id}") and owner.form(f"/messages/{message.id}:open_records")
        file = owner.send("POST", f"/console/messages/{message.id}:open_records", data=sent | {"as": "csv"}).text
    assert marked == [False, True, False]
    assert [row["withheld"] for row in csv.DictReader(io.StringIO(file.removeprefix("\ufeff")))] == ["no", "yes", "no"]


def test_a_label_that_is_empty_moves_no_other_one():
    """A record leaves out its empty labels, the first one too: a wrong column would name another patient."""
    records = [
        {"labels": [{"column": "ward", "text": "B"}]},
        {"labels": [{"column": "patient", "text": "K-0412"}, {"column": "ward", "text": "A"}]},
        {"labels": []},
    ]
    columns = _columns(records, "labels")
    assert sorted(columns) == ["patient", "ward"]
    shown = [dict(zip(columns, _cells(record, "labels", columns), strict=True)) for record in records]
    assert shown == [{"ward": "B", "patient": ""}, {"ward": "A", "patient": "K-0412"}, {"ward": "", "patient": ""}]
