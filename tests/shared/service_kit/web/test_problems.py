"""What an error of the schema says of a request."""

import pytest
from pydantic import TypeAdapter, ValidationError

from blindopt import wire
from service_kit.web import problems


def fault_of(kind, value):
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(kind).validate_python(value)
    (fault,) = problems.invalid(refused.value.errors()).errors
    return fault["message"]


@pytest.mark.parametrize(
    ("kind", "name"), [(wire.ReleaseSpec, "mechanism"), (wire.MeasurementSpec, "source"), (wire.Answers, "mechanism")]
)
def test_a_kind_that_does_not_exist_is_said_with_the_field_that_names_it(kind, name):
    """Found by hand: a mechanism with a typing mistake was "_kind() must be one of"."""
    assert fault_of(kind, {name: "other"}).startswith(f"{name} must be one of '")


@pytest.mark.parametrize("kind", [wire.ReleaseSpec, wire.MeasurementSpec])
@pytest.mark.parametrize("value", [None, 5, "text"])
def test_what_is_no_object_is_said_to_be_none(kind, value):
    """Found by hand: it was "Unable to extract tag using discriminator _kind()"."""
    assert fault_of(kind, value).startswith("Input should be a valid dictionary")


def test_a_fault_of_ours_is_said_without_a_word_of_the_library():
    wrong = {"column": "a", "lower": 1.0, "upper": 0.0}
    assert fault_of(wire.Feature, wrong) == "lower must be smaller than upper"
