"""Studies of groups over REST: what a vendor gets, what it costs, and what is refused."""

import asyncio
import io
import itertools
import secrets
import threading
from dataclasses import replace
from decimal import Decimal
from typing import ClassVar

import numpy as np
import pytest
from scipy import stats
from sqlalchemy import text

from blindopt import wire
from blindopt.audit.merkle_log import sha256
from blindopt.errors import StillRunning
from curator_service.privacy.measurement import groups as of_answers
from curator_service.privacy.noise import add_integer_laplace
from curator_service.releases import groups
from curator_service.releases.mechanisms import groups as of_release
from curator_service.releases.mechanisms import private_centres
from curator_service.studies import release_cache
from service_kit.context.request import RequestContext
from service_kit.store import audit_log
from tests.builders import a_study, group_release
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator
from tests.curator_service.replaced_noise import replace_integer_laplace
from tests.interventions import act_after

FAR = 2**40
BOX = [wire.Feature(column=name, lower=0.0, upper=1.0) for name in "ab"]
FILES = itertools.count()
GRID = wire.GridCells(kind="grid", parts=[2, 2])


@pytest.fixture(scope="module")
def curator(tmp_path_factory):
    curator = InProcessCurator(tmp_path_factory.mktemp("groups"))
    yield curator
    curator.check()
    curator.close()


@pytest.fixture
def exact(monkeypatch):
    """No noise, so that what is released can be compared; the laws that were drawn from."""
    laws = []

    def add(values, sensitivity, epsilon):
        laws.append((len(values), sensitivity, epsilon))
        return list(values)

    replace_integer_laplace(monkeypatch, add, of_release, of_answers)
    return laws


def csv_of(points, y, who=None):
    rows = [f"{a!r},{b!r},{v!r}" for (a, b), v in zip(points, y, strict=True)]
    if who is None:
        return ("a,b,y\n" + "\n".join(rows) + "\n").encode()
    return ("a,b,y,who\n" + "\n".join(f"{row},{w}" for row, w in zip(rows, who, strict=True)) + "\n").encode()


def register(curator, csv, **more):
    return curator.register(csv, **more)


def draft(dataset, cells=GRID, min_count=2, features=BOX, **more):
    values = {
        "release": group_release("0.25", cells=cells, min_count=min_count),
        "answers": wire.AutoAnswers(epsilon="0.75", value_bound=1.0, centre=2.0),
        "budget": wire.Budget(epsilon_per_row="1"),
    }
    return a_study(dataset_id=dataset, features=features, **values | more)


def release(curator, spec):
    """A released study; its id. The modeler's token is kept."""
    return curator.release(spec)


def candidates(curator, study):
    return np.load(io.BytesIO(curator.send("modeler", "GET", f"/v1/studies/{study}/candidates").content))


def query(curator, study, *rows, plays=1):
    body = {"rows": [{"row": row, "plays": plays} for row in rows]}
    return curator.send("modeler", "POST", f"/v1/studies/{study}/queries", json=body)


# In the four quarters of the box: three records, one, none, and four with y outside of the clip on both sides.
POINTS = [(0.1, 0.1), (0.2, 0.3), (0.4, 0.4), (0.1, 0.9), (0.6, 0.6), (0.9, 0.9), (0.7, 0.8), (-5.0, 0.2), (0.8, 9.0)]
Y = [1.5, 2.0, 2.5, 2.75, 1e6, -1e6, 2.5, 2.25, 3.5]


@pytest.fixture
def study(curator, exact):
    """A released study without noise; each test has a dataset and account of its own, and a first record of its own."""
    number = next(FILES)
    return release(curator, draft(register(curator, csv_of(POINTS, [1.5 + number * 1e-9, *Y[1:-1], 3.5 + number]))))


def test_candidates_are_the_groups_with_enough_records_and_answers_their_clipped_means(curator, study, exact):
    view = curator.call("modeler", "GET", f"/v1/studies/{study}")
    assert (view["n"], view["r"], view["mechanism"], view["status"]) == (2, 2, "groups", "sound")
    assert (view["epsilon"], view["sensitivity"], view["noise"]["family"]) == ("0.25", None, "none")
    assert candidates(curator, study).tolist() == [[-0.25, -0.25], [0.25, 0.25]]  # scaled units
    assert curator.call("owner", "GET", f"/v1/studies/{study}")["report"]["counts"] == [4, 4]
    answers = query(curator, study, 0, 1).json()["answers"]
    assert [answer["y"] for answer in answers] == pytest.approx([(1.5 + 2 + 2.5 + 2.25) / 4, (3 + 1 + 2.5 + 3) / 4])
    assert exact == [(4, 2, Decimal("0.25")), *[(1, 2 * of_answers.LEVELS, Decimal("0.75"))] * 2]
    assert answers[0]["passport"]["privacy"]["scale"] == pytest.approx(2 / 0.75 / 4)


def test_different_groups_cost_one_epsilon_and_a_second_answer_is_refused(curator, study):
    assert query(curator, study, 0).status_code == query(curator, study, 1).status_code == 201
    refused = query(curator, study, 0).json()
    assert (refused["code"], refused["budget"]["cap"]) == ("privacy_budget_exhausted", "epsilon_per_row")
    account = curator.call("owner", "GET", f"/v1/studies/{study}/account")
    assert (account["row_epsilon"], account["total_epsilon"]) == ("1", "1.75")
    dataset = account["dataset_id"]
    whole = curator.call("owner", "GET", f"/v1/datasets/{dataset}/account")
    assert (whole["epsilon"], whole["everyone_epsilon"], whole["uses"][0]["epsilon"]) == ("1", "1", "1")
    losses = curator.call("owner", "GET", f"/v1/studies/{study}/accounting")["rows"]
    assert [(loss["answers"], loss["rows"], loss["epsilon"]) for loss in losses] == [(1, 2, "1")]
    exposed = curator.call("owner", "GET", f"/v1/studies/{study}/exposure")["rows"]
    assert [(row["record"], row["spent"]) for row in exposed] == [(None, "1"), (None, "1")]


def answer_all(curator, study, **sent):
    return curator.send("owner", "POST", f"/v1/studies/{study}:answer_all", **sent)


def get_answers(curator, study, who="modeler"):
    return curator.send(who, "GET", f"/v1/studies/{study}/answers")


def stored_bytes(curator):
    with curator.context.database.read() as db:
        return [row.body for row in db.execute(text("SELECT body FROM replies"))]


def lines_of(curator, study):
    entries = curator.call("owner", "GET", f"/v1/studies/{study}/ledger?page_size=1000")["entries"]
    return [(line["kind"], line["row"], line["plays"], line["epsilon"], line["cap"]) for line in entries]


def test_every_group_is_answered_by_one_charge_each_and_everybody_reads_the_same_bytes(curator, study, exact):
    """The ledger is counted by hand: the release, and one line for each group, whoever repeats the request."""
    assert get_answers(curator, study).status_code == 409
    first, again = answer_all(curator, study, key="a"), answer_all(curator, study, key="b")
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.headers["Idempotency-Replayed"] == "true"
    curator.grant(study, "another")
    replies = [get_answers(curator, study, who) for who in ("modeler", "another", "owner")]
    assert {reply.content for reply in (first, again, *replies)} == {first.content}
    body = first.json()
    assert [(a["row"], a["play"]) for a in body["answers"]] == [(0, 1), (1, 1)]
    assert [a["y"] for a in body["answers"]] == pytest.approx([(1.5 + 2 + 2.5 + 2.25) / 4, (3 + 1 + 2.5 + 3) / 4])
    assert len(exact) == 3  # the numbers, and one draw for each group
    of_all = [("answers", row, 1, "0.75", None) for row in (0, 1)]
    assert lines_of(curator, study) == [("release", None, 0, "0.25", None), *of_all]
    account = curator.call("owner", "GET", f"/v1/studies/{study}/account")
    assert (account["row_epsilon"], account["total_epsilon"], account["total_plays"]) == ("1", "1.75", 2)
    exposed = curator.call("owner", "GET", f"/v1/studies/{study}/exposure")["rows"]
    assert [(row["row"], row["queries"], row["spent"]) for row in exposed] == [(0, 1, "1"), (1, 1, "1")]
    signed = curator.call("owner", "POST", f"/v1/studies/{study}:report")["report"]
    (reported,) = signed["studies"]
    losses = [(loss["answers"], loss["rows"]) for loss in reported["spent"]["rows"]]
    assert (reported["worst_epsilon"], losses) == ("1", [(1, 2)])
    assert query(curator, study, 0).status_code == 403
    records = [r for r in records_of(curator) if r.get("details", {}).get("query_id") == body["id"]]
    charge, reply = records
    assert (charge["kind"], charge["details"]["all"], charge["details"]["rows"]) == ("charge", True, [[0, 1], [1, 1]])
    assert (reply["kind"], reply["details"]["all"], reply["actor"]) == ("query.all_answered", True, charge["actor"])
    assert reply["exchange"]["reply_sha256"] == sha256(first.content)
    groups = curator.call("owner", "GET", f"/v1/studies/{study}/groups")["groups"]
    assert [group["y"] for group in groups] == [a["y"] for a in body["answers"]]
    assert [group["recommended"] for group in groups] == [False, True]


def records_of(curator):
    with curator.context.database.read() as db:
        return [entry.record for entry in audit_log.walk(db)]


def test_a_cap_in_the_way_refuses_all_groups_draws_nothing_and_is_told_the_owner(curator, exact):
    dataset = register(curator, csv_of(POINTS, [*Y[:-1], 21.0]))
    queries = release(curator, draft(dataset, budget=wire.Budget(queries=1)))
    queried = release(curator, draft(dataset))
    assert query(curator, queried, 1).status_code == 201
    exact.clear()
    for study, cap, used in ((queries, "queries", "0.25"), (queried, "epsilon_per_row", "0.75")):
        refused = answer_all(curator, study)
        assert (refused.status_code, refused.json()["budget"]["cap"]) == (403, cap), refused.text
        assert lines_of(curator, study)[-1][0] == "refused"
        assert curator.call("owner", "GET", f"/v1/studies/{study}/account")["row_epsilon"] == used
        assert get_answers(curator, study, "owner").status_code == 409
    assert exact == []
    body = {"budget": {"queries": 2}, "reason": "all groups"}
    curator.call("owner", "PUT", f"/v1/studies/{queries}/budget", json=body)
    assert answer_all(curator, queries).status_code == 201


def test_only_an_owner_has_all_groups_answered_and_only_of_groups(curator, study):
    assert curator.send("modeler", "POST", f"/v1/studies/{study}:answer_all").json()["code"] == "forbidden"
    local = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="0.5")
    dataset = curator.call("owner", "GET", f"/v1/studies/{study}")["spec"]["dataset_id"]
    assert answer_all(curator, curator.draft(draft(dataset))["id"]).json()["code"] == "study_not_open"
    records = release(curator, draft(dataset, release=local, budget=wire.Budget()))
    assert (answer_all(curator, records).status_code, get_answers(curator, records).status_code) == (409, 409)
    curator.call("owner", "POST", f"/v1/studies/{study}:close")
    assert answer_all(curator, study).json()["code"] == "study_not_open"


def test_two_owners_at_once_have_one_query_and_a_fault_in_the_draw_draws_it_later_under_its_charge(
    curator, exact, monkeypatch
):
    """More groups than are drawn within the transaction of the charge."""
    csv = "a,b,y\n" + "".join(f"{(i + 0.5) / 80!r},0.5,{i % 3}\n" for i in range(80))
    cells = wire.GridCells(kind="grid", parts=[80, 1])
    study = release(curator, draft(register(curator, csv), cells, 1))
    with monkeypatch.context() as patch:
        patch.setattr(groups, "answers", lambda *_: 1 // 0)
        assert answer_all(curator, study).status_code == 500
    charged = lines_of(curator, study)
    assert len(charged) == 81
    assert get_answers(curator, study).status_code == 409

    async def twice():
        path = f"/v1/studies/{study}:answer_all"
        callers = [RequestContext(owner, secrets.token_hex(16), "POST", path, key, sha256(b"")) for key in "ab"]
        requests = [curator.curator.queries.answer_all(caller, study) for caller in callers]
        return await asyncio.gather(*requests, return_exceptions=True)

    owner = asyncio.run(curator.context.authentication.authenticate(f"Bearer {curator.tokens['owner']}"))
    first, second = asyncio.run(twice())
    assert isinstance(second, StillRunning)
    assert get_answers(curator, study).content == first.body == answer_all(curator, study).content
    assert lines_of(curator, study) == charged
    assert len(exact) == 1 + 80


@pytest.mark.parametrize("factor", [1, 2], ids=["", "half the scale"])
def test_all_answers_follow_the_law_that_their_description_says(curator, monkeypatch, factor):
    """A thousand groups of one record whose y is known. Half the scale is the control."""
    n = 1_000
    csv = "a,b,y\n" + "".join(f"{(i + 0.5) / n!r},{factor / 4},2.5\n" for i in range(n))
    numbers = group_release("1000", cells=wire.GridCells(kind="grid", parts=[n, 1]), min_count=1)
    study = release(curator, draft(register(curator, csv), release=numbers, budget=wire.Budget()))

    def add(values, sensitivity, epsilon):
        return add_integer_laplace(values, sensitivity, factor * epsilon)

    replace_integer_laplace(monkeypatch, add, of_answers)
    answers = wire.QueryReply.model_validate_json(answer_all(curator, study).content).answers
    assert len(answers) == n
    scale = 2 * 1.0 / 0.75  # 2 C / epsilon, of one record
    assert {answer.passport.privacy.scale for answer in answers} == {scale}
    p = stats.kstest([(answer.y - 2.5) / scale for answer in answers], stats.laplace.cdf).pvalue
    assert p > 1e-7 if factor == 1 else p < 1e-7


def test_the_cap_of_the_file_counts_the_group_that_was_queried_most(curator, exact):
    dataset = register(curator, csv_of(POINTS, [*Y[:-1], 7.0]))
    caps = {"epsilon": "1", "delta": None}
    curator.call("owner", "PUT", f"/v1/datasets/{dataset}/account/caps", json=caps)
    study = release(curator, draft(dataset, budget=wire.Budget()))
    assert query(curator, study, 0).status_code == query(curator, study, 1).status_code == 201
    assert query(curator, study, 1).status_code == 403
    lines = curator.call("owner", "GET", f"/v1/studies/{study}/ledger")["entries"]
    assert [(line["kind"], line["cap"]) for line in lines[-2:]] == [("answers", None), ("refused", "dataset.epsilon")]
    local = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="0.5")
    identity = curator.draft(draft(dataset, release=local, budget=wire.Budget()))
    assert curator.send("owner", "POST", f"/v1/studies/{identity['id']}:release").status_code == 403


def test_the_owner_opens_a_group(curator, study):
    group = curator.call("owner", "POST", f"/v1/studies/{study}:open_group", json={"row": 0})
    assert group["records"] == [1, 2, 3, 8]
    assert (group["size"], group["count"]) == (4, 4)
    assert group["mean"] == pytest.approx((1.5 + 2 + 2.5 + 2.25) / 4)
    assert (group["centre"], group["lower"], group["upper"]) == ([0.25, 0.25], [0.0, 0.0], [0.5, 0.5])
    assert curator.send("owner", "POST", f"/v1/studies/{study}:open_group", json={"row": 2}).status_code == 404
    record = curator.send("owner", "POST", f"/v1/studies/{study}:open_record", json={"row": 0})
    assert (record.status_code, "open the group" in record.text) == (409, True)


def test_the_owner_sees_every_group_with_what_it_has_spent_and_nothing_exact(curator, study):
    query(curator, study, 1)
    page = curator.call("owner", "GET", f"/v1/studies/{study}/groups")
    assert [(g["row"], g["count"], g["spent"]) for g in page["groups"]] == [(0, 4, "0"), (1, 4, "0.75")]
    assert (page["groups"][0]["centre"], page["groups"][0]["upper"]) == ([0.25, 0.25], [0.5, 0.5])
    assert {page["groups"][0][name] for name in ("y", "sd", "expected")} == {None}
    second = curator.call("owner", "GET", f"/v1/studies/{study}/groups?page_size=1&page_token=0")["groups"]
    assert [g["row"] for g in second] == [1]


def test_a_withheld_record_is_taken_out_of_the_sums_and_nothing_is_declined(curator, study):
    spec = curator.call("owner", "GET", f"/v1/studies/{study}")["spec"]
    curator.call("owner", "POST", f"/v1/datasets/{spec['dataset_id']}:withhold", json={"record": 1})
    reply = query(curator, study, 0).json()
    assert reply["declined"] == []
    assert reply["answers"][0]["y"] == pytest.approx(2 + (0 + 0.5 + 0.25) / 4)
    assert curator.call("owner", "POST", f"/v1/studies/{study}:open_group", json={"row": 0})["size"] == 3
    again = release(curator, draft(spec["dataset_id"]))
    assert curator.call("owner", "GET", f"/v1/studies/{again}")["report"]["counts"] == [3, 4]
    assert answer_all(curator, again).json()["answers"][0]["y"] == pytest.approx((2 + 2.5 + 2.25) / 3)


class Counted(np.ndarray):
    """Records that count how many of them are read."""

    reads: ClassVar[list[int]] = []

    def __getitem__(self, key):
        read = super().__getitem__(key)
        Counted.reads.append(np.size(read))
        return np.asarray(read)


def test_a_query_of_a_group_reads_no_record_but_those_withheld(curator, exact, monkeypatch):
    """So the time of a reply does not tell how many records a group has: 8 and 2 here."""
    dataset = register(curator, csv_of([(0.1, 0.1)] * 8 + [(0.9, 0.9)] * 2, [2.5] * 7 + [1.25] + [3.0] * 2))
    study, cache = release(curator, draft(dataset, budget=wire.Budget())), curator.curator.released._cache
    curator.call("modeler", "GET", f"/v1/studies/{study}")
    counted = replace(cache[study], records=np.asarray(cache[study].records).view(Counted))
    monkeypatch.setitem(cache, study, counted)
    Counted.reads.clear()
    means = [query(curator, study, row).json()["answers"][0]["y"] for row in (0, 1)]
    assert means == pytest.approx([2 + (7 * 0.5 - 0.75) / 8, 3.0])
    assert Counted.reads == []
    curator.call("owner", "POST", f"/v1/datasets/{dataset}:withhold", json={"record": 8})
    means = [query(curator, study, row).json()["answers"][0]["y"] for row in (0, 1)]
    assert means == pytest.approx([2 + 7 * 0.5 / 8, 3.0])
    assert Counted.reads == [1, 1]
    counted.values_of(counted.members(0))  # the control: what a sum over the group reads
    assert Counted.reads[2:] == [8]


def test_sums_that_are_not_cached_are_added_up_once_beside_the_requests_that_need_them(curator, study, monkeypatch):
    queries, released, right = curator.curator.queries, curator.curator.released, release_cache.sums_of_groups
    threads, may_go_on = [], threading.Event()

    def add_up(*parts):
        threads.append(threading.get_ident())
        if threads[-1] != threading.main_thread().ident:
            may_go_on.wait()
        return right(*parts)

    async def ask_twice():
        body = wire.QueryRequest(rows=[wire.RowPlays(row=0)])
        path = f"/v1/studies/{study}/queries"
        callers = [RequestContext(grant, secrets.token_hex(16), "POST", path, key, sha256(b"")) for key in ("a", "b")]
        tasks = [asyncio.create_task(queries.ask(caller, study, body)) for caller in callers]
        await asyncio.sleep(0)  # both have begun, and nothing has been read
        may_go_on.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    grant = asyncio.run(curator.context.authentication.authenticate(f"Bearer {curator.tokens['modeler']}"))
    released._cache.clear()
    monkeypatch.setattr(release_cache, "sums_of_groups", add_up)
    replies = asyncio.run(ask_twice())
    assert {reply.status for reply in replies} == {201, 403}  # epsilon for one answer
    assert len(threads) == 1
    assert threading.main_thread().ident not in threads


@pytest.mark.parametrize("is_of_all", [False, True], ids=["one group", "all groups"])
def test_a_record_that_is_withheld_while_an_answer_is_drawn_is_not_in_it(curator, exact, monkeypatch, is_of_all):
    """Replies are paced, so the draw is in a thread, and what was drawn is stored later."""
    dataset = register(curator, csv_of(POINTS, [1.625 + is_of_all / 64, *Y[1:-1], 13.0 + is_of_all]))
    study = release(curator, draft(dataset, reply_after_ms=200))
    withheld = []

    def withhold(*_):
        if not withheld:  # a second time, the answers are drawn without the record
            withheld.append(curator.call("owner", "POST", f"/v1/datasets/{dataset}:withhold", json={"record": 1}))

    act_after(monkeypatch, groups, "answers", withhold)
    reply = answer_all(curator, study) if is_of_all else query(curator, study, 0)
    assert reply.json()["answers"][0]["y"] == pytest.approx(2 + (0 + 0.5 + 0.25) / 4)
    assert withheld


def test_an_erased_study_keeps_what_it_cost(curator, study):
    sent = answer_all(curator, study).content
    assert sent in stored_bytes(curator)
    dataset = curator.call("owner", "GET", f"/v1/studies/{study}")["spec"]["dataset_id"]
    for path in (f"/v1/studies/{study}:close", f"/v1/datasets/{dataset}:archive", f"/v1/datasets/{dataset}:erase"):
        curator.call("owner", "POST", path)
    assert query(curator, study, 0).status_code == answer_all(curator, study).status_code == 410
    assert [get_answers(curator, study, who).status_code for who in ("modeler", "owner")] == [410, 410]
    assert sent not in stored_bytes(curator)
    assert curator.call("owner", "GET", f"/v1/datasets/{dataset}/account")["epsilon"] == "1"
    spent = curator.call("owner", "GET", f"/v1/studies/{study}/exposure")["rows"]
    assert [row["spent"] for row in spent] == ["1", "1"]


def test_where_no_group_is_large_enough_the_largest_is_the_only_candidate(curator, exact):
    study = release(curator, draft(register(curator, csv_of(POINTS, [*Y[:-1], 9.0])), min_count=100))
    assert candidates(curator, study).tolist() == [[-0.25, -0.25]]
    assert query(curator, study, 0).status_code == 201


# Points, y, and numbers of parts; no two files are the same, so that each has an account of its own.
EDGES = {
    "one record of all": ([[0.1, 0.1]], [1.0], [2, 2]),
    "two records": ([[0.1, 0.1], [0.9, 0.9]], [1.0, 2.0], [2, 2]),
    "all records in one group": ([[0.1, 0.1]] * 30, np.linspace(0, 9, 30), [2, 2]),
    "every y outside of the clip": ([[0.1, 0.1], [0.9, 0.9]] * 4, [wire.OUTCOME_MAX, -wire.OUTCOME_MAX] * 4, [2, 2]),
    "points outside of the bounds": ([[-1e300, 5.0], [1e300, -5.0]], [1.0, 2.0], [2, 2]),
    "points on all borders": ([[a, b] for a in (0.0, 0.5, 1.0) for b in (0.0, 0.5, 1.0)], range(9), [2, 2]),
    "one group": ([[0.1, 0.1], [0.9, 0.9]], [1.0, 3.0], [1, 1]),
    "one feature": ([[0.1], [0.9]], [1.0, 2.0], [3]),
    "20 features": ([[0.1] * 20, [0.9] * 20], [1.0, 2.0], [2] * 10 + [1] * 10),
    "most groups": ([[0.1], [0.9]], [1.0, 3.0], [10_000]),
}


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("edge", EDGES)
def test_edges_have_answers_and_everything_is_accounted(edge, curator):
    """With the real noise. A group may have fewer records than noise takes away: it is then divided by 1."""
    points, y, parts = EDGES[edge]
    names = [f"x{j}" for j in range(len(parts))]
    rows = [[*point, v] for point, v in zip(points, np.asarray(y, dtype=float).tolist(), strict=True)]
    csv = "\n".join([",".join([*names, "y"]), *(",".join(map(repr, row)) for row in rows)])
    features = [wire.Feature(column=name, lower=0.0, upper=1.0) for name in names]
    cells = wire.GridCells(kind="grid", parts=parts)
    study = release(curator, draft(register(curator, csv.encode()), cells, 1, features))
    report = curator.call("owner", "GET", f"/v1/studies/{study}")["report"]
    n = len(report["counts"])
    assert candidates(curator, study).shape == (n, len(parts))
    assert 1 <= n <= np.prod(parts)
    rows = range(min(n, 4))
    answers = query(curator, study, *rows).json()["answers"]
    assert [answer["row"] for answer in answers] == [*rows]
    assert np.isfinite([answer["y"] for answer in answers]).all()
    opened = [curator.call("owner", "POST", f"/v1/studies/{study}:open_group", json={"row": row}) for row in rows]
    assert all((group["mean"] is None) == (group["size"] == 0) for group in opened)
    assert all(1 <= group["mean"] <= 3 for group in opened if group["size"])
    account = curator.call("owner", "GET", f"/v1/studies/{study}/account")
    most = "1" if len(rows) > 1 else "0.75"  # where one group was queried, a record that stays in it loses most
    assert (account["row_epsilon"], account["total_epsilon"]) == (most, f"{0.25 + 0.75 * len(rows):g}")
    signed = curator.call("owner", "POST", f"/v1/studies/{study}:report")
    assert signed["report"]["studies"][0]["worst_epsilon"] == signed["report"]["account"]["epsilon"] == most
    sandbox = curator.call("owner", "POST", f"/v1/studies/{study}:sandbox")
    assert (sandbox["state"], len(sandbox["report"]["counts"]) >= 1) == ("open", True)


def test_persons_have_their_noise_for_all_their_records(curator, exact):
    who = ["p", "p", "p", "q", "q", "r", "r", "s", "s"]
    csv = csv_of(POINTS, [*Y[:-1], 11.0], who)
    study = release(curator, draft(register(curator, csv, person="who", rows_per_person="2"), min_count=1))
    view = curator.call("modeler", "GET", f"/v1/studies/{study}")
    assert "the records of one person, 2 at most, are replaced by any others" in view["guarantee"]
    answer_all(curator, study)
    assert exact[0] == (4, 4, Decimal("0.25"))
    assert exact[1:] == [(1, 4 * of_answers.LEVELS, Decimal("0.75"))] * view["n"]


@pytest.mark.parametrize("d", [1, 3, 20])
def test_centres_are_groups_in_any_number_of_dimensions(curator, exact, d):
    rng = np.random.default_rng(d)
    points, centres = rng.uniform(size=(40, d)), rng.uniform(size=(5, d))
    head = ",".join(f"x{j}" for j in range(d))
    csv = (f"{head},y\n" + "".join(f"{','.join(map(repr, row))},1.5\n" for row in points.tolist())).encode()
    features = [wire.Feature(column=f"x{j}", lower=0.0, upper=1.0, scale=0.5) for j in range(d)]
    cells = wire.CentreCells(kind="centres", centres=centres.tolist())
    study = release(curator, draft(register(curator, csv), cells, 1, features))
    nearest = ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    kept = sorted(set(nearest.tolist()))
    assert candidates(curator, study) == pytest.approx((centres[kept] - 0.5) / 0.5)
    group = curator.call("owner", "POST", f"/v1/studies/{study}:open_group", json={"row": 0})
    assert group["records"] == (np.flatnonzero(nearest == kept[0]) + 1).tolist()
    assert group["lower"] is None


def test_private_centres_divide_the_records_and_are_charged_with_the_release(curator, exact, monkeypatch):
    replace_integer_laplace(monkeypatch, lambda values, sensitivity, epsilon: list(values), private_centres)
    points = [(0.9, 0.1 + i / 1e4) for i in range(30)] + [(0.1, 0.8 + i / 1e4) for i in range(20)]
    dataset = register(curator, csv_of(points, [1.5] * 30 + [2.5] * 20))
    numbers = wire.GroupsRelease(
        mechanism="groups", epsilon="100.25", cells=wire.PrivateCells(kind="private", number=2, epsilon="100")
    )
    study = release(curator, draft(dataset, release=numbers, budget=wire.Budget(epsilon_per_row="101")))
    assert exact == [(2, 2, Decimal("0.25"))]
    z = candidates(curator, study) + 0.5
    assert sorted(z[:, 0].tolist()) == pytest.approx([0.1, 0.9], abs=0.05)
    view = curator.call("modeler", "GET", f"/v1/studies/{study}")
    assert "the groups' centres (epsilon 100) and the numbers of records by group together" in view["guarantee"]
    assert "public" not in view["guarantee"].split(". Each answer")[0]
    groups = curator.call("owner", "GET", f"/v1/studies/{study}/groups")["groups"]
    assert np.array([g["centre"] for g in groups]) == pytest.approx(z)
    assert [(g["count"], g["lower"]) for g in groups] == [(20 if x < 0.5 else 30, None) for x in z[:, 0]]
    opened = curator.call("owner", "POST", f"/v1/studies/{study}:open_group", json={"row": 0})
    assert opened["size"] == groups[0]["count"]
    answers = query(curator, study, 0, 1).json()["answers"]
    assert [a["y"] for a in answers] == pytest.approx([2.5 if x < 0.5 else 1.5 for x in z[:, 0]])
    described = answers[0]["passport"]["measurement_variance"]
    n = groups[0]["count"]
    assert described == pytest.approx(1 / n + 2 * (2 / 0.25) ** 2 / n**2)  # the numbers have 0.25 alone
    assert curator.call("owner", "GET", f"/v1/datasets/{dataset}/account")["epsilon"] == "101"


LAPLACE = {"mechanism": "laplace", "epsilon": "1", "value_bound": 1.0}
REFUSED = [
    ("release.cells.parts", {"release": {"cells": {"kind": "grid", "parts": [2]}}}),
    ("answers.mechanism", {"answers": LAPLACE | {"mechanism": "one_bit"}}),
    ("budget.epsilon_per_row", {"budget": {"epsilon_per_row": "0.9"}}),
]


@pytest.fixture(scope="module")
def dataset(curator):
    return register(curator, csv_of(POINTS, Y))


@pytest.mark.parametrize(("field", "change"), REFUSED, ids=[f"{n}-{field}" for n, (field, _) in enumerate(REFUSED)])
def test_what_the_kind_does_not_take_is_refused_by_field(curator, dataset, field, change):
    body = draft(dataset).model_dump(mode="json")
    changed = body | {k: (body[k] | v if k == "release" else v) for k, v in change.items()}
    reply = curator.send("owner", "POST", "/v1/studies", json=changed)
    assert reply.status_code == 422, reply.text
    assert field in [fault["field"] for fault in reply.json()["errors"]]


def test_a_price_says_before_that_different_groups_cost_one_epsilon(curator, dataset):
    body = draft(dataset, budget=wire.Budget(epsilon_per_row="1", queries=50)).model_dump(mode="json")
    check = curator.call("owner", "POST", "/v1/studies:check", json=body)
    assert (
        "50 answers about different groups use epsilon 1 of the record in total, with the release."
        in check["price"]["sentence"]
    )
    assert check["price"]["row_epsilon"] == "1"
    assert (check["epsilon_hidden"], check["epsilon_whole"], check["strength"]) == (1, 1, "strong")
    assert [caution["code"] for caution in check["cautions"]] == ["groups_small", "few_records"]
