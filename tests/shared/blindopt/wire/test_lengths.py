"""Each text, list and mapping of a reply has a length: the other party wrote it."""

import inspect
import json

import pytest
from pydantic import BaseModel, ValidationError

from blindopt import wire
from blindopt.wire.base import ITEMS_MAX, TEXT_MAX

REPLIES = sorted(
    (kind for kind in vars(wire).values() if inspect.isclass(kind) and issubclass(kind, wire.Reply)),
    key=lambda kind: kind.__name__,
)
QUERY = {
    "id": "qry_0123456789abcdef",
    "study_id": "std_0123456789abcdef",
    "state": "answered",
    "created_at": "2026-11-21T00:00:00Z",
    "answers": [],
    "salt": "a" * 64,
}


def leaves(schema, path):
    """The texts, lists and mappings of a model's own fields, with their paths."""
    if isinstance(schema, list | tuple):
        for each in schema:
            yield from leaves(each, path)
    elif isinstance(schema, dict):
        if schema.get("type") in ("str", "list", "dict"):
            yield path, schema
        for name, each in schema.items():
            if name not in ("metadata", "serialization", "default") and not (
                isinstance(each, dict) and each.get("type") == "model"
            ):
                yield from leaves(each, path)


def without_length(kind):
    """The fields of a model that hold a text, a list or a mapping of any length."""
    kind.model_rebuild()
    schema = kind.__pydantic_core_schema__
    while schema["type"] != "model-fields":
        schema = schema["schema"]
    fields = [
        leaf
        for name, field in schema["fields"].items()
        for leaf in leaves(field["schema"], f"{kind.__name__}.{name}")
        if field["schema"]["type"] != "model"
    ]
    texts = kind.model_config.get("str_max_length")
    return [path for path, leaf in fields if "max_length" not in leaf and not (leaf["type"] == "str" and texts)]


@pytest.mark.parametrize("kind", REPLIES, ids=lambda kind: kind.__name__)
def test_every_text_list_and_mapping_of_a_reply_has_a_length(kind):
    assert without_length(kind) == []


def test_a_model_without_lengths_is_found():
    class Free(BaseModel):
        word: str
        words: list[str] | None
        sizes: dict[str, int]

    assert without_length(Free) == ["Free.word", "Free.words", "Free.words", "Free.sizes", "Free.sizes"]


@pytest.mark.parametrize(
    ("field", "longest"),
    [
        ("study_id", "s" * TEXT_MAX),
        ("salt", "a" * 64),
        ("declined", [0] * wire.ROWS_MAX),
    ],
)
def test_one_more_than_the_length_is_refused(field, longest):
    wire.QueryReply.model_validate_json(json.dumps(QUERY | {field: longest}))
    with pytest.raises(ValidationError):
        wire.QueryReply.model_validate_json(json.dumps(QUERY | {field: longest + longest[:1]}))


def test_a_list_without_a_length_of_its_own_has_that_of_all():
    findings = wire.VerificationState.model_json_schema()["properties"]["findings"]
    assert findings["maxItems"] == ITEMS_MAX


@pytest.mark.parametrize(("refined", "numbers"), [([], 2), ([{"row": 0, "z": [0.5, 1.5, 2.5]}], 5)])
def test_the_salt_of_several_numbers_is_longer(refined, numbers):
    answer = {"row": 0, "play": 1, "y": 0.5, "passport": {"measurement_variance": 0.0}}
    for length, fits in ((64 + numbers * 24, True), (65 + numbers * 24, False)):
        reply = json.dumps(QUERY | {"answers": [answer] * 2, "refined": refined, "salt": "a" * length})
        if fits:
            assert len(wire.QueryReply.model_validate_json(reply).salt) == length
        else:
            with pytest.raises(ValidationError, match="salt"):
                wire.QueryReply.model_validate_json(reply)
