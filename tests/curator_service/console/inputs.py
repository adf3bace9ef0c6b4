"""Fields of wire models and inputs of pages, both by path with ``*`` for a number."""

import re

from service_kit.console.forms import inlined


def fields_of(model):
    """The paths of all fields of a model, of every variant of a union."""
    return set(_paths(inlined(model), ""))


def _paths(schema, path):
    nested = schema.get("items", schema)
    variants = [variant for variant in nested.get("oneOf", [nested]) if "properties" in variant]
    for variant in variants:
        for name, part in variant["properties"].items():
            yield from _paths(part, f"{path}.*.{name}" if "items" in schema else f"{path}.{name}".removeprefix("."))
    if not variants:
        yield path


def inputs_of(text):
    """The names of all inputs of a page."""
    return {
        re.sub(r"\.[0-9]+\b", ".*", name)
        for name in re.findall(r'<(?:input|select|textarea)[^>]* name="([^"]*)"', text)
    }
