"""The records that a vendor recommends, as a table: each text stands below its own column."""

from curator_service.console.messages import _cells, _columns


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
