"""Many clients at the same moment: no cap is passed, no key is charged twice, nothing is released twice."""

import asyncio
import json
import secrets
import threading
from collections import Counter
from fractions import Fraction

import httpx
import pytest

from blindopt import wire
from curator_service.app import build
from curator_service.budget import ledger, ledger_lines
from curator_service.queries.queries import Queries
from curator_service.settings import Settings
from tests.builders import a_study_of, registered_apart

CLIENTS = 32
LAPLACE = wire.LaplaceAnswers(mechanism="laplace", epsilon="0.1", value_bound=1.0)
EXACT = wire.NoAnswerNoise(mechanism="none")
GAUSSIAN = wire.GaussianRelease(mechanism="gaussian", epsilon="0.2", delta=1e-5)


def at_once(curator, requests):
    """The replies to ``requests`` (token, path, key, body), each from a client with a connection of its own."""
    barrier, replies = threading.Barrier(len(requests)), [None] * len(requests)

    def send_one(position, token, path, key, body):
        with curator.http(token, **{"Idempotency-Key": key}) as http:
            assert http.get("/healthz").is_success  # the connection is there: what is timed is the request
            barrier.wait()
            replies[position] = http.post(path, json=body)

    threads = [
        threading.Thread(target=send_one, args=(position, *request)) for position, request in enumerate(requests)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return replies


def queries(study, rows, keys=None):
    """One request for each of ``rows`` (row, plays), each under a key of its own or under that of ``keys``."""
    path = f"/v1/studies/{study.id}/queries"
    return [
        (study.token, path, keys or secrets.token_hex(8), {"rows": [{"row": row, "plays": plays}]})
        for row, plays in rows
    ]


@pytest.fixture
def opened_with(owner, dataset, open_study):
    def make(answers=LAPLACE, release=wire.IdentityRelease(mechanism="identity"), **caps):
        return open_study(owner, dataset, release, answers=answers, budget=wire.Budget(**caps))

    return make


def check_sums(owner, study, replies, allowed):
    """Exactly ``allowed`` were answered, all others refused for good; the ledger adds up to what was answered."""
    codes = Counter((reply.status_code, reply.json().get("code")) for reply in replies)
    assert codes == {(201, None): allowed, (403, "privacy_budget_exhausted"): len(replies) - allowed}
    charged = [line for line in owner.ledger(study.id) if line.kind == "answers"]
    refused = [line for line in owner.ledger(study.id) if line.kind == "refused"]
    answered = {reply.json()["id"]: reply.json() for reply in replies if reply.status_code == 201}
    assert Counter(line.query_id for line in charged).keys() == answered.keys()
    assert sum(line.plays for line in charged) == sum(len(reply["answers"]) for reply in answered.values())
    assert len(refused) == len(replies) - allowed
    return charged


def test_at_the_edge_of_a_row_s_cap_exactly_as_many_are_answered_as_fit(curator, owner, opened_with):
    study = opened_with(release=GAUSSIAN, epsilon_per_row="1.2")
    replies = at_once(curator, queries(study, [(7, 1)] * CLIENTS))
    charged = check_sums(owner, study, replies, 10)
    assert sum(Fraction(line.epsilon) for line in charged) == 1
    ys = [reply.json()["answers"][0]["y"] for reply in replies if reply.status_code == 201]
    assert len(set(ys)) == 10
    assert [row.spent for row in owner.exposure(study.id)] == ["1.2"]


@pytest.mark.parametrize("answers", [LAPLACE, EXACT], ids=["charge, then answer", "both at once"])
def test_at_the_edge_of_the_cap_on_measurements(answers, curator, owner, opened_with):
    study = opened_with(answers, queries=15)
    replies = at_once(curator, queries(study, [(row, 3) for row in range(CLIENTS)]))
    check_sums(owner, study, replies, 5)
    assert owner.balance(study.id).total_plays == 15


def test_at_the_edge_of_the_total_where_prices_differ(curator, owner, opened_with):
    """Whoever comes first: what is answered fits, and nothing that was refused would have fitted at its time."""
    study = opened_with(epsilon_total="2")
    replies = at_once(curator, queries(study, [(row, 1 + row % 3) for row in range(CLIENTS)]))
    allowed = sum(reply.status_code == 201 for reply in replies)
    charged = check_sums(owner, study, replies, allowed)
    spent = sum(Fraction(line.epsilon) for line in charged)
    assert Fraction("1.8") <= spent <= 2
    for reply in replies:
        if reply.status_code == 403:
            amounts = {name: Fraction(reply.json()["budget"][name]) for name in ("requested", "spent", "limit")}
            assert amounts["spent"] + amounts["requested"] > amounts["limit"] == 2


def test_at_the_edge_of_the_persons_who_may_be_measured_again_nobody_more_is(curator, owner, small, open_study):
    """Eight clients, persons of three records, a cap of three; then all ask for one record, whose draw is one."""
    header, *records = small.csv.decode().splitlines()
    file = "\n".join([f"{header},who", *(f"{record},p{i // 3}" for i, record in enumerate(records))])
    dataset = registered_apart(owner, "persons", file.encode(), public=True, person="who", rows_per_person=3)
    planar = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon="1")
    study = open_study(owner, dataset, planar, answers=EXACT, refine=wire.Refine(epsilon="2", persons=3))
    replies = at_once(curator, queries(study, [(row, 1) for row in range(8)]))
    refused = [reply.json() for reply in replies if reply.status_code != 201]
    assert {reply["code"] for reply in refused} <= {"privacy_budget_exhausted"}
    lines = [line.row for line in owner.ledger(study.id) if line.kind == "refine"]
    assert len(lines) == len(set(lines)) == 8 - len(refused)
    assert sum(kind.rows for kind in owner.accounting(study.id).rows if kind.refined) == 3
    again = at_once(curator, queries(study, [(lines[0], 1)] * 8))
    assert len({json.dumps(reply.json()["refined"]) for reply in again}) == 1


def test_two_grants_share_one_cap(curator, owner, opened_with):
    study = opened_with(epsilon_per_row="1")
    other = owner.grant(study.id, wire.GrantCreate(name="other"))
    half = queries(study, [(3, 1)] * (CLIENTS // 2))
    replies = at_once(curator, [*half, *((other.token, *rest) for _, *rest in half)])
    check_sums(owner, study, replies, 10)


@pytest.mark.parametrize("answers", [LAPLACE, EXACT], ids=["charge, then answer", "both at once"])
def test_one_key_is_charged_once_whoever_comes_first(answers, curator, owner, opened_with):
    study = opened_with(answers, queries=100)
    replies = at_once(curator, queries(study, [(9, 2)] * CLIENTS, keys="the same"))
    done = [reply for reply in replies if reply.status_code == 201]
    assert len({reply.content for reply in done}) == 1
    assert sum("idempotency-replayed" not in reply.headers for reply in done) == 1
    for reply in replies:
        if reply.status_code != 201:
            assert (reply.status_code, reply.json()["code"], reply.json()["retryable"]) == (409, "still_running", True)
            assert reply.headers["retry-after"] == "1"
    assert [line.kind for line in owner.ledger(study.id)] == ["release", "answers"]
    again = at_once(curator, queries(study, [(9, 2)] * 2, keys="the same"))
    assert {reply.content for reply in again} == {done[0].content}


def test_one_key_with_two_bodies_is_charged_for_one_of_them(curator, owner, opened_with):
    study = opened_with(queries=100)
    replies = at_once(curator, queries(study, [(row % 2, 1) for row in range(CLIENTS)], keys="the same"))
    codes = Counter(reply.json().get("code") for reply in replies)
    assert codes[None] >= 1
    assert codes.keys() <= {None, "still_running", "idempotency_key_reused"}
    (line,) = [line for line in owner.ledger(study.id) if line.kind == "answers"]
    answered = {reply.json()["answers"][0]["row"] for reply in replies if reply.status_code == 201}
    assert answered == {line.row}


def test_a_study_is_released_and_charged_once(curator, owner, opened, dataset):
    spec = opened.view.spec.model_copy(update={"release": GAUSSIAN, "answers": LAPLACE})
    draft = owner.create_study(spec)
    path = f"/v1/studies/{draft.id}:release"
    replies = at_once(curator, [(None, path, secrets.token_hex(8), None) for _ in range(8)])
    codes = Counter(reply.json().get("code") for reply in replies)
    assert codes == {None: 1, "state_conflict": 7}
    assert curator.rows("SELECT count(*) FROM releases WHERE study_id = ?", draft.id) == [(1,)]
    (line,) = owner.ledger(draft.id)
    assert (line.kind, line.epsilon) == ("release", "0.2")
    (done,) = [reply.json() for reply in replies if reply.is_success]
    assert owner.study(draft.id).view.release_sha256 == done["release_sha256"]


def test_a_study_that_is_closed_meanwhile_answers_nothing_after(curator, owner, opened_with):
    """Each query was answered before the end or refused; what was charged and cut off has no answer."""
    study = opened_with()
    closing = (None, f"/v1/studies/{study.id}:close", "end", None)
    *replies, closed = at_once(curator, [*queries(study, [(n, 1) for n in range(CLIENTS)]), closing])
    assert closed.json()["state"] == "closed"
    assert {reply.json().get("code") for reply in replies} <= {None, "study_not_open"}
    charged = {line.query_id for line in owner.ledger(study.id) if line.kind == "answers"}
    assert {reply.json()["id"] for reply in replies if reply.status_code == 201} <= charged
    assert at_once(curator, queries(study, [(0, 1)]))[0].json()["code"] == "study_not_open"


def test_two_live_tokens_are_two_however_many_ask_at_once(curator, owner, opened_with):
    study = opened_with()
    path = f"/v1/studies/{study.id}/grants/{study.grant_id}:rotate"
    replies = at_once(curator, [(None, path, secrets.token_hex(8), {}) for _ in range(8)])
    assert Counter(reply.json().get("code") for reply in replies) == {None: 1, "state_conflict": 7}


def test_after_all_of_this_the_log_and_the_ledger_verify(curator):
    verified = curator.run_in_process("audit", "verify")
    assert (verified.returncode, verified.stderr) == (0, "")


# --- a control: the same crowd finds a ledger that checks outside of its transaction ---------------------------


class ChecksOutside(Queries):
    """Looks at the balance first, as every other request does, and charges in a transaction of its own."""

    everybody = asyncio.Barrier(CLIENTS)

    async def ask(self, caller, identity, request, pace=None):
        await asyncio.to_thread(self._look, identity, request)
        await self.everybody.wait()
        return await super().ask(caller, identity, request, pace)

    def _look(self, identity, request):
        with self._context.database.read() as db:
            rows = [(item.row, item.plays) for item in request.rows]
            balances = ledger_lines.row_balances(db, identity, [row for row, _ in rows])
            ledger.charge_answers(
                self._studies.of(db, identity).spec, ledger_lines.balance(db, identity), rows, balances
            )

    def begin(self, *args):
        with pytest.MonkeyPatch.context() as unchecked:
            unchecked.setattr(ledger, "check", lambda *args: None)
            return super().begin(*args)


@pytest.mark.usefixtures("unset_tempdir")
@pytest.mark.parametrize(("kind", "right"), [(Queries, True), (ChecksOutside, False)])
def test_a_ledger_that_checks_outside_of_its_transaction_would_be_found(kind, right, tmp_path, small, open_study):
    app = build(Settings(data_dir=tmp_path / "data", rate_burst=10_000))
    context, curator = app.state.context, app.state.curator
    curator.queries = kind(
        context,
        *(
            getattr(curator.queries, f"_{name}")
            for name in ("vault", "limits", "studies", "budgets", "decline_withheld", "wakeups")
        ),
    )
    owner = context.authentication.issue("owner", "o", days=1)[0].text

    async def talk():
        context.database.attach()
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x", timeout=240) as http:

            async def post(path, token=owner, **sent):
                headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": secrets.token_hex(8)}
                return await http.post(path, headers=headers, **sent)

            file = {"files": {"file": ("s.csv", small.csv)}, "data": {"name": "s", "public": "true"}}
            dataset = (await post("/v1/datasets", **file)).json()["id"]
            spec = a_study_of(small, dataset, answers=LAPLACE, epsilon_per_row="1")
            study = (await post("/v1/studies", json=spec.model_dump(mode="json"))).json()["id"]
            assert (await post(f"/v1/studies/{study}:release")).is_success
            token = (await post(f"/v1/studies/{study}/grants", json={"name": "m"})).json()["token"]
            path, body = f"/v1/studies/{study}/queries", {"rows": [{"row": 7}]}
            replies = await asyncio.gather(*(post(path, token, json=body) for _ in range(CLIENTS)))
        await context.database.finish()
        return Counter(reply.status_code for reply in replies)

    codes = asyncio.run(talk())
    context.close()
    assert codes.keys() <= {201, 403}
    assert (codes[201] == 10) is right
    assert codes[201] >= 10
