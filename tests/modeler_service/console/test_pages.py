"""The modeler's pages, as a browser without JavaScript meets them."""

import asyncio
import csv
import io
import json

import httpx
import pyarrow.parquet as pq
import pytest

from modeler_service import app as modeler_app
from modeler_service.settings import Settings
from modeler_service.use_cases import exports


@pytest.mark.parametrize("role", ["vendor", "viewer"])
def test_a_run_is_taken_home_in_each_form(browsers, role, ended):
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


def _cookie(browser):
    return "; ".join(f"{k}={v}" for k, v in browser.cookies.items())


def test_without_pyarrow_there_is_an_explanation_instead_of_the_link(browsers, service, ended, monkeypatch):
    """In this process, on what the service keeps: there pyarrow can be taken away."""
    service.stop()
    monkeypatch.setattr(exports, "has_parquet", lambda: False)
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
    assert "it needs the extra <code>parquet</code> (pyarrow)" in text
