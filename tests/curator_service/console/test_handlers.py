"""Handlers of pages over a fake API: the requests that each sends, and the messages that each shows."""

import asyncio
from functools import partial
from types import SimpleNamespace

from blindopt import wire
from curator_service.console import home, log, studies
from service_kit.console import ApiProblem, Form
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.curator_service.queries.inbox.measured_study import draft
from tests.curator_service.replaced_steps import replace_kept_release

STUDY = "std_0123456789abcdef"


class Api:
    """Replies from a table; keeps the requested paths."""

    def __init__(self, **listings):
        self.listings, self.paths = listings, []

    async def get(self, path, **query):
        self.paths.append(path)
        name = path.rpartition("/")[2]
        return {"next_page_token": None, "open": 0, "names": [], name: self.listings.get(name, [])}

    async def read(self, path, model, **query):
        return model.model_validate(await self.get(path, **query))


def _page(api, **more):
    """A page that returns the context of its template in place of a response."""
    rendered = {"show": lambda template, **context: context, "fragment": lambda template, **context: context}
    return SimpleNamespace(api=api, may=lambda *roles: True, path={"study_id": STUDY}, **rendered | more)


def _accounts(count, **more):
    spent = {"budget": {}, "row_epsilon": None, "total_epsilon": None, "total_plays": 0}
    shared = {
        "name": "s",
        "dataset_id": "ds_1",
        "release_epsilon": None,
        "state": "open",
        "opened_at": "x",
        **spent,
        **more,
    }
    return [{"study_id": f"std_{n:016x}", **shared} for n in range(count)]


def test_the_first_page_asks_as_much_for_many_studies_as_for_one():
    """It asks each second."""
    job = {"kind": "forecast", "id": "fct_1", "study_id": STUDY, "name": "n", "progress": 0.5}
    paths = []
    for count in (1, 50):
        api = Api(accounts=_accounts(count), jobs=[job], entries=[{"seq": 2}])
        waiting = asyncio.run(home.home(_page(api)))
        assert waiting["jobs"] == [job | {"what": "Forecast", "path": f"/studies/{STUDY}/forecasts/fct_1"}]
        paths.append(api.paths)
    assert paths[0] == paths[1]


def test_the_log_asks_for_grants_of_the_newest_studies_alone_and_keeps_the_one_that_is_looked_at():
    grants = [{"id": "grt_1", "name": "m"}]
    api = Api(accounts=[*_accounts(60), *_accounts(60, opened_at=None)], grants=grants)

    def choices(grant):
        return asyncio.run(log.log(_page(api, query={"grant": grant})))["grants"]

    assert choices("grt_2") == [("grt_2", "grt_2"), ("grt_1", "s: m")]
    requests = [path for path in api.paths if path.endswith("/grants")]
    assert len(requests) == 20
    assert requests[0] == f"/v1/studies/std_{59:016x}/grants"
    assert choices("grt_1") == [("grt_1", "s: m")]


def test_two_tabs_that_release_each_show_their_own_result():
    problem = wire.Problem(
        type="x", title="x", status=409, detail="it is being drawn", instance="/", code="state_conflict",
        retryable=False, request_id="0" * 32,
    )  # fmt: skip

    class Releasing(Api):
        async def post(self, path, body=None, *, key):
            await asyncio.sleep(took_s if key == "second" else took_s + 0.05)
            if key == "second":
                raise ApiProblem(problem, {})
            return {"id": STUDY}

    took_s = 0.05

    def tab(key):
        page = _page(Releasing(), go=lambda where, message, mood="good": message)
        return studies.release(page, Form(key, {"sure": ["yes"]}))

    async def both():
        return await asyncio.gather(tab("first"), tab("second"))

    assert asyncio.run(both()) == [
        "Released: the study is open. Now give a modeler a grant.",
        "Nothing was released. it is being drawn",
    ]
    assert studies._failures == {}
    took_s = 2.1  # both go on after their pages

    async def then():
        messages = await both()
        await asyncio.sleep(0.2)
        return messages

    assert all("being drawn" in message for message in asyncio.run(then()))
    assert studies._failures.pop(STUDY) == "Nothing was released. it is being drawn"
    assert not studies._under_way


# --- what it asks -------------------------------------------------------------------------------------


def test_jobs_under_way_are_those_of_all_studies(tmp_path, small, monkeypatch):
    in_process = InProcessCurator(tmp_path)
    monkeypatch.setattr(in_process.curator.runner.kinds["forecast"], "at_once", 0)
    identity = in_process.open(small.csv, partial(draft, small))
    begun = in_process.call("owner", "POST", f"/v1/studies/{identity}/forecasts", json={})
    jobs = []

    def look(keep, *drawn):
        jobs.extend(in_process.call("owner", "GET", "/v1/jobs")["jobs"])
        return keep(*drawn)

    replace_kept_release(monkeypatch, look)
    other = in_process.open(small.csv, partial(draft, small))
    assert [(job["kind"], job["id"], job["study_id"], job["name"], job["progress"]) for job in jobs] == [
        ("release", other, other, "by hand", 1.0),
        ("forecast", begun["id"], identity, "by hand", 0.0),
    ]
    in_process.call("owner", "POST", f"/v1/studies/{identity}/forecasts/{begun['id']}:cancel")
    assert in_process.call("owner", "GET", "/v1/jobs") == {"jobs": []}
    in_process.close()
