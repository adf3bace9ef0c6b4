"""Pages over the API in process: roles, what is shown of a refusal, forms that take effect once, files, streams."""

import asyncio
import csv
import io
import json
import re

import httpx

from service_kit.console.forms import Form
from service_kit.store import audit_log
from tests.shared.service_kit.console import sample_service
from tests.shared.service_kit.console.conftest import FROM_HERE, HOST, Browser

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


def test_the_policy_is_on_every_page_and_on_no_reply_of_the_api(owner):
    for path in (
        "/", "/console", "/console/", "/console/gallery", "/console/nowhere", "/console/static/console.css",
        "/console/static/none.css", "/console/samples/none", "/console/login",
    ):  # fmt: skip
        headers = owner.get(path).headers
        assert headers.get_list("content-security-policy") == [CSP], path
        assert headers.get_list("x-content-type-options") == ["nosniff"]
        assert headers.get_list("referrer-policy") == ["same-origin"]
    for path in ("/healthz", "/v1/samples", "/v1/meta", "/openapi.json"):
        policies = owner.get(path).headers.get_list("content-security-policy")
        assert policies == ["default-src 'none'; frame-ancestors 'none'"]


def test_every_page_is_for_the_roles_that_it_names_and_for_nobody_else(app):
    entries = app.state.console.entries
    assert len(entries) > 7
    browsers = {name: Browser(app) for name in sample_service.WHO}
    for name, browser in browsers.items():
        browser.login(name)
    nobody = Browser(app)
    for entry in entries:
        path = "/console" + entry.path.replace("{name}", "x")
        if path.endswith("/events"):
            continue
        for name, browser in browsers.items():
            if entry.method == "POST":
                reply = browser.post(path, {"name": "x"}, page="/console/")
                assert (reply.status_code == 403) == (sample_service.WHO[name] not in entry.roles), (path, name)
            else:
                reply = browser.get(path)
                # A page that it may see can hold what it may not: then the API says 403 or 404.
                assert reply.status_code == 403 or sample_service.WHO[name] in entry.roles, (path, name)
        reply = nobody.send(entry.method, path, headers=FROM_HERE)
        assert reply.status_code == (401 if entry.method == "POST" else 303)
        assert app.state.samples == [] or entry.method == "POST"


def test_the_menu_and_the_refusal_tell_a_role_nothing_of_what_is_not_its_own(browser, app):
    app.state.samples.append(sample_service.Sample(name="secret-title", size=1))
    browser.login("moe")
    reply = browser.get("/console/samples/secret-title")  # the page is for measurers, the sample is not
    assert reply.status_code == 403
    assert "secret-title" not in reply.text
    menu = re.findall(r'<li><a href="(/console/[^"]*)"', browser.get("/console/").text)
    assert menu == ["/console/", "/console/samples"]
    assert "Another one" not in browser.get("/console/samples").text


def test_tables_stay_compact_where_a_user_chose_so(owner):
    where = "/console/samples?page_token=1"
    for choice, body in (("roomy", "<body>"), ("compact", '<body class="dense">'), ("roomy", "<body>")):
        came_from = {"referer": f"http://127.0.0.1:8410{where}"}
        reply = owner.post("/console/density", {"tables": choice}, headers=FROM_HERE | came_from)
        assert (reply.status_code, reply.headers["location"]) == (303, where)
        assert body in owner.get(where).text
    assert owner.post("/console/density", {"tables": "compact"}).headers["location"] == "/console/"
    nowhere = FROM_HERE | {"referer": "http://[x/console/samples"}
    assert owner.post("/console/density", {"tables": "compact"}, headers=nowhere).headers["location"] == "/console/"


def test_a_request_in_process_is_held_to_the_role_the_rate_and_the_log_like_any_other(owner, app):
    owner.post("/console/samples", {"name": "one", "size": "2"})
    with app.state.context.database.read() as db:
        records = [entry.record for entry in audit_log.walk(db)]
    assert (records[-1]["kind"], records[-1]["actor"]) == ("sample.made", "owner:usr_ann")
    other = Browser(
        sample_service.build(app.state.context.database.path.parent / "slow", rate_per_second=0.001, rate_burst=3)
    )
    other.login("ann")
    assert [other.get("/console/").status_code for _ in range(5)] == [200] * 3 + [429] * 2
    assert other.get("/console/").headers["retry-after"]
    assert other.get("/console/login").status_code == 303  # what asks the API nothing is not held
    other.app.state.context.database.close()


def test_a_double_submit_makes_one_thing(owner, app):
    data = {"name": "once", "size": "1"}
    owner.get("/console/samples")
    first, second = (owner.post("/console/samples", data, keep=True) for _ in range(2))
    assert first.status_code == second.status_code == 303
    assert [t.name for t in app.state.samples] == ["once"]
    owner.post("/console/samples", data)  # the control: a form that was loaded anew
    assert len(app.state.samples) == 2
    changed = owner.post("/console/samples", data | {"_key": "0" * 32})
    assert changed.status_code == 303
    assert owner.post("/console/samples", {"name": "other", "size": "1", "_key": "0" * 32}).status_code == 422
    assert owner.post("/console/samples", {"name": "other", "size": "1", "_key": ""}).status_code == 422
    assert len(app.state.samples) == 3


def test_two_submits_at_the_same_moment_make_one_thing(owner, app):
    owner.get("/console/samples")
    data = {"name": "once", "size": "1", "_csrf": owner.hidden("_csrf"), "_key": owner.hidden("_key")}
    kept = "; ".join(f"{k}={v}" for k, v in owner.cookies.items())

    async def both():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HOST) as client:
            sends = [client.post("/console/samples", data=data, headers=FROM_HERE | {"cookie": kept}) for _ in range(8)]
            return await asyncio.gather(*sends)

    assert {reply.status_code for reply in asyncio.run(both())} == {303}
    assert len(app.state.samples) == 1


def test_a_file_that_is_sent_twice_arrives_once_and_whole(owner, app):
    content = bytes(range(256)) * 2_000
    name = 'we"ird\r\nname.csv'
    owner.get("/console/samples")
    first, second = (
        owner.post("/console/samples/file", {"name": "up"}, files={"file": (name, content)}, keep=True)
        for _ in range(2)
    )
    assert first.status_code == second.status_code == 303
    (made,) = app.state.samples
    assert made.size == len(content)
    assert "up/we" in made.name
    assert "\n" not in made.name


def test_what_the_api_finds_wrong_stands_beside_its_field_and_nothing_typed_is_lost(owner, app):
    reply = owner.post("/console/samples", {"name": sample_service.MARKUP, "size": "-3"})
    assert reply.status_code == 422
    assert re.search(r'id="e-size"><bdi>must not be negative', reply.text)
    assert 'aria-describedby="e-size"' in reply.text
    assert "<script>alert" not in reply.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&gt;&lt;img" in reply.text
    reply = owner.post("/console/samples", {"name": "", "size": "seven"})
    assert "A name is needed" in reply.text
    assert "Enter a number" in reply.text
    assert 'value="seven"' in reply.text
    reply = owner.post("/console/samples", {"name": "x", "size": "2e6"})
    assert "many requested with 0 of 1000000 spent" in reply.text
    assert app.state.samples == []


def test_a_flash_is_shown_once_and_only_in_its_session(owner, app):
    owner.post("/console/samples", {"name": "<b>bold</b>", "size": "1"})
    taken = owner.cookies["__Host-blindopt-curator-flash"]
    assert "Made &lt;b&gt;bold" in owner.get("/console/samples").text
    assert "Made &lt;b&gt;" not in owner.get("/console/samples").text
    other = Browser(app)
    other.login("moe")
    other.cookies["__Host-blindopt-curator-flash"] = taken
    assert "Made &lt;b&gt;" not in other.get("/console/").text
    other.cookies["__Host-blindopt-curator-flash"] = other.cookies["__Host-blindopt-curator"]
    assert other.get("/console/").status_code == 200


def test_paging_goes_by_the_tokens_of_the_api(owner, app):
    app.state.samples += [sample_service.Sample(name=f"n{i}", size=i) for i in range(7)]
    seen, path = [], "/console/samples"
    for _ in range(3):
        page = owner.get(path).text
        seen += re.findall(r"<bdi>(n\d)</bdi></a>", page)
        link = re.search(r'<a href="([^"]+)" rel="next">', page)
        path = link[1].replace("&amp;", "&") if link else None
    assert path is None
    assert seen == [f"n{i}" for i in range(7)]


def test_a_reply_passes_through_as_it_is_and_a_refusal_becomes_a_page(owner, app):
    app.state.samples.append(sample_service.Sample(name="sample", size=1))
    reply = owner.get("/console/samples/raw/sample")
    assert reply.json() == {"name": "sample", "size": 1.0}
    for name in ("x-request-id", "cache-control", "referrer-policy", "cross-origin-resource-policy"):
        assert len(reply.headers.get_list(name)) == 1, name
    reply = owner.get("/console/samples/raw/none")
    assert reply.status_code == 404
    assert reply.headers["content-type"].startswith("text/html")
    assert "there is no such sample" in reply.text


def test_errors_are_pages_in_words(owner):
    for path, status in {"/console/nowhere": 404, "/console/samples/none": 404, "/console/static/../x": 404}.items():
        reply = owner.get(path)
        assert reply.status_code == status
        assert reply.headers["content-type"].startswith("text/html")
        assert "<h1>" in reply.text
    reply = owner.send("DELETE", "/console/samples", headers=FROM_HERE)
    assert (reply.status_code, reply.headers["content-type"][:9]) == (405, "text/html")
    reply = owner.post("/console/samples", {"name": "x" * 2_000_000, "size": "1"})
    assert (reply.status_code, reply.headers["content-type"][:9]) == (413, "text/html")
    broken = {"headers": FROM_HERE | {"content-type": "multipart/form-data; boundary=x"}, "content": b"--y"}
    reply = owner.send("POST", "/console/samples", **broken)
    assert (reply.status_code, reply.headers["content-type"][:9]) == (400, "text/html")


def test_static_files_are_kept_for_ever_by_their_digest(owner):
    page = owner.get("/console/").text
    for path in re.findall(r'(?:href|src)="(/console/static/[^"]+)"', page):
        reply = owner.get(path)
        assert reply.status_code == 200
        assert "immutable" in reply.headers["cache-control"]
        again = owner.get(path.partition("?")[0], headers={"if-none-match": reply.headers["etag"]})
        assert again.status_code == 304
        assert again.headers["cache-control"] == "no-cache"


def test_the_numbers_of_a_chart_are_files_of_its_page(owner):
    reply = owner.get("/console/gallery?name=hostile&chart=attacks&as=csv")
    assert reply.headers["content-type"].startswith("text/csv")
    rows = list(csv.reader(io.StringIO(reply.text)))
    assert rows[0] == ["attack", "advantage"]
    assert rows[1] == ["known rows", "0.93"]
    listed = json.loads(owner.get("/console/gallery?chart=regret&as=json").text)
    assert len(listed) == 60
    assert listed[0]["answers"] == 1.0
    assert owner.get("/console/gallery?chart=none&as=csv").headers["content-type"].startswith("text/html")


def test_a_form_reads_numbers_strictly():
    form = Form.blank(a="1e-5", b=" 3 ", c="nan", d="1e999", e="1_0", f="1_000", g="", h="-7")
    assert (form.real("a"), form.integer("b"), form.integer("h"), form.real("g", needed=False)) == (1e-5, 3, -7, None)
    assert form.ok
    for name in "cde":
        assert form.real(name) is None
    for name in "fg":
        assert form.integer(name) is None
    assert set(form.errors) == set("cdefg")
