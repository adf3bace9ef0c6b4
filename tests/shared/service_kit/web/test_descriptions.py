"""The published contract describes every field and every parameter."""

import pytest

from curator_service.app import build as build_curator
from curator_service.settings import Settings as CuratorSettings
from modeler_service.app import build as build_modeler
from modeler_service.settings import Settings as ModelerSettings


@pytest.fixture(params=["curator", "modeler"])
def contract(request, tmp_path):
    if request.param == "curator":
        return build_curator(CuratorSettings(data_dir=tmp_path)).openapi()
    app = build_modeler(ModelerSettings(data_dir=tmp_path))
    try:
        return app.openapi()
    finally:
        app.state.modeler.close()


def test_every_field_of_the_contract_is_described(contract):
    missing = [
        f"{name}.{field}"
        for name, schema in contract["components"]["schemas"].items()
        for field, described in schema.get("properties", {}).items()
        if not described.get("description")
    ]
    assert missing == []


def test_every_parameter_of_the_contract_is_described(contract):
    missing = [
        f"{verb} {path} {parameter['name']}"
        for path, operations in contract["paths"].items()
        for verb, operation in operations.items()
        for parameter in operation.get("parameters", [])
        if not parameter.get("description")
    ]
    assert missing == []
