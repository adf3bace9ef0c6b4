"""The ledger against an oracle in exact fractions, and as a state machine that crashes, retries and is refused."""

import asyncio
import io
import secrets
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from blindopt import wire
from blindopt.audit import merkle_log
from blindopt.errors import (
    BudgetExhausted,
    IdempotencyKeyReused,
    LogBroken,
    StillRunning,
    StudyNotOpen,
    Unauthenticated,
)
from curator_service import store
from curator_service.budget import ledger, ledger_lines
from curator_service.budget.budgets import Budgets
from curator_service.budget.ledger import Balance, charge_answers, charge_release, faults
from curator_service.context import open_context
from curator_service.curator import Curator
from curator_service.datasets.datasets import Upload
from curator_service.datasets.readings import Reading
from curator_service.integrity import log_checks
from curator_service.privacy import prices
from curator_service.privacy.prices import text, units
from curator_service.queries import queries
from curator_service.queries.queries import Queries, QueryCharge
from curator_service.settings import Settings
from curator_service.vault import Vault
from service_kit.context.authentication import Authentication
from service_kit.context.request import RequestContext
from service_kit.identity.tokens import Principal
from service_kit.store import audit_log, stored_replies
from service_kit.web.wakeups import Wakeups
from tests import beside
from tests.curator_service.watched_studies import WatchedStudies
from tests.scale import scaled

IDENTITY = wire.IdentityRelease(mechanism="identity")
REFUTED = wire.PoGpUcbRelease(mechanism="po_gp_ucb", epsilon="1", delta=1e-5, r=1, acknowledge_refuted=True)
EXACT = wire.NoAnswerNoise(mechanism="none")


def gaussian(epsilon):
    return wire.GaussianRelease(mechanism="gaussian", epsilon=epsilon, delta=1e-5)


def laplace(epsilon, plays="each"):
    return wire.LaplaceAnswers(mechanism="laplace", epsilon=epsilon, value_bound=1.0, plays=plays)


def bounded(epsilon, plays="each"):
    """Not one_bit: drawn again, that would often be the same."""
    return wire.PiecewiseAnswers(mechanism="piecewise", epsilon=epsilon, value_bound=1.0, plays=plays)


COLUMN = wire.ColumnMeasurement(column="y", direction="maximize")
BY_HAND = wire.InboxMeasurement(question="How much?", direction="maximize")


def study(release=IDENTITY, answers=EXACT, unit="row", dataset_id="ds_", measurement=None, **caps):
    """Answers of other persons are measured by people: a column has one value behind all of them."""
    return wire.StudyCreate(
        name="s",
        dataset_id=dataset_id,
        features=[wire.Feature(column="a", lower=0, upper=1)],
        measurement=measurement or (COLUMN if unit == "row" else BY_HAND),
        release=release,
        answers=answers,
        privacy_unit=unit,
        budget=wire.Budget(**caps),
    )


class Oracle:
    """What a study may spend, in fractions, from the words of `wire.Budget`."""

    def __init__(self, spec):
        self.spec = spec
        self.price = Fraction(0) if spec.answers is EXACT else Fraction(spec.answers.epsilon)
        self.once = spec.answers is not EXACT and spec.answers.plays == "mean"
        self.release = Fraction(0)
        self.rows = Counter()
        self.plays = 0

    @property
    def total(self):
        return self.release + sum(self.rows.values(), Fraction(0))

    def cost(self, plays):
        """Of one item: for each play, or for their mean."""
        return self.price if self.once else plays * self.price

    def caps_passed(self, rows):
        """(cap, row, requested, spent, limit) of every cap that a query would pass."""
        budget, passed, costs = self.spec.budget, set(), dict.fromkeys((row for row, _ in rows), Fraction(0))
        for row, plays in rows:
            costs[row] += self.cost(plays)
        plays, cost = sum(plays for _, plays in rows), sum(costs.values())
        if budget.queries is not None and self.plays + plays > budget.queries:
            passed.add(("queries", None, Fraction(plays), Fraction(self.plays), Fraction(budget.queries)))
        if (cap := budget.epsilon_total) is not None and self.total + cost > Fraction(cap):
            passed.add(("epsilon_total", None, cost, self.total, Fraction(cap)))
        if (cap := budget.epsilon_per_row) is not None:
            for row, price in costs.items():
                spent = self.release + self.rows[row]
                one_person = self.spec.privacy_unit == "row" or self.spec.measurement is COLUMN
                if one_person and spent + price > Fraction(cap):
                    passed.add(("epsilon_per_row", row, price, spent, Fraction(cap)))
        return passed

    def charge(self, rows):
        for row, plays in rows:
            self.rows[row] += self.cost(plays)
            self.plays += plays


class Book:
    """A ledger in memory, kept by the functions under test."""

    def __init__(self, spec):
        self.spec, self.balance, self.rows, self.lines = spec, Balance(), {}, []

    def open(self):
        self.lines.append(charge_release(self.spec, self.balance))
        self.balance = self.lines[-1].after

    def ask(self, rows):
        charges = charge_answers(self.spec, self.balance, rows, self.rows)
        for charge in charges:
            self.rows[charge.row] = charge.row_after
            self.balance = charge.after
        self.lines += charges


# --- amounts --------------------------------------------------------------------------------------------------

AMOUNTS = st.from_regex(r"\A[0-9]{1,6}(\.[0-9]{1,12})?\Z")


@settings(deadline=None, derandomize=True)
@given(AMOUNTS)
def test_an_amount_is_the_number_that_its_text_says_and_comes_back_as_that(amount):
    assert Fraction(units(amount), prices.UNITS) == Fraction(amount)
    again = text(units(amount))
    assert Fraction(again) == Fraction(amount)
    assert units(again) == units(amount)
    assert "e" not in again.lower()
    assert again == str(int(again)) if "." not in again else not again.endswith(("0", "."))


@settings(deadline=None, derandomize=True)
@given(st.lists(AMOUNTS, max_size=50))
def test_sums_of_amounts_are_exact(amounts):
    assert Fraction(text(sum(map(units, amounts)))) == sum(map(Fraction, amounts), Fraction(0))


@pytest.mark.parametrize("amount", ["0.0000000000001", "1.1234567890123"])
def test_an_amount_with_more_than_twelve_decimals_is_not_rounded_but_refused(amount):
    with pytest.raises(ValueError, match="twelve"):
        units(amount)


def test_ten_charges_of_a_tenth_fit_under_one_and_the_eleventh_does_not():
    book = Book(study(answers=laplace("0.1"), epsilon_per_row="1.0"))
    book.open()
    for _ in range(10):
        book.ask([(7, 1)])
    with pytest.raises(BudgetExhausted) as refused:
        book.ask([(7, 1)])
    said = {"cap": "epsilon_per_row", "row": 7, "requested": "0.1", "spent": "1", "limit": "1"}
    assert refused.value.budget == said
    spent = 0.0
    for _ in range(10):  # the control: doubles let another number through
        spent += 0.1
    assert spent != 1.0


# --- decisions ------------------------------------------------------------------------------------------------

CAPS = st.sampled_from(["1", "2.1", "3", "3.333333333333"])
QUERY = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3)), min_size=1, max_size=3)


@st.composite
def studies(draw):
    release = draw(st.sampled_from([IDENTITY, gaussian("0.1"), gaussian("1"), REFUTED]))
    answers = draw(st.sampled_from(["0.1", "0.3", "0.300001", "0.333333333333", "1", None]))
    how = draw(st.sampled_from(["each", "mean"]))
    answers = EXACT if answers is None else draw(st.sampled_from([laplace, bounded]))(answers, how)
    caps = {"queries": draw(st.sampled_from([None, None, 3, 12]))}
    if release is not REFUTED and answers is not EXACT:
        if draw(st.booleans()):
            caps["epsilon_per_row"] = draw(CAPS)
        if draw(st.booleans()):
            caps["epsilon_total"] = draw(CAPS)
    unit, measurement = draw(st.sampled_from(["row", "answer"])), draw(st.sampled_from([COLUMN, BY_HAND]))
    spec = study(release, answers, unit, measurement=measurement, **caps)
    assume(not faults(spec))  # a release and one answer that do not fit a cap together
    return spec


@settings(max_examples=150, deadline=None, derandomize=True)
@given(studies(), st.lists(QUERY, max_size=12))
def test_every_decision_and_every_balance_is_that_of_the_oracle(spec, queries):
    book, oracle = Book(spec), Oracle(spec)
    book.open()
    oracle.release = Fraction(0) if spec.release in (IDENTITY, REFUTED) else Fraction(spec.release.epsilon)
    for rows in queries:
        before = book.balance, dict(book.rows), len(book.lines)
        passed = oracle.caps_passed(rows)
        try:
            book.ask(rows)
        except BudgetExhausted as error:
            budget = error.budget
            numbers = (Fraction(budget[name]) for name in ("requested", "spent", "limit"))
            assert (budget["cap"], budget["row"], *numbers) in passed
            assert (book.balance, book.rows, len(book.lines)) == before
        else:
            assert not passed
            oracle.charge(rows)
        assert Fraction(text(book.balance.total)) == oracle.total
        assert Fraction(text(book.balance.release)) == oracle.release
        assert book.balance.plays == oracle.plays
        for row, balance in book.rows.items():
            assert Fraction(text(balance.total)) == oracle.rows[row]
        assert sum(line.cost for line in book.lines) == book.balance.total


@pytest.mark.parametrize("unit", ["row", "answer"])
@pytest.mark.parametrize("answers", [laplace, bounded])
def test_a_mean_is_charged_once_however_many_plays_it_has(answers, unit):
    book = Book(study(answers=answers("0.1", "mean"), unit=unit, epsilon_total="1.0", queries=3_100))
    for _ in range(4):
        book.ask([(7, 500), (8, 250)])
    assert (text(book.balance.total), book.balance.plays) == ("0.8", 3_000)
    assert [text(book.rows[row].total) for row in (7, 8)] == ["0.4", "0.4"]
    assert (book.rows[7].queries, book.rows[7].plays) == (4, 2_000)
    with pytest.raises(BudgetExhausted) as refused:
        book.ask([(7, 2), (7, 3), (9, 1)])  # three means
    said = {"cap": "epsilon_total", "row": None, "requested": "0.3", "spent": "0.8", "limit": "1"}
    assert refused.value.budget == said
    with pytest.raises(BudgetExhausted) as counted:
        book.ask([(7, 101)])  # the cap on queries counts measurements
    assert counted.value.budget == {"cap": "queries", "row": None, "requested": "101", "spent": "3000", "limit": "3100"}
    book.ask([(7, 50), (9, 50)])
    each = Book(study(answers=answers("0.1"), unit=unit, epsilon_total="1.0"))
    with pytest.raises(BudgetExhausted):
        each.ask([(7, 11)])  # the control


def test_ten_means_of_a_tenth_fit_under_one_and_the_eleventh_does_not():
    book = Book(study(answers=bounded("0.1", "mean"), epsilon_per_row="1.0"))
    for plays in range(1, 11):
        book.ask([(7, plays)])
    with pytest.raises(BudgetExhausted) as refused:
        book.ask([(7, 1)])
    said = {"cap": "epsilon_per_row", "row": 7, "requested": "0.1", "spent": "1", "limit": "1"}
    assert refused.value.budget == said


def test_a_release_is_charged_to_every_row():
    book = Book(study(gaussian("0.7"), laplace("0.1"), epsilon_per_row="1.0"))
    book.open()
    assert (book.lines[0].row, text(book.balance.release)) == (None, "0.7")
    for row in (0, 5):
        for _ in range(3):
            book.ask([(row, 1)])
        with pytest.raises(BudgetExhausted, match=r"0\.1 requested with 1 of 1 spent"):
            book.ask([(row, 1)])


def test_where_answers_are_other_people_s_a_row_may_be_asked_for_ever():
    book = Book(study(gaussian("0.7"), laplace("0.9"), "answer", epsilon_per_row="1.0"))
    book.open()
    for _ in range(50):
        book.ask([(3, 4)])
    assert text(book.rows[3].total) == "180"
    counted = Book(study(gaussian("0.7"), laplace("0.9"), "answer", epsilon_per_row="1.0", epsilon_total="2.5"))
    counted.open()
    counted.ask([(3, 2)])
    with pytest.raises(BudgetExhausted) as refused:
        counted.ask([(4, 1)])
    assert refused.value.budget["cap"] == "epsilon_total"


def test_where_one_stored_value_is_behind_them_answers_add_up_to_the_cap_and_no_further():
    """Another person's answers are another person's measurements: a column has none."""
    assert faults(study(gaussian("0.7"), laplace("0.9"), "answer", measurement=COLUMN, epsilon_per_row="1.0"))
    book = Book(study(gaussian("0.7"), laplace("0.1"), "answer", measurement=COLUMN, epsilon_per_row="1.0"))
    book.open()
    book.ask([(3, 3)])
    with pytest.raises(BudgetExhausted, match=r"0\.1 requested with 1 of 1 spent"):
        book.ask([(3, 1)])


def test_a_row_that_a_query_names_twice_is_charged_twice_and_refused_as_one():
    """The refusal reports what was spent before, without the first half of the refused query."""
    book = Book(study(answers=laplace("0.1"), epsilon_per_row="1.0"))
    book.ask([(1, 3), (2, 1), (1, 2)])
    assert (text(book.rows[1].total), book.rows[1].queries, book.rows[1].plays) == ("0.5", 2, 5)
    with pytest.raises(BudgetExhausted) as refused:
        book.ask([(1, 5), (1, 1)])
    assert refused.value.budget == {
        "cap": "epsilon_per_row", "row": 1, "requested": "0.6", "spent": "0.5", "limit": "1",
    }  # fmt: skip
    book.ask([(1, 4), (1, 1)])


def test_measurements_without_noise_are_counted_though_they_have_no_price():
    book = Book(study(queries=5))
    book.ask([(0, 2), (1, 2)])
    with pytest.raises(BudgetExhausted) as refused:
        book.ask([(2, 2)])
    assert refused.value.budget == {"cap": "queries", "row": None, "requested": "2", "spent": "4", "limit": "5"}
    book.ask([(2, 1)])


def test_without_a_cap_the_sum_ends_before_the_database_s_integers_do():
    book = Book(study(answers=laplace("1000")))
    with pytest.raises(BudgetExhausted, match=r"^epsilon_total: 1000000000 requested with 0 of 9000000 spent\n"):
        book.ask([(0, 1_000)] * 1_000)
    for _ in range(9):
        book.ask([(0, 1_000)])
    with pytest.raises(BudgetExhausted, match="1000 requested with 9000000 of 9000000 spent"):
        book.ask([(1, 1)])
    assert book.balance.total < 2**63


@pytest.mark.parametrize("name", ["epsilon_per_row", "epsilon_total"])
@pytest.mark.parametrize(
    ("release", "answers"),
    [(REFUTED, laplace("0.1")), (IDENTITY, EXACT), (gaussian("1"), EXACT), (gaussian("1"), laplace("0.1")),
     (IDENTITY, laplace("0.6"))],
    ids=["refuted release", "exact answers", "both", "dear release", "dear answer"],
)  # fmt: skip
def test_a_cap_that_cannot_hold_is_named(name, release, answers):
    assert [fault["field"] for fault in faults(study(release, answers, **{name: "0.5"}))] == [f"budget.{name}"]
    assert faults(study(release, answers, queries=1)) == []


# --- the service: charges, crashes, retries, ends -------------------------------------------------------------


class Crashed(Exception):
    """Stands for a process that ended between its two transactions."""


def interrupted():
    raise Crashed


DATA = b"a,y\n" + b"".join(b"%d,%d\n" % (i, i) for i in range(4))
SPECS = [
    {"answers": laplace("0.1"), "epsilon_per_row": "0.5"},
    {"answers": laplace("0.1"), "release": gaussian("0.2"), "epsilon_total": "1.3"},
    {"answers": laplace("0.3"), "unit": "answer", "measurement": COLUMN, "queries": 9, "epsilon_total": "2.9"},
    {"answers": EXACT, "queries": 6},
    {"answers": bounded("0.3", "mean"), "release": gaussian("0.2"), "epsilon_per_row": "0.9", "epsilon_total": "2.1"},
]


FEW = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2)), min_size=1, max_size=2)


class ChargedQuery:
    """The rows of a query that was charged, and the bytes of its reply once it has one."""

    def __init__(self, rows):
        self.rows, self.reply = rows, None


class Studied(RuleBasedStateMachine):
    """One study of a real curator without HTTP. Its model: one charge for each key whose query is not refused."""

    kind = Queries

    def __init__(self):
        super().__init__()
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.charged, self.refused, self.closed, self.revoked = {}, 0, False, False
        self.context = self.before_measuring = None
        self._start()

    @property
    def ended(self):
        return self.closed or self.revoked

    def teardown(self):
        self.context.database.close()
        shutil.rmtree(self.folder)

    def _start(self):
        self.context = open_context(Settings(data_dir=self.folder))
        self.curator = Curator(self.context, Vault(self.folder / "files"), Settings(data_dir=self.folder))
        vault = Vault(self.folder / "files")
        studies = WatchedStudies(vault, lambda: self.before_measuring and self.before_measuring())
        self.queries = self.kind(
            self.context,
            vault,
            self.curator.limits,
            studies,
            self.curator.budgets,
            self.curator.inbox.decline_withheld,
            Wakeups(),
        )

    def _request(self, principal, body="", key=None, path="/x"):
        digest, request_id = merkle_log.sha256(body.encode()), secrets.token_hex(16)
        return RequestContext(principal, request_id, "POST", path, key or secrets.token_hex(8), digest)

    @initialize(chosen=st.sampled_from(SPECS))
    def open(self, chosen):
        _, owner = self.context.authentication.issue("owner", "o", days=1)
        upload = Upload(name="d", public=True, filename="d.csv")
        file, reading = io.BytesIO(DATA), Reading("d.csv")
        dataset = self.curator.datasets.register(self._request(owner), upload, file, reading)
        self.spec = study(dataset_id=wire.DatasetView.model_validate_json(dataset.body).id, **chosen)
        draft = self.curator.studies.create(self._request(owner), self.spec)
        self.study_id = wire.StudyOwnerView.model_validate_json(draft.body).id
        self.curator.releases.release(self._request(owner), self.study_id)
        grant = self.curator.grants.grant(self._request(owner), self.study_id, wire.GrantCreate(name="m"))
        reply = wire.GrantReply.model_validate_json(grant.body)
        self.owner, self.modeler = owner, Principal(reply.id, reply.kid, "modeler", "m", self.study_id)
        self.oracle = Oracle(self.spec)
        if self.spec.release is not IDENTITY:
            self.oracle.release = Fraction(self.spec.release.epsilon)

    def query(self, key, rows):
        """The coroutine of a query."""
        query = wire.QueryRequest(rows=[wire.RowPlays(row=row, plays=plays) for row, plays in rows])
        path = f"/v1/studies/{self.study_id}/queries"
        return self.queries.ask(self._request(self.modeler, query.model_dump_json(), key, path), self.study_id, query)

    def ask_under(self, key, rows):
        """Send a query, and hold its outcome against the model."""
        charged = self.charged.get(key)
        try:
            reply = asyncio.run(self.query(key, rows))
        except (StudyNotOpen, Unauthenticated):
            assert self.ended
            assert charged is None or charged.reply is None
        except BudgetExhausted:
            assert charged is None
            assert self.oracle.caps_passed(rows)
            self.refused += 1
        except IdempotencyKeyReused:
            assert charged is not None
            assert charged.rows != rows
        else:
            if charged is None:
                assert not self.oracle.caps_passed(rows), "a cap was passed"
                assert not self.ended, "answered after the end"
                self.oracle.charge(rows)
                charged = self.charged[key] = ChargedQuery(rows)
            assert charged.rows == rows, "another query was answered"
            assert reply.replayed == (charged.reply is not None)
            assert charged.reply in (None, reply.body), "answered in two ways"
            charged.reply = reply.body

    @rule(rows=FEW, times=st.integers(1, 2))
    def ask(self, rows, times):
        key = secrets.token_hex(8)
        for _ in range(times):
            self.ask_under(key, rows)

    @rule(rows=FEW, other=st.none() | FEW)
    def crash_between_charge_and_answer(self, rows, other):
        """Whether it was charged follows from the study alone; no answer was sent, so none may be drawn unpaid.

        ``other``: the query that comes next under the same key.
        """
        key, free = secrets.token_hex(8), not self.oracle.caps_passed(rows)
        self.before_measuring = interrupted
        try:
            with suppress(Crashed):
                self.ask_under(key, rows)
        finally:
            self.before_measuring = None
        # Without noise, charge and answer are one transaction: nothing is left of either.
        if free and not self.ended and self.spec.answers is not EXACT:
            self.oracle.charge(rows)
            self.charged[key] = ChargedQuery(rows)
        if other is not None:
            self.ask_under(key, other)

    @rule(pick=st.randoms(use_true_random=False))
    def retry(self, pick):
        if self.charged:
            key = pick.choice(list(self.charged))
            self.ask_under(key, self.charged[key].rows)

    @rule(pick=st.randoms(use_true_random=False), rows=FEW)
    def retry_with_another_body(self, pick, rows):
        """Under a key whose answer is still due, if there is one: no stored reply protects it."""
        if self.charged:
            due = [key for key, charged in self.charged.items() if charged.reply is None]
            self.ask_under(pick.choice(due or list(self.charged)), rows)

    @rule(rows=FEW, count=st.integers(2, 4), same=st.booleans())
    def ask_at_once(self, rows, count, same):
        """Several requests in one turn of the event loop, under one key or each under its own."""
        keys = [secrets.token_hex(8)] * count if same else [secrets.token_hex(8) for _ in range(count)]

        async def talk():
            return await asyncio.gather(*(self.query(key, rows) for key in keys), return_exceptions=True)

        for key, outcome in zip(keys, asyncio.run(talk()), strict=True):
            if isinstance(outcome, StillRunning):
                assert same
            elif isinstance(outcome, BudgetExhausted):
                self.refused += 1
            elif not isinstance(outcome, StudyNotOpen | Unauthenticated):
                if isinstance(outcome, BaseException):
                    raise outcome
                if key not in self.charged:
                    assert not self.oracle.caps_passed(rows), "a cap was passed"
                    self.oracle.charge(rows)
                    self.charged[key] = ChargedQuery(rows)
                    self.charged[key].reply = outcome.body
                assert self.charged[key].reply == outcome.body

    @rule()
    def restart(self):
        self.context.database.close()
        self._start()

    @rule(how=st.sampled_from(["close", "revoke", ""]), rows=FEW)
    def end(self, how, rows):
        self.end_by(how)
        self.ask_under(secrets.token_hex(8), rows)

    def end_by(self, how):
        if how == "close":
            self.curator.studies.close(self._request(self.owner), self.study_id)
            self.closed = True
        elif how == "revoke":
            self.curator.grants.revoke(self._request(self.owner), self.study_id, self.modeler.id)
            self.revoked = True

    @invariant()
    def the_ledger_says_what_the_model_says(self):
        with self.context.database.read() as db:
            page = ledger_lines.page(db, self.study_id)
            entries = list(audit_log.walk(db))
            records = [entry.record for entry in entries]
            merkle_log.verify(entries)
            log_checks.check(db, records)
            balance = ledger_lines.balance(db, self.study_id)
        charges = [line for line in page if line.kind != "refused"]
        costs = sum(Fraction(line.cost) for line in charges)
        assert costs == self.oracle.total == Fraction(text(balance.total)), "not one charge for each key"
        budget = self.spec.budget
        assert budget.epsilon_total is None or self.oracle.total <= Fraction(budget.epsilon_total)
        assert budget.queries is None or balance.plays <= budget.queries
        assert balance.plays == self.oracle.plays, "not one charge for each key"
        if budget.epsilon_per_row is not None and self.spec.privacy_unit == "row":
            assert all(self.oracle.release + c <= Fraction(budget.epsilon_per_row) for c in self.oracle.rows.values())
        of_query = Counter(line.query_id for line in charges if line.kind == "answers")
        assert sorted(of_query.values()) == sorted(len(charged.rows) for charged in self.charged.values())
        recorded = sum(record["kind"] == "charge.refused" for record in records)
        assert len(page) - len(charges) == self.refused == recorded, "a refusal without its record"


RUN = settings(
    max_examples=scaled(15), stateful_step_count=15, deadline=None, derandomize=True, print_blob=False,
    suppress_health_check=list(HealthCheck), phases=[Phase.generate], report_multiple_bugs=False,
)  # fmt: skip


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("sequences", [scaled(15), 6])
def test_whatever_happens_each_key_is_charged_once_and_no_cap_is_passed(sequences):
    run_state_machine_as_test(Studied, settings=settings(RUN, max_examples=sequences))


@pytest.fixture
def studied():
    """The state machine with an open study, driven by hand."""
    machine = Studied()
    machine.open(SPECS[0])
    yield machine
    machine.teardown()


def test_after_a_crash_before_the_answer_the_key_serves_the_query_that_was_charged(studied):
    studied.crash_between_charge_and_answer([(0, 1)], None)
    (key,) = studied.charged
    with pytest.raises(IdempotencyKeyReused):
        asyncio.run(studied.query(key, [(1, 1)]))
    answered = wire.QueryReply.model_validate_json(asyncio.run(studied.query(key, [(0, 1)])).body)
    assert [(answer.row, answer.play) for answer in answered.answers] == [(0, 1)]
    studied.the_ledger_says_what_the_model_says()


def test_what_was_spent_about_many_rows_is_what_was_spent_about_each(studied):
    """Persons may have a thousand rows: those of many rows are read otherwise."""
    for rows in ([(0, 1), (3, 2)], [(3, 1)]):
        asyncio.run(studied.query(secrets.token_hex(8), rows))
    with studied.context.database.read() as db:
        of_each = {row: ledger_lines.row_balances(db, studied.study_id, [row]) for row in (0, 1, 3)}
        of_many = ledger_lines.row_balances(db, studied.study_id, range(1_000))
    assert of_each[0].keys() == {0}
    assert of_each[1] == {}
    assert of_many == of_each[0] | of_each[3]


def test_a_study_that_closes_during_the_draw_gives_no_answer(studied, monkeypatch):
    """The query stays charged, and its key gets no answer later either. Only long queries are drawn between commits."""
    monkeypatch.setattr(queries, "AT_ONCE", 0)
    studied.before_measuring = lambda: studied.end_by("close")
    for _ in range(2):
        with pytest.raises(StudyNotOpen):
            asyncio.run(studied.query("key", [(0, 1)]))
        studied.before_measuring = None
    with studied.context.database.read() as db:
        assert stored_replies.find(db, studied.modeler.id, "key", None) is None
        assert ledger_lines.balance(db, studied.study_id).plays == 1


# --- controls: ledgers with one fault each, which the same machine must find -----------------------------------


class ChecksOutside(Queries):
    """Reads the balance in one transaction and charges in another."""

    async def ask(self, caller, identity, request):
        rows = [(item.row, item.plays) for item in request.rows]
        with self._context.database.read() as db:
            begun = store.begun(db, caller.principal.id, caller.key)
            balances = ledger_lines.row_balances(db, identity, [row for row, _ in rows])
            released, balance, is_open = (
                self._studies.of(db, identity),
                ledger_lines.balance(db, identity),
                store.state_of(db, identity),
            )
        try:
            if begun is None and is_open == "open":
                charge_answers(released.spec, balance, rows, balances)
        except BudgetExhausted as refusal:
            await self._context.database.write_soon(
                lambda db, refusal=refusal: self._budgets.refuse(
                    db, caller.principal.actor, identity, released.spec, refusal, rows
                )
            )
            raise
        await asyncio.sleep(0)
        return await super().ask(caller, identity, request)

    def begin(self, db, caller, identity, released, request):
        uncapped = replace(released, spec=released.spec.model_copy(update={"budget": wire.Budget()}))
        return super().begin(db, caller, identity, uncapped, request)


class DrawsFirst(Queries):
    """Measures before it charges: a crash in between leaves a measurement unpaid."""

    async def ask(self, caller, identity, request):
        released = await self._released(identity)
        answers = self._measured(released, request)

        def charge(db):
            charged = self.begin(db, caller, identity, released, request)
            if not isinstance(charged, QueryCharge):
                return charged
            return self._settle(db, caller, identity, charged, released, answers)

        outcome = await self._context.database.write_soon(charge)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class ChargesAgain(Queries):
    """Charges a retry after a crash as a new query."""

    def begin(self, db, caller, identity, released, request):
        other, stored = replace(caller, key=f"{caller.key}'"), self._context.idempotency.stored
        if stored(db, caller) is None and stored(db, other) is None:
            with suppress(BudgetExhausted):
                super().begin(db, other, identity, released, request)
        return super().begin(db, caller, identity, released, request)


class DrawsAnew(Queries):
    """Answers a retry with fresh noise."""

    async def ask(self, caller, identity, request):
        reply = await super().ask(caller, identity, request)
        if reply.replayed:
            answers = self._measured(self._studies.cached(identity, 0), request)
            fresh = wire.QueryReply.model_validate_json(reply.body).model_copy(update={"answers": answers})
            return type(reply)(reply.status, fresh.model_dump_json().encode(), replayed=True)
        return reply


class ForgetsBody(Queries):
    """Answers any query under a key that was charged and not answered."""

    def begin(self, db, caller, identity, released, request):
        begun = store.begun(db, caller.principal.id, caller.key)
        if begun is not None and self._context.idempotency.stored(db, caller) is None:
            return QueryCharge(begun.id, {item.row for item in request.rows}, 0)
        return super().begin(db, caller, identity, released, request)


class SilentBudgets(Budgets):
    """The budgets of a curator, which refuse without a record."""

    def __init__(self, context, budgets):
        super().__init__(context, None, None)
        self.uses = budgets.uses

    def refuse(self, *args):
        return audit_log.Appended(0, "", 0)


class ForgetsRefusals(Queries):
    """Has such budgets."""

    def __init__(self, context, vault, limits, studies, budgets, *rest):
        super().__init__(context, vault, limits, studies, SilentBudgets(context, budgets), *rest)


class CarelessAuthentication(Authentication):
    """Takes every token for live."""

    def check_live(self, db, principal):
        pass


class StaysOpen(Queries):
    """Does not check the token again when it charges."""

    def __init__(self, context, *rest):
        careless = CarelessAuthentication(context.database, context.clock, context.seal.mac)
        super().__init__(replace(context, authentication=careless), *rest)


ONCE, TWICE, MOST = [(0, 1)], [(0, 2), (0, 2)], [(0, 2), (1, 1)]
BROKEN = {
    ChecksOutside: ("a cap was passed", [("ask_at_once", TWICE, 3, False)]),
    DrawsFirst: (
        "not one charge for each key|a cap was passed|another query was answered",
        [("crash_between_charge_and_answer", ONCE, None)],
    ),
    ChargesAgain: ("not one charge for each key|a cap was passed", [("ask", ONCE, 1)]),
    DrawsAnew: ("answered in two ways|qry_", [("ask", ONCE, 2)]),
    ForgetsBody: ("another query was answered", [("crash_between_charge_and_answer", ONCE, MOST)]),
    ForgetsRefusals: ("a refusal without its record", [("ask", TWICE, 1), ("ask", MOST, 1)]),
    StaysOpen: ("answered after the end|not one charge for each key", [("end", "revoke", ONCE)]),
}
"""What shows each fault, and the least that the machine must do for it."""


def follow(kind, steps):
    """Drive the machine by hand through some of its rules, and check its model after each."""
    machine = type("Driven", (Studied,), {"kind": kind})()
    try:
        machine.open(SPECS[0])
        for rule_name, *arguments in steps:
            getattr(machine, rule_name)(*arguments)
            machine.the_ledger_says_what_the_model_says()
    finally:
        machine.teardown()


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_ledger_is_found(broken):
    how, steps = BROKEN[broken]
    follow(Queries, steps)  # a sound one passes the same
    with pytest.raises(AssertionError, match=how):
        follow(broken, steps)


@pytest.mark.skipif(scaled(1) < 20, reason="`make audit-privacy` searches: how long that takes is luck")
@pytest.mark.parametrize("broken", BROKEN)
def test_a_search_finds_a_broken_ledger(broken):
    """The machine without a hint comes upon each fault: within 140 examples in every one of six searches."""

    class Broken(Studied):
        kind = broken

    with pytest.raises(AssertionError, match=BROKEN[broken][0]):
        run_state_machine_as_test(Broken, settings=settings(RUN, max_examples=500))  # the first that shows it ends it


LEDGER = ["plays", "total", "total_plays", "release", "row_total", "row_plays", "row_queries"]


@pytest.mark.parametrize("kind", ["release", "answers", "refused"])
def test_a_number_of_the_ledger_that_was_changed_or_a_line_that_is_gone_is_found(kind):
    """The control for the check that the machine makes after each step."""
    machine = Studied()
    try:
        machine.open(SPECS[1] | {"epsilon_per_row": "0.5"})
        machine.ask_under("k", [(0, 1), (1, 2)])
        machine.ask_under("l", [(0, 3)])
        assert machine.refused == 1
        last = f"WHERE seq = (SELECT max(seq) FROM ledger WHERE kind = '{kind}')"
        changes = [f"UPDATE ledger SET {column} = {column} + 1 {last}" for column in LEDGER]
        changes += [f"UPDATE ledger SET cost = '9' || cost {last}", f"DELETE FROM ledger {last}"]
        unseen = [change for change in changes if not is_found(machine.context, change)]
        assert unseen == []
        assert not is_found(machine.context, f"UPDATE ledger SET cost = cost {last}")
    finally:
        machine.teardown()


class Undone(Exception):
    """Rolls a transaction back."""


def is_found(context, change):
    """Whether the check finds this change, which is undone."""
    faults = []

    def work(db):
        beside.drop_triggers(db, "ledger_UPDATE", "ledger_DELETE")
        beside.execute(db, change)
        try:
            log_checks.check(db, [entry.record for entry in audit_log.walk(db)])
        except LogBroken as error:
            faults.append(str(error))
        raise Undone

    with pytest.raises(Undone):
        context.database.write(work)
    return bool(faults)


@pytest.mark.parametrize("cap", ["epsilon_per_row", "epsilon_total"])
def test_a_draft_that_could_answer_nothing_is_refused(cap):
    """The release and one answer fit the cap each, and not together."""
    spec = study(gaussian("3"), laplace("1"), "row", **{cap: "3.999999999999"})
    assert [fault["field"] for fault in faults(spec)] == [f"budget.{cap}"]
    assert not faults(study(gaussian("3"), laplace("1"), "row", **{cap: "4"}))
    if cap == "epsilon_per_row":  # the answers are other people's
        assert not faults(study(gaussian("3"), laplace("1"), "answer", **{cap: "3"}))


# --- corrections ------------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True)
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=5),
    spent=st.dictionaries(st.integers(0, 3), st.integers(0, 9), max_size=4),
    again=st.integers(1, 4),
    cap=st.integers(1, 12),
    unit=st.sampled_from(["row", "answer"]),
    whole=st.booleans(),
)
def test_a_correction_is_priced_and_refused_as_an_oracle_in_fractions_says(rows, spent, again, cap, unit, whole):
    """Each number that is released anew costs one answer; no cap on measurements counts it."""
    price, limit = Fraction(1, 4), Fraction(cap, 4)
    caps = {"epsilon_total" if whole else "epsilon_per_row": f"{cap * 0.25:.2f}"}
    spec = study(answers=laplace("0.25"), unit=unit, queries=1, **caps)
    balances = {row: ledger.RowBalance(1, n, n * units("0.25")) for row, n in spent.items()}
    before = Balance(0, units("0.25") * sum(spent.values()), sum(spent.values()))
    releases = Counter()
    for row, n in rows:
        releases[row] += n
    if whole:
        allowed = price * (sum(spent.values()) + sum(releases.values())) <= limit
    elif unit == "row":
        allowed = all(price * (spent.get(row, 0) + n) <= limit for row, n in releases.items())
    else:
        allowed = price * (again + 1) <= limit
    if not allowed:
        with pytest.raises(BudgetExhausted):
            ledger.charge_corrections(spec, before, rows, balances, again)
        return
    charges = ledger.charge_corrections(spec, before, rows, balances, again)
    assert [(c.row, c.plays, Fraction(text(c.cost))) for c in charges] == [(row, 0, n * price) for row, n in rows]
    assert Fraction(text(charges[-1].after.total)) == price * (sum(spent.values()) + sum(releases.values()))
    assert charges[-1].after.plays == before.plays
    for row, n in releases.items():
        last = [c.row_after for c in charges if c.row == row][-1]
        assert (last.plays, Fraction(text(last.total))) == (spent.get(row, 0), price * (spent.get(row, 0) + n))
