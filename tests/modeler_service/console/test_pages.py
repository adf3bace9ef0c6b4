"""The modeler's pages, as a browser without JavaScript meets them."""

import asyncio
import csv
import io
import json
import re
import sys
from dataclasses import replace

import httpx
import pyarrow.parquet as pq
import pytest

from blindopt import wire
from blindopt.client import Vendor
from modeler_service import app as modeler_app
from modeler_service.console import runs
from modeler_service.settings import Settings


@pytest.mark.parametrize("role", ["vendor", "viewer"])
def test_a_run_is_downloaded_in_each_form(browsers, role, ended):
    browser = browsers[role]
    browser.get(f"/runs/{ended}")
    assert browser.status == 200
    files = {}
    for form in ("csv", "json", "parquet"):
        link = f"/runs/{ended}/export?format={form}"
        assert f'href="/console{link}"' in browser.text
        reply = browsers[role].client.request("GET", "/console" + link, headers={"cookie": _cookie(browser)})
        assert reply.status_code == 200
        files[form] = reply.content
    listed = list(csv.DictReader(io.StringIO(files["csv"].decode())))
    whole = json.loads(files["json"])
    table = pq.read_table(io.BytesIO(files["parquet"]))
    rows = [int(line["row"]) for line in listed]
    assert rows == [trial["row"] for trial in whole["trials"]] == table.column("row").to_pylist()
    assert len(rows) == 6
    assert "needs the extra" not in browser.shown


def test_the_trials_are_filtered_sorted_and_turned_by_their_address(browsers, api, ended):
    browser = browsers["viewer"]
    trials = api.export(ended).trials
    address = f"/runs/{ended}/trials?sort=y&order=newest&first=2&column=y&column=row"
    browser.get(address)
    shown = [int(n) for n in re.findall(r'<tr id="t(\d+)"', browser.text)]
    assert shown == [t.number for t in sorted(trials[1:], key=lambda t: -t.y)]
    heads = re.findall(r"<th [^>]*>(?:<a [^>]*>)?([^<]+)", browser.text)
    assert [head.strip() for head in heads] == ["Trial", "Candidate", "Answer"]
    assert 'aria-sort="descending"' in browser.text
    assert "column=y&amp;column=row" in browser.text  # kept in the links of the heads
    assert "as=csv" in browser.text
    browser.get(f"/runs/{ended}/trials?row={trials[0].row}&state=declined")
    assert "No trial matches." in browser.shown
    browser.get(f"/runs/{ended}/trials?offset=4")
    assert "5 to 6 of 6" in browser.shown
    assert 'rel="prev"' in browser.text


def test_a_run_has_tabs_and_a_log_of_its_own(browsers, ended):
    browser = browsers["vendor"]
    for path in ("", "/trials", "/posterior", "/log"):
        browser.get(f"/runs/{ended}{path}")
        assert browser.status == 200
        assert re.findall(r'aria-current="page">([^<]+)</a></li>\s*(?:<li>|</ul>\s*</nav>\s*<)', browser.text)
    assert re.search(r"\(vendor\) started \S.* with ", browser.shown)
    assert " logged in" not in browser.shown
    browser.get("/log?group=people")
    assert " logged in" in browser.shown
    assert " started " not in browser.shown.partition("What happened")[2]


def test_a_used_up_limit_is_said_in_words():
    detail = "privacy_budget_exhausted (403): queries: 1 requested with 100 of 100 spent"
    problem = wire.RunProblem(code="privacy_budget_exhausted", detail=detail)
    assert runs.sentence(problem) == "The owner's limit of 100 measurements is used up."
    problem = wire.RunProblem(code="invalid", detail="invalid (422): no such candidate")
    assert runs.sentence(problem) == "No such candidate"


def _cookie(browser):
    return "; ".join(f"{k}={v}" for k, v in browser.cookies.items())


def test_without_pyarrow_there_is_an_explanation_instead_of_the_link(browsers, service, ended, monkeypatch):
    """In this process, on what the service keeps: there pyarrow can be taken away."""
    service.stop()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    app = modeler_app.build(Settings(data_dir=service.data))

    async def look(path):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return (await client.get(path, headers={"cookie": _cookie(browsers["vendor"])})).text

    try:
        assert json.loads(asyncio.run(look("/v1/meta")))["exports"] == ["json", "csv"]
        text = asyncio.run(look(f"/console/runs/{ended}"))
    finally:
        app.state.context.database.close()
        service.start()
    assert "format=csv" in text
    assert "format=parquet" not in text
    assert "Parquet needs the extra <code>parquet</code> (pyarrow)" in text


def test_an_ended_run_is_archived_and_leaves_the_counts_until_it_is_taken_out(browsers, ended, service):
    """Found by hand: "failed 3" stayed on the first page for ever."""
    browser = browsers["vendor"]
    with service.http() as api:
        counts = lambda: api.get("/v1/runs").json()["counts"]["completed"]  # noqa: E731
        before = counts()
        browser.get(f"/runs/{ended}")
        browser.submit(f"/runs/{ended}:archive")
        assert (browser.status, counts()) == (200, before - 1)
        assert ended not in browser.get("/").text
        assert ended not in browser.get("/runs").text
        assert ended in browser.get("/runs?archived=yes").text
        assert api.get(f"/v1/runs/{ended}/trials").json()["trials"]
        assert ended in {run["id"] for run in api.get("/v1/runs").json()["runs"]}
        assert ended not in {run["id"] for run in api.get("/v1/runs?archived=false").json()["runs"]}
        browser.get(f"/runs/{ended}")
        browser.submit(f"/runs/{ended}:unarchive")
        assert counts() == before
        assert ended in browser.get("/runs").text


def test_a_note_and_tags_are_saved_filter_the_list_and_are_in_no_log(browsers, ended, service):
    browser = browsers["vendor"]
    browser.get(f"/runs/{ended}")
    browser.submit(f"/runs/{ended}:label", own_note="second line\r\nis <b>kept</b>", tags="pilot, second  try, pilot")
    assert "Note and tags are saved." in browser.text
    with service.http() as api:
        run = api.get(f"/v1/runs/{ended}").json()
        assert (run["note"], run["tags"]) == ("second line\nis <b>kept</b>", ["pilot", "second try"])
        listed = api.get("/v1/runs?tag=pilot").json()
        assert ended in {run["id"] for run in listed["runs"]}
        assert listed["tags"] == ["pilot", "second try"]
        assert api.get("/v1/runs?tag=pil").json()["runs"] == []
    assert "second line" in browser.get("/").text
    page = browser.get("/runs?tag=second+try")
    assert ended in page.text
    assert "is &lt;b&gt;kept&lt;/b&gt;" in page.text
    assert ended not in browser.get("/runs?tag=none").text
    browser.get(f"/runs/{ended}")
    refused = {"own_note": "third line", "tags": ",".join(map(str, range(11)))}
    browser.submit(f"/runs/{ended}:label", **refused)
    assert "Not saved: there are 10 tags of 30 characters at most" in browser.text
    assert browser.form(f"/runs/{ended}:label").items() >= refused.items()
    assert "second line" in browser.text
    assert "second line" in browsers["viewer"].get(f"/runs/{ended}").text
    assert "Save" not in browsers["viewer"].text
    assert "pilot" not in str(service.records())
    assert "run.labelled" in {record["kind"] for record in service.records()}


def test_an_ended_run_is_deleted_and_the_logs_stay_verified(browsers, service, curator, owner, opened, run_of, until):
    """Another run under the same grant goes on: its witness knows what the deleted run asked."""
    mine = replace(opened, token=owner.grant(opened.id, wire.GrantCreate(name="deleted")).token)
    browser = browsers["vendor"]
    with Vendor(service.url, service.token) as api:
        run = api.start(run_of(curator.url, mine, iterations=1, initial_rows=1, seed=4)).id
        until(lambda: api.run(run).view.ended_at)
        browser.get(f"/runs/{run}")
        assert "The owner's charges stay." in browser.text
        browser.submit(f"/runs/{run}:delete")
        assert (browser.path, browser.status) == ("/console/runs", 200)
        assert run not in browser.get("/runs").text
        with service.http() as http:
            assert http.get(f"/v1/runs/{run}").status_code == 404
            assert http.get(f"/v1/runs/{run}/trials").status_code == 404
        for table in ("trials", "observations", "versions", "messages"):
            assert service.rows(f"SELECT count(*) FROM {table} WHERE run_id = ?", run) == [(0,)]
        assert (
            service.rows("SELECT body FROM replies WHERE instr(body, ?) > 0 AND instr(body, 'trials') > 0", run) == []
        )
        another = api.start(run_of(curator.url, mine, iterations=1, initial_rows=1, seed=5)).id
        until(lambda: api.run(another).view.ended_at)
        assert api.run(another).state == "completed"
    verified = service.run_in_process("audit", "verify")
    assert verified.returncode == 0, verified.stderr
