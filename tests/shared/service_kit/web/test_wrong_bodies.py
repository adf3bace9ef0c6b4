"""Every operation that takes a body says what is wrong with it, and refuses other media types, before any effect."""

import asyncio
import json
import tempfile
from types import SimpleNamespace

import httpx
import pytest

from blindopt import faults
from curator_service import app as curator_app
from curator_service.settings import Settings as CuratorSettings
from modeler_service import app as modeler_app
from modeler_service.settings import Settings as ModelerSettings
from tests.builders import a_run, a_study
from tests.curator_service.tuning_case import Case
from tests.spoilt_bodies import CANARY, a_body, changed, put, wrong_words

FORMS = {"multipart/form-data", "application/x-www-form-urlencoded"}
LINK = "usr_0123456789abcdef"
OWN_OBJECTS = {("post", "/v1/links/{link_id}:pull"), ("post", "/v1/links/{link_id}:reply")}
"""Operations that look for the link of a request before its body."""
SERVICES = {"curator": (curator_app, CuratorSettings), "modeler": (modeler_app, ModelerSettings)}


@pytest.fixture(params=SERVICES)
def service(request, tmp_path):
    """An application, and tokens of each role."""
    module, settings = SERVICES[request.param]
    before = tempfile.tempdir
    app = module.build(settings(data_dir=tmp_path, rate_burst=100_000))
    tempfile.tempdir = before
    roles = {"curator": ("owner", "modeler", "measurer"), "modeler": ("vendor", "link")}[request.param]
    issue = app.state.context.authentication.issue
    yield request.param, app, [issue(role, role, days=1)[0].text for role in roles]
    if request.param == "modeler":
        app.state.modeler.close()
    app.state.context.database.close()


def with_bodies(app):
    """The operations of an application that take a body, with its media types."""
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            if "requestBody" in operation:
                yield method, path, operation["requestBody"]["content"]


def test_a_body_of_another_media_type_is_refused_at_every_operation(service):
    """Every type but its own, none, two in one request, and one that is packed: 415, with the header to send."""
    name, app, tokens = service
    kinds = ("application/json", "text/csv", "multipart/form-data; boundary=x", "application/octet-stream")
    others = (None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "text/json", *kinds)
    wrong, refused = [], set()

    async def send():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            for method, path, content in with_bodies(app):
                for token in tokens:
                    own = {*content, *(FORMS if FORMS & content.keys() else ())}
                    for number, kind in enumerate((*others, "two", "packed")):
                        if kind is None or kind.partition(";")[0] not in own:
                            await check(http, method, path, content, token, kind, number)

    async def check(http, method, path, content, token, kind, number):
        types = {"two": [*content, "text/plain"], "packed": [*content][:1], None: []}.get(kind, [kind])
        headers = [("Authorization", f"Bearer {token}"), ("Idempotency-Key", f"k{number}")]
        headers += [("Content-Type", media) for media in types]
        headers += [("Content-Encoding", "gzip")] if kind == "packed" else []
        reply = await http.request(method, path.replace("{link_id}", LINK), content=b"{}", headers=headers)
        if reply.status_code == 415:
            refused.add((method, path))
            assert reply.json()["code"] == "unsupported_media_type"
            named = ["Content-Encoding"] if kind == "packed" else content
            assert all(name in reply.json()["detail"] for name in named)
        elif reply.status_code not in (403, 404):  # a role that may not, or an own object that is not there
            wrong.append((method, path, kind, reply.status_code, reply.json().get("detail")))

    asyncio.run(send())
    assert wrong == []
    assert {(method, path) for method, path, _ in with_bodies(app)} - refused <= OWN_OBJECTS, name


STUDY = a_study(dataset_id="ds_0").model_dump(mode="json")
SENSE = {
    "StudyCreate": STUDY,
    "StudyChange": STUDY | {"replaces": "0" * 64},
    "TuningCreate": Case(*[SimpleNamespace(id="ds_0")] * 2).spec().model_dump(mode="json"),
    "RunCreate": a_run("http://127.0.0.1:1", "std_0123456789abcdef", "t").model_dump(mode="json"),
}
"""Bodies whose fields fit each other."""
UNSEEN = ("   ", "\u200b\u200c", "abc\u202etxt", "\u3164", "\u2800 ", "a\u2028b", "a\u00adb")


def test_a_name_that_nobody_sees_is_refused_wherever_a_name_is_given(service):
    """Blanks, invisible characters, and signs that turn the direction of text; the control: names of six scripts."""
    name, app, tokens = service
    whole, taken, refused = {"$defs": app.openapi()["components"]["schemas"]}, [], set()

    def names(content):
        schema = next(iter(content.values()))["schema"]
        schema = whole["$defs"].get(schema.get("$ref", "").rpartition("/")[2], schema)
        return "name" in schema.get("properties", {})

    async def send():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            for method, path, content in with_bodies(app):
                if names(content):
                    for token in tokens:
                        for number, unseen in enumerate(UNSEEN):
                            await check(http, method, path, content, token, unseen, number)

    async def check(http, method, path, content, token, unseen, number):
        media, headers = next(iter(content)), {"Authorization": f"Bearer {token}", "Idempotency-Key": f"n{number}"}
        if media == "application/json":
            model = content[media]["schema"].get("$ref", "").rpartition("/")[2]
            sent = {"json": (SENSE.get(model) or a_body(content[media]["schema"], whole)) | {"name": unseen}}
        else:
            sent = {"data": {"name": unseen}, "files": {"file": b"a,b\n1,2\n"}}
        reply = await http.request(method, path, headers=headers, **sent)
        if reply.status_code == 422 and any(fault["field"] == "name" for fault in reply.json()["errors"]):
            refused.add((method, path))
        elif reply.status_code not in (403, 404):
            taken.append((method, path, ascii(unseen), reply.status_code, reply.text))

    asyncio.run(send())
    assert sorted({(method, path) for method, path, *_ in taken}) == []
    assert len(refused) >= (1 if name == "modeler" else 4), refused
    for seen in ("Praxis Müller", "研究　一", "клиника", "מחקר", "दिल का अध्ययन", "mi\u200cn", "a-b_c 1"):
        faults.check_name(seen)


def test_a_wrong_body_is_told_its_first_fault_at_every_operation(service):
    """One that does not exist, one of another kind, broken JSON, and each field with a value of no kind."""
    name, app, tokens = service
    document, seen, wrong = app.openapi(), set(), {}
    whole = {"$defs": document["components"]["schemas"]}

    async def send():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            for method, path, content in with_bodies(app):
                if "application/json" in content:
                    await check(http, method, path, a_body(content["application/json"]["schema"], whole))

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
    assert wrong == {}
    assert len(seen) > (6 if name == "modeler" else 20)
