"""Every operation that takes JSON tells its first fault in words."""

import asyncio
import json
import tempfile

import httpx
import pytest

from curator_service import app as curator_app
from curator_service.settings import Settings as CuratorSettings
from modeler_service import app as modeler_app
from modeler_service.settings import Settings as ModelerSettings
from tests.spoilt_bodies import CANARY, a_body, changed, put, wrong_words

SERVICES = {"curator": (curator_app, CuratorSettings), "modeler": (modeler_app, ModelerSettings)}


@pytest.mark.parametrize("name", SERVICES)
def test_a_wrong_body_is_told_its_first_fault_at_every_operation(name, tmp_path):
    """One that does not exist, one of another kind, broken JSON, and each field with a value of no kind."""
    module, settings = SERVICES[name]
    before = tempfile.tempdir
    app = module.build(settings(data_dir=tmp_path, rate_burst=100_000))
    tempfile.tempdir = before
    issue, document, seen, wrong = app.state.context.authentication.issue, app.openapi(), set(), {}
    roles = {"curator": ("owner", "modeler", "measurer"), "modeler": ("vendor", "link")}[name]
    tokens = [issue(role, role, days=1)[0].text for role in roles]
    whole = {"$defs": document["components"]["schemas"]}

    async def send():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            for path, operations in document["paths"].items():
                for method, operation in operations.items():
                    media = operation.get("requestBody", {}).get("content", {}).get("application/json")
                    if media is not None:
                        await check(http, method, path, a_body(media["schema"], whole))

    async def check(http, method, path, body):
        bodies = [[], {**body, "canaryfield": CANARY}, *(changed(body, (field,), put([[CANARY]])) for field in body)]
        texts = [(wrong_body, json.dumps(wrong_body)) for wrong_body in bodies] + [(None, '{"a')]
        for (number, (wrong_body, text)), token in ((item, t) for item in enumerate(texts) for t in tokens):
            headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": f"k{number}"}
            headers |= {"Content-Type": "application/json"}
            reply = await http.request(method, path, content=text, headers=headers)
            if reply.status_code == 422:
                seen.add((method, path))
                problem = reply.json()
                if reported := wrong_words(problem["detail"], problem["errors"], wrong_body):
                    wrong[method, path, text] = reported

    asyncio.run(send())
    if name == "modeler":
        app.state.modeler.close()
    app.state.context.database.close()
    assert wrong == {}
    assert len(seen) > (6 if name == "modeler" else 20)
