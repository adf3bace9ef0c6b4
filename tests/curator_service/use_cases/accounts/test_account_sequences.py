"""Random sequences of acts on one file: after each, the account is what the log and the orders say, and in its caps.

To add an act: a method of ``Acts`` whose name is in ``ACTS``; if it charges, teach ``recomputed_account`` its record.
"""

import random
from fractions import Fraction

import pytest

from blindopt import wire
from tests.curator_service.use_cases.accounts.file_of_records import FileOfRecords, N, spec_of
from tests.curator_service.use_cases.accounts.recomputed_account import recomputed

SCORER = {"scorer_url": "http://127.0.0.1:9/score"}
INBOX = wire.InboxMeasurement(question="How much?", direction="maximize", shown=["a"])


class Killed(Exception):
    """The service dies between a charge and its answer."""


class Acts:
    """The acts on a file, chosen by a seed. Each may be refused by a cap; none may fail in another way."""

    ACTS = (
        *("open_column_study", "open_inbox_study", "release_again", "ask", "ask", "ask", "enter", "correct", "correct"),
        *("void", "tune", "lower_cap", "raise_cap", "register_again", "crash", "interrupted_query", "withhold"),
    )

    def __init__(self, file: FileOfRecords, seed: int) -> None:
        self.file, self.choose = file, random.Random(seed)
        self.datasets, self.columns, self.inboxes = [file.dataset], [], []
        self.queries: list[str] = []
        self.anybodys: set[str] = set()
        """Studies whose answers are each another person's."""
        self.unreleased: list[str] = []
        self.withheld: set[int] = set()
        self.refused = 0

    def act(self) -> str:
        name = self.choose.choice(self.ACTS)
        getattr(self, name)()
        return name

    def _done(self, reply, *allowed: int) -> bool:
        """Whether an act was done; False for one that a cap refused, or that its state does not allow (``allowed``)."""
        if reply.status_code == 403:
            assert reply.json()["code"] == "privacy_budget_exhausted", reply.text
            self.refused += 1
            return False
        assert reply.is_success or reply.status_code in allowed, reply.text
        return reply.is_success

    def _epsilon(self) -> str:
        return self.choose.choice(("0.1", "0.25", "0.3", "0.7", "1"))

    def _answers(self):
        plays = self.choose.choice(("each", "mean"))
        return wire.LaplaceAnswers(mechanism="laplace", epsilon=self._epsilon(), value_bound=4.0, plays=plays)

    def _open(self, **more) -> str | None:
        release = self.choose.choice((
            wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon=self._epsilon()),
            wire.GaussianRelease(mechanism="gaussian", epsilon=self._epsilon(), delta=1e-6),
        ))  # fmt: skip
        dataset = self.choose.choice(self.datasets)
        study = self.file.draft(dataset, release=release, answers=self._answers(), **more)
        if not self._done(self.file.release(study)):
            self.unreleased.append(study)
            return None
        return self.file.grant(study)

    def open_column_study(self) -> None:
        if (study := self._open()) is not None:
            self.columns.append(study)

    def open_inbox_study(self) -> None:
        unit = self.choose.choice(("row", "answer"))
        if (study := self._open(measurement=INBOX, privacy_unit=unit)) is not None:
            self.inboxes.append(study)
            self.anybodys |= {study} if unit == "answer" else set()

    def release_again(self) -> None:
        """A release that a cap refused, tried again."""
        if self.unreleased and self._done(self.file.release(study := self.choose.choice(self.unreleased))):
            self.unreleased.remove(study)
            self.file.grant(study)

    def ask(self) -> None:
        if not self.columns + self.inboxes:
            return
        study = self.choose.choice(self.columns + self.inboxes)
        n = len(self.file.order(study))
        rows, plays = [self.choose.randrange(n) for _ in range(self.choose.randint(1, 3))], self.choose.randint(1, 2)
        if study in self.anybodys:  # then the log says of each correction which answer it was
            rows, plays = rows[:1], 1
        reply = self.file.ask(study, *rows, plays=plays)
        if self._done(reply) and study in self.inboxes:
            self.queries.append(reply.json()["id"])

    def _send(self, verb: str, body) -> None:
        query = self.choose.choice(self.queries)
        path = f"/v1/queries/{query}:{verb}"
        self._done(self.file.in_process.send("measurer", "POST", path, json=body(query)), 409, 422)

    def _values(self, query: str, state: str):
        items = [item for item in self.file.in_process.items(query) if item["state"] == state]
        chosen = [item for item in items if self.choose.random() < 0.7] if state == "answered" else items
        return [{"measurement_id": item["id"], "value": self.choose.uniform(-4, 4)} for item in chosen]

    def enter(self) -> None:
        if self.queries:
            self._send("answer", lambda query: {"values": self._values(query, "open")})

    def correct(self) -> None:
        if self.queries:
            self._send("correct", lambda query: {"values": self._values(query, "answered")})

    def void(self) -> None:
        def body(query):
            answered = [item["id"] for item in self.file.in_process.items(query) if item["state"] == "answered"]
            return {"void": answered[:1], "reason": "consent"}

        if self.queries:
            self._send("correct", body)

    def tune(self) -> None:
        """A tuning of every dataset of the file: charged, and cancelled before it runs."""
        capped = Fraction(self.file.account().cap_epsilon or "100")
        body = {
            "name": "t",
            "grid": [{"name": "depth", "values": [1.0, 2.0]}],
            "score": {"kind": "http", "model": "m", "lower": 0.0, "upper": 1.0},
            "validation_dataset_id": self.choose.choice(self.datasets),
            "method": {"name": "grid_exponential"},
            "budget": {"epsilon": self._epsilon()},
            "caps": {"epsilon": str(float(capped)), "delta": 0.5},
        }
        self._done(self.file.in_process.send("owner", "POST", "/v1/tunings", json=body))

    def lower_cap(self) -> None:
        account = self.file.account()
        low, high = Fraction(account.epsilon), Fraction(account.cap_epsilon or "12")
        cap = low + (high - low) * Fraction(self.choose.randint(0, 10), 10)
        self._done(self.file.caps(str(max(float(cap), 0.1)), self._delta(account)), 409)

    @staticmethod
    def _delta(account) -> float | None:
        return None if account.cap_delta is None else float(account.cap_delta)

    def raise_cap(self) -> None:
        account = self.file.account()
        if account.cap_epsilon is not None:
            cap = str(float(Fraction(account.cap_epsilon) + 1))
            assert self.file.caps(cap, self._delta(account)).status_code == 409
            self._done(self.file.caps(cap, self._delta(account), raise_caps=True, reason="more"))

    def register_again(self) -> None:
        if len(self.datasets) < 3:
            self.datasets.append(self.file.register())

    def withhold(self) -> None:
        """A record is measured and released no more: it costs nothing, and what it has lost stays lost."""
        if len(self.withheld) < 2:
            self.withheld.add(record := self.choose.randrange(N) + 1)
            path = f"/v1/datasets/{self.choose.choice(self.datasets)}:withhold"
            self._done(self.file.in_process.send("owner", "POST", path, json={"record": record}))

    def crash(self) -> None:
        self.file.reopen()
        self._without_scores()

    def interrupted_query(self) -> None:
        """A kill between the charge and the answer of a query, and its retry."""
        if not self.columns:
            return
        study, key = self.choose.choice(self.columns), f"k{self.choose.random()}"
        row = self.choose.randrange(len(self.file.order(study)))
        queries, killed = self.file.in_process.curator.queries, False

        def dying(*_):
            nonlocal killed
            killed = True
            raise Killed

        queries._measured = dying
        reply = self.file.ask(study, row, key=key)
        assert killed == (reply.status_code == 500)
        if not killed:
            self._done(reply)
        self.crash()
        self.check()
        self._done(self.file.ask(study, row, key=key))

    def _without_scores(self) -> None:
        tunings = self.file.in_process.curator.tunings
        tunings._submit = lambda identity: None

    # --- the check -----------------------------------------------------------------------------------

    def losses(self):
        """What everyone has lost, and each record beyond that, from the log."""
        with self.file.in_process.context.database.read() as db:
            from service_kit.store import audit_log

            records = [entry.record for entry in audit_log.walk(db)]
        views, orders = {}, {}

        def spec(study):
            if study not in views:
                views[study] = self.file.in_process.call("owner", "GET", f"/v1/studies/{study}")["spec"]
            return views[study]

        def order(study):
            if study not in orders:
                orders[study] = self.file.order(study)
            return orders[study]

        return recomputed(records, spec, order, n=N)

    def check(self) -> None:
        everyone, units = self.losses()
        account = self.file.account()
        worst = everyone + max(units.values())
        assert Fraction(account.epsilon) == worst
        assert Fraction(account.everyone_epsilon) == everyone
        assert account.losses[0].epsilon == account.epsilon
        assert sum(share.units for share in account.losses) == N
        if account.worst_record is not None:
            assert everyone + units[account.worst_record - 1] == worst
        if account.cap_epsilon is not None:
            assert worst <= Fraction(account.cap_epsilon)
        if account.cap_delta is not None:
            assert Fraction(account.delta) <= Fraction(account.cap_delta)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_after_every_act_the_account_is_what_the_log_and_the_orders_say(seed, tmp_path):
    secret = tmp_path / "scorer.key"
    secret.write_bytes(b"k" * 40)
    file = FileOfRecords(tmp_path, scorer_secret_file=secret, **SCORER)
    acts = Acts(file, seed)
    acts._without_scores()
    assert file.caps("3", 3e-6).status_code == 200
    done = []
    for _ in range(30):
        done.append(acts.act())
        acts.check()
    assert acts.refused > 0, done  # caps were in the way
    file.close()


def test_the_check_finds_an_account_that_forgets_a_study(tmp_path):
    """The control: an account by study, as each ledger is, understates the record that two studies asked."""
    file = FileOfRecords(tmp_path)
    acts = Acts(file, 0)
    for _ in range(2):
        study = file.study()
        file.ask(study, file.row_of(study, 3))
    acts.check()
    everyone, units = acts.losses()
    assert (everyone, max(units.values())) == (2, 1)
    of_one = [file.in_process.call("owner", "GET", f"/v1/studies/{s}/account")["row_epsilon"] for s in file.tokens]
    assert of_one == ["1.5", "1.5"]
    file.close()


__all__ = ["spec_of"]
