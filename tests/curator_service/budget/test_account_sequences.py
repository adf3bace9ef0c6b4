"""Random sequences of acts on one file: after each, the account is what the log and the orders say, and in its caps.

Once where each record is a unit, and once with a person column. To add an act: a method of ``Acts`` whose name is in
``ACTS``; if it charges, teach ``recomputed_account`` its record.
"""

import random
from collections import Counter, defaultdict
from decimal import Decimal
from fractions import Fraction

import pytest

from blindopt import wire
from blindopt.audit import letters
from service_kit.store import audit_log
from tests.curator_service.budget.file_of_records import CSV, FileOfRecords, N
from tests.curator_service.budget.recomputed_account import (
    recomputed,
    recomputed_delta,
    recomputed_kind,
    recomputed_rows,
)
from tests.interventions import fail_at

SCORER = {"scorer_url": "http://127.0.0.1:9/score"}
INBOX = wire.InboxMeasurement(question="How much?", direction="maximize", shown=["a"])
PRIOR = {"lengthscale": 1.0, "one_minus_k1": 0.01, "evaluations": 2}
ACTS = {
    "open_column_study": 4,
    "open_inbox_study": 4,
    "release_again": 2,
    "read_release": 4,
    "ask": 8,
    "enter": 3,
    "correct": 3,
    "void": 2,
    "tune": 2,
    "find_bounds": 3,
    "lower_cap": 2,
    "raise_cap": 3,
    "register_again": 1,
    "withhold": 1,
    "crash": 1,
    "interrupted_query": 2,
    "interrupted_bounds": 1,
}
"""How often each sequence tries each act: 46 in all. Its seed chooses the order, and each act's details."""
ACTS_OF_SECOND_DRAWS = {
    "open_inbox_study": 1,
    "read_release": 2,
    "ask": 16,
    "enter": 6,
    "correct": 4,
    "void": 2,
    "decline": 2,
    "withhold": 1,
    "crash": 1,
    "interrupted_query": 3,
}
"""The same where measured records leave again."""
SEEDS = 1, 2, 4
"""With all, each act of ``ACTS`` is done at least once, and not only refused, for records and for persons."""
PERSONS = ("Ada", "Ada", "Bo", "Bo", "Bo", "Cy")
"""The person behind each row of the file; of Bo's three, each registration keeps two that it draws by itself."""
ROWS_PER_PERSON = 2
CSV_OF_PERSONS = b"\n".join(
    line + b"," + name.encode() for line, name in zip(CSV.splitlines(), ("person", *PERSONS), strict=True)
)


class Killed(Exception):
    """The service dies between a charge and its answer."""


class Acts:
    """The acts on a file, chosen by a seed. Each may be refused by a cap; none may fail in another way.

    ``persons``: whether the units are the persons of ``PERSONS``, and not the records. ``refined``: the share of the
    studies with planar noise whose measured records leave again; all have this noise where it is not 0.
    """

    def __init__(self, folder, seed: int, *, persons: bool = False, refined: float = 0.0, **settings) -> None:
        fields = {"person": "person", "rows_per_person": str(ROWS_PER_PERSON)} if persons else {}
        self.fields, self.persons = fields, persons
        self.file = FileOfRecords(folder, csv=CSV_OF_PERSONS if persons else CSV, fields=fields, **settings)
        self.choose = random.Random(seed)
        self.choose_also, self.refined = random.Random(~seed), refined
        self.beside = random.Random(seed)
        """Whose letters are read."""
        self.datasets, self.columns, self.inboxes = [self.file.dataset], [], []
        self.queries: list[str] = []
        self._specs, self._orders = {}, {}
        """Of each study that was charged: neither changes from then on."""
        self.grants: dict[str, str] = {}
        """Of each query that people measure, who sent it."""
        self.draws: dict[tuple[str, int], set[tuple[float, ...]]] = defaultdict(set)
        """By study and row, the second draws that have left."""
        self._looked_at: dict[str, int] = {}
        """By study with second draws, how many lines its ledger had at the last look."""
        self.anybodys: set[str] = set()
        """Studies whose answers are each another person's."""
        self.unreleased: list[str] = []
        self.kinds: set[str] = set()
        """What the tunings that were charged promise."""
        self.name = ""
        self.done, self.refused = Counter(), Counter()
        """How often each act was done, and how often a cap refused it."""
        self._without_scores()

    def run(self, acts=ACTS) -> None:
        """Every act of ``acts``, and after each the check."""
        names = [name for name, times in acts.items() for _ in range(times)]
        self.choose.shuffle(names)
        for self.name in names:
            getattr(self, self.name)()
            self.check()

    def _done(self, reply, *allowed: int) -> bool:
        """Whether an act was done; False for one that a cap refused, or that its state does not allow (``allowed``)."""
        if reply.status_code == 403:
            assert reply.json()["code"] == "privacy_budget_exhausted", reply.text
            self.refused[self.name] += 1
            return False
        assert reply.is_success or reply.status_code in allowed, reply.text
        self.done[self.name] += reply.is_success
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
        if self.refined:
            release = wire.PlanarLaplaceRelease(mechanism="planar_laplace", epsilon=release.epsilon)
        dataset = self.choose.choice(self.datasets)
        more |= self._refine(release.mechanism, more.get("privacy_unit", "row"))
        study = self.file.draft(dataset, release=release, answers=self._answers(), **more)
        if not self._done(self.file.release(study)):
            self.unreleased.append(study)
            return None
        return self.file.grant(study)

    def _refine(self, mechanism: str, unit: str):
        """The field refine of a study that has one."""
        if mechanism != "planar_laplace" or unit != "row" or self.choose_also.random() >= self.refined:
            return {}
        epsilon = self.choose_also.choice(("0.1", "0.3", "2"))
        return {"refine": wire.Refine(epsilon=epsilon, persons=self.choose_also.randint(1, 4))}

    def open_column_study(self) -> None:
        if (study := self._open()) is not None:
            self.columns.append(study)

    def open_inbox_study(self) -> None:
        unit = self.choose.choice(("row", "answer"))
        if (study := self._open(measurement=INBOX, privacy_unit=unit)) is not None:
            self.inboxes.append(study)
            self.anybodys |= {study} if unit == "answer" else set()

    def read_release(self) -> None:
        """Another outcome on the candidates of a study that drew its own: only its answers cost anything."""
        sources = [s for s in self.columns + self.inboxes if self._spec(s)["release_of"] is None]
        if not sources:
            return
        source, by_hand = self.choose.choice(sources), self.choose.random() < 0.6
        unit = self.choose.choice(("row", "answer")) if by_hand else "row"
        measurement = INBOX if by_hand else wire.ColumnMeasurement(column="y", direction="minimize")
        body = self._spec(source) | {
            "name": "again",
            "release_of": source,
            "answers": self._answers().model_dump(mode="json"),
            "measurement": measurement.model_dump(mode="json"),
            "privacy_unit": unit,
        }
        body.pop("refine", None)
        refine = self._refine(body["release"]["mechanism"], unit)
        body |= {name: field.model_dump(mode="json") for name, field in refine.items()}
        study = str(self.file.in_process.call("owner", "POST", "/v1/studies", json=body)["id"])
        before = self.file.account()
        if self._done(self.file.release(study), 409):  # all records may be withheld
            assert self.file.account().epsilon == before.epsilon
            self.file.grant(study)
            (self.inboxes if by_hand else self.columns).append(study)
            self.anybodys |= {study} if unit == "answer" else set()

    def _spec(self, study: str):
        return self.file.in_process.call("owner", "GET", f"/v1/studies/{study}")["spec"]

    def release_again(self) -> None:
        """A release that a cap refused, tried again."""
        if self.unreleased and self._done(self.file.release(study := self.choose.choice(self.unreleased))):
            self.unreleased.remove(study)
            self.file.grant(study)

    def ask(self) -> None:
        if not self.columns + self.inboxes:
            return
        study = self.choose.choice(self.columns + self.inboxes)
        rows, plays = [self._row(study) for _ in range(self.choose.randint(1, 3))], self.choose.randint(1, 2)
        if study in self.anybodys:  # then the log says of each correction which answer it was
            rows, plays = rows[:1], 1
        grant = study if self.choose_also.random() >= self.refined / 2 else f"another of {study}"
        if grant not in self.file.in_process.tokens:
            self.file.in_process.grant(study, grant)
        reply = self.file.ask(study, *rows, plays=plays, grant=grant)
        if self._done(reply):
            self._note_draws(reply.json())
            if study in self.inboxes:
                self.queries.append(query := reply.json()["id"])
                self.grants[query] = grant

    def _note_draws(self, reply) -> None:
        """Keep the second draws of a reply, each of a row with an answer in it."""
        answered = {answer["row"] for answer in reply.get("answers", ())}
        refined = {each["row"]: tuple(each["z"]) for each in reply.get("refined", ())}
        if reply["state"] == "answered":
            assert refined.keys() == (answered if self._spec(reply["study_id"]).get("refine") else set())
        for row, z in refined.items():
            self.draws[reply["study_id"], row].add(z)

    def _row(self, study: str) -> int:
        """The row of Z of a record: chosen by its number, since the seed does not choose the secret order."""
        order = self.file.order(study)
        return order.index(self.choose.choice(sorted(order)))

    def _answered(self) -> list[str]:
        """The queries with an answer that can be corrected."""
        items = self.file.in_process.items
        return [query for query in self.queries if any(item["state"] == "answered" for item in items(query))]

    def _send(self, verb: str, queries: list[str], body) -> None:
        query = self.choose.choice(queries)
        path = f"/v1/queries/{query}:{verb}"
        if self._done(self.file.in_process.send("measurer", "POST", path, json=body(query)), 409, 422):
            study = self.file.in_process.items(query)[0]["study_id"]
            self._note_draws(
                self.file.in_process.call(self.grants[query], "GET", f"/v1/studies/{study}/queries/{query}")
            )

    def _values(self, query: str, state: str):
        items = [item for item in self.file.in_process.items(query) if item["state"] == state]
        chosen = [item for item in items if self.choose.random() < 0.7] if state == "answered" else items
        return [{"measurement_id": item["id"], "value": self.choose.uniform(-4, 4)} for item in chosen]

    def enter(self) -> None:
        if self.queries:
            self._send("answer", self.queries, lambda query: {"values": self._values(query, "open"), "consent": True})

    def decline(self) -> None:
        """All that is open of a query, for lack of consent: its second draws are charged and do not leave."""
        if self.queries:
            self._send("decline", self.queries, lambda query: {"reason": "consent"})

    def correct(self) -> None:
        if queries := self._answered():
            self._send("correct", queries, lambda query: {"values": self._values(query, "answered")})

    def void(self) -> None:
        def body(query):
            answered = [item["id"] for item in self.file.in_process.items(query) if item["state"] == "answered"]
            return {"void": answered[:1], "reason": "consent"}

        if queries := self._answered():
            self._send("correct", queries, body)

    def tune(self, kind: str | None = None) -> None:
        """A tuning, which is charged and does not run. With a delta only for records: 422 for several of a person.

        ``kind``: of its guarantee; any if None.

        With a cap on the account only worst cases are tuned, and after any other no worst case, whose caps cannot hold.
        """
        capped = Fraction(self.file.account().cap_epsilon or "100")
        has_delta = not self.persons and self.choose.random() < 0.7
        is_estimated = self.choose.random() < 0.2
        if kind is not None:
            has_delta, is_estimated = kind != "worst_case", kind == "none"
        prior = PRIOR | ({"estimated": ["scaling"]} if is_estimated else {})
        method = {"name": "gp_design", "prior": prior} if has_delta else {"name": "grid_exponential"}
        epsilon = self._epsilon()
        body = {
            "name": "t",
            "grid": [{"name": "depth", "values": [1.0, 2.0]}],
            "score": {"kind": "http", "model": "m", "lower": 0.0, "upper": 1.0},
            "validation_dataset_id": self.choose.choice(self.datasets),
            "method": method,
            "budget": {"epsilon": epsilon, "delta": 1e-6 if has_delta else 0.0},
            "caps": {"epsilon": str(float(capped)), "delta": 0.5},
        }
        if self._done(self.file.in_process.send("owner", "POST", "/v1/tunings", json=body), 409):
            self.kinds.add(self.file.records("tuning.started")[-1]["guarantee_kind"])
            self._check_charge("tuning.started", Fraction(epsilon) * (ROWS_PER_PERSON if self.persons else 1))

    def find_bounds(self) -> None:
        """Private bounds: their epsilon is a person's already."""
        send, epsilon = self._bounds()
        if self._done(send()):
            self._check_charge("bounds.started", epsilon)

    def interrupted_bounds(self) -> None:
        """A kill between the charge and the draw of private bounds, and their retry."""
        send, epsilon = self._bounds()
        if self._killed_and_again("bounds", "_drawn", send):
            self._check_charge("bounds.started", epsilon)

    def _bounds(self):
        """A request, and its epsilon."""
        columns = [{"column": name, "outer": [0.0, 8.0]} for name in self.choose.choice((["a"], ["a", "y"]))]
        body = {"columns": columns, "quantiles": [0.25, 0.75], "epsilon": self._epsilon()}
        path, key = f"/v1/datasets/{self.choose.choice(self.datasets)}:bounds", f"k{self.choose.random()}"
        return lambda: self.file.in_process.send("owner", "POST", path, json=body, key=key), Fraction(body["epsilon"])

    def _check_charge(self, kind: str, epsilon: Fraction) -> None:
        assert Fraction(self.file.records(kind)[-1]["epsilon"]) == epsilon

    def lower_cap(self) -> None:
        account = self.file.account()
        low, high = Fraction(account.epsilon or "0"), Fraction(account.cap_epsilon or "12")
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
        self.datasets.append(self.file.register(**self.fields))
        self.done[self.name] += 1

    def withhold(self) -> None:
        """A record or a person is released no more: that costs nothing, and what was lost stays lost."""
        record = self.choose.randrange(N)
        body = {"person": PERSONS[record]} if self.persons else {"record": record + 1}
        path = f"/v1/datasets/{self.choose.choice(self.datasets)}:withhold"
        self._done(self.file.in_process.send("owner", "POST", path, json=body))

    def crash(self) -> None:
        self.file.reopen()
        self._without_scores()
        self.done["crash"] += 1

    def interrupted_query(self) -> None:
        """A kill between the charge and the answer of a query, and its retry."""
        if self.columns:
            study, key = self.choose.choice(self.columns), f"k{self.choose.random()}"
            row = self._row(study)
            step = "_settle" if self.choose_also.random() < self.refined / 2 else "_measured"
            self._killed_and_again("queries", step, lambda: self.file.ask(study, row, key=key))

    def _killed_and_again(self, part: str, method: str, send) -> bool:
        """Send a request that a kill interrupts in a method, and once more: one charge. False if a cap refused it."""
        with pytest.MonkeyPatch.context() as patch:
            calls = fail_at(patch, getattr(self.file.in_process.curator, part), method, Killed)
            reply = send()
        killed = bool(calls)
        assert killed == (reply.status_code == 500)
        self.crash()
        if not killed:
            return self._done(reply)
        self.check()
        before = self.file.account()
        assert self._done(send())
        assert self.file.account() == before
        return True

    def _without_scores(self) -> None:
        tunings = self.file.in_process.curator.tunings
        tunings._submit = lambda identity, name: None

    # --- the check -----------------------------------------------------------------------------------

    def check_second_draws(self, records, spec, order) -> None:
        """Each leaves once, in one way, after its line, of as many units as allowed; exposure and report have it."""
        for study in {study for study in self.columns + self.inboxes if spec(study).get("refine") is not None}:
            lines = [record for record in records if record.get("details", {}).get("study_id") == study]
            if self._looked_at.get(study) == len(lines):
                continue
            self._looked_at[study] = len(lines)
            costs, refined = recomputed_rows(lines, spec, study)
            sent = {row: draws for (other, row), draws in self.draws.items() if other == study}
            assert sent.keys() <= refined
            assert all(len(draws) == 1 for draws in sent.values())
            charged = self.file.in_process.call("owner", "GET", f"/v1/studies/{study}/ledger?kind=refine")["entries"]
            assert sorted(entry["row"] for entry in charged) == sorted(refined)
            dataset, release = spec(study)["dataset_id"], Fraction(spec(study)["release"]["epsilon"])
            persons = (self.persons_of_datasets() or {dataset: range(N)})[dataset]
            units = [persons[record] for record in order(study)]
            assert len({units[row] for row in refined}) <= spec(study)["refine"]["persons"]
            exposed = self.file.in_process.call("owner", "GET", f"/v1/studies/{study}/exposure")["rows"]
            assert {each["row"]: Fraction(each["epsilon"]) for each in exposed} == costs
            assert {each["row"] for each in exposed if each.get("refined")} == refined
            used = Counter[object]()
            for row, cost in costs.items():
                used[units[row]] += cost
            shares = Counter[Fraction]()
            for each in self.file.in_process.call("owner", "GET", f"/v1/studies/{study}/accounting")["rows"]:
                shares[Fraction(each["epsilon"])] += each["rows"]
            del shares[release]  # of those who were never queried
            assert shares == Counter(release + cost for cost in used.values())

    def losses(self):
        """What everyone has lost, each unit beyond that, and the sum of the deltas, from the log."""
        with self.file.in_process.context.database.read() as db:
            records = [entry.record for entry in audit_log.walk(db)]

        def spec(study):
            if study not in self._specs:
                self._specs[study] = self.file.in_process.call("owner", "GET", f"/v1/studies/{study}")["spec"]
            return self._specs[study]

        def order(study):
            if study not in self._orders:
                self._orders[study] = self.file.order(study)
            return self._orders[study]

        everyone, units = recomputed(
            records, spec, order, self.persons_of_datasets(), set(PERSONS) if self.persons else range(N)
        )
        self.check_second_draws(records, spec, order)
        self.of_kind = {kind: recomputed_kind(records, kind) for kind in ("prior_average", "none")}
        return everyone, units, recomputed_delta(records, spec)

    def persons_of_datasets(self) -> dict[str, list[str]] | None:
        """By dataset, the person behind each record that it keeps: from the file and the numbers of those records."""
        if not self.persons:
            return None
        numbers = self.file.in_process.curator.vault.numbers
        return {dataset: [PERSONS[number - 1] for number in numbers(dataset)] for dataset in self.datasets}

    def check(self) -> None:
        everyone, units, delta = self.losses()
        account = self.file.account()
        worst = everyone + max(units.values())
        assert account.unit == ("person" if self.persons else "record")
        averages = account.on_average
        of_averages = (averages.epsilon, averages.delta, averages.tunings) if averages else (0, 0, 0)
        assert tuple(map(Fraction, of_averages)) == self.of_kind["prior_average"]
        assert len(account.unbounded) == self.of_kind["none"][2]
        assert Fraction(account.delta) == delta
        number = self.beside.randrange(4 * N)
        if number < N:  # after one act in four
            self.check_letter(everyone + units[PERSONS[number] if self.persons else number], number)
        if account.unbounded:
            assert (account.epsilon, account.everyone_epsilon) == (None, None)
            assert "at most" not in account.sentence
            return
        assert Fraction(account.epsilon) == worst
        assert Fraction(account.everyone_epsilon) == everyone
        shares = {Fraction(share.epsilon): share.units for share in account.losses}
        assert shares == Counter(everyone + beyond for beyond in units.values())
        assert (account.worst_record is None) == (len(shares) == 1)
        if account.worst_record is not None:
            unit = account.worst_record - 1
            assert everyone + units[PERSONS[unit] if self.persons else unit] == worst
        if account.cap_epsilon is not None:
            assert worst <= Fraction(account.cap_epsilon)
        if account.cap_delta is not None:
            assert delta <= Fraction(account.cap_delta)

    def check_letter(self, used: Fraction, number: int) -> None:
        """The letter about a record, or its person, has what the log and the orders say, and its proofs hold."""
        body = {"person": PERSONS[number]} if self.persons else {"record": number + 1}
        path = f"/v1/datasets/{self.beside.choice(self.datasets)}:letter"
        letter = wire.SignedLetter.model_validate_json(self.file.in_process.send("owner", "POST", path, json=body).text)
        letter = letter.letter
        head = self.file.in_process.context.signer.verifier.verify(letter.checkpoint).head
        letters.check(letter, head)
        assert letter.epsilon is None if self.of_kind["none"][2] else Fraction(letter.epsilon) == used
        assert all(event.log for event in letter.events if event.kind not in ("counted", "files"))


@pytest.mark.slow(sibling="test_the_check_finds_a_second_draw_without_its_line")
@pytest.mark.parametrize("persons", [False, True], ids=["records", "persons"])
def test_each_second_draw_leaves_once_after_its_charge_whatever_is_done(persons, tmp_path):
    done, refused, draws = Counter(), Counter(), 0
    for seed in SEEDS:
        acts = Acts(tmp_path / str(seed), seed, persons=persons, refined=0.8)
        assert acts.file.caps("12").status_code == 200
        acts.run({"open_column_study": 2, "open_inbox_study": 2})
        acts.run(ACTS_OF_SECOND_DRAWS)
        acts.file.close()
        done, refused, draws = done + acts.done, refused + acts.refused, draws + len(acts.draws)
    assert set(ACTS_OF_SECOND_DRAWS) - set(done) == set(), (done, refused)
    assert "ask" in refused
    assert draws > 5


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("persons", [False, True], ids=["records", "persons"])
def test_after_every_act_the_account_is_what_the_log_and_the_orders_say(persons, tmp_path):
    secret = tmp_path / "scorer.key"
    secret.write_bytes(b"k" * 40)
    done, refused = Counter(), Counter()
    for seed in SEEDS:
        acts = Acts(tmp_path / str(seed), seed, persons=persons, scorer_secret_file=secret, **SCORER)
        assert acts.file.caps("4", 4e-6).status_code == 200
        acts.run()
        acts.file.close()
        done, refused = done + acts.done, refused + acts.refused
    assert set(ACTS) - set(done) == set(), (done, refused)  # every kind of act was done
    assert {"ask", "find_bounds"} <= set(refused), refused  # caps were in the way


@pytest.mark.slow(every=2)
def test_without_a_cap_tunings_of_all_kinds_are_told_apart(tmp_path):
    secret = tmp_path / "scorer.key"
    secret.write_bytes(b"k" * 40)
    kinds = set()
    names = ["open_column_study", "tune", "ask", "tune", "find_bounds", "tune", "ask", "register_again", "tune"]
    for seed in range(3):
        acts = Acts(tmp_path / str(seed), seed, scorer_secret_file=secret, **SCORER)
        for acts.name in names:
            getattr(acts, acts.name)()
            acts.check()
        kinds |= acts.kinds
        acts.file.close()
    assert kinds == {"worst_case", "prior_average", "none"}


def test_the_check_finds_an_account_that_forgets_a_study(tmp_path):
    """The control: an account by study, as each ledger is, understates the record that two studies asked."""
    acts = Acts(tmp_path, 0)
    file = acts.file
    for _ in range(2):
        study = file.study()
        file.ask(study, file.row_of(study, 3))
    acts.check()
    everyone, units, _ = acts.losses()
    assert (everyone, max(units.values())) == (2, 1)
    of_one = [file.in_process.call("owner", "GET", f"/v1/studies/{s}/account")["row_epsilon"] for s in file.tokens]
    assert of_one == ["1.5", "1.5"]
    file.close()


@pytest.mark.parametrize("persons", [False, True], ids=["records", "persons"])
def test_the_check_finds_a_second_draw_without_its_line(persons, tmp_path, monkeypatch):
    acts = Acts(tmp_path, 0, persons=persons)
    file = acts.file
    study = file.study(refine=wire.Refine(epsilon="2", persons=2))
    acts.columns = [study]
    for record in (0, 1, 0):
        acts._note_draws(file.ask(study, file.row_of(study, record)).json())
        acts.check()
    assert max(acts.losses()[1].values()) == (5.5 if persons else 3)
    assert len(acts.draws) == 2
    monkeypatch.setattr("curator_service.budget.ledger.unrefined", lambda rows, refined: [])
    file.ask(study, file.row_of(study, 2))
    with pytest.raises(AssertionError):
        acts.check()
    file.in_process.close()


def test_the_check_finds_an_account_that_forgets_a_delta(tmp_path, monkeypatch):
    acts = Acts(tmp_path, 0)
    acts.file.study(release=wire.GaussianRelease(mechanism="gaussian", epsilon="1", delta=1e-6))
    acts.check()
    assert acts.losses()[2] == Fraction(1, 10**6)
    monkeypatch.setattr("curator_service.privacy.prices.release_delta", lambda release: Decimal(0))
    with pytest.raises(AssertionError):
        acts.check()
    acts.file.close()


def test_the_check_finds_an_account_that_counts_the_records_of_a_person_by_themselves(tmp_path):
    acts = Acts(tmp_path, 0, persons=True)
    study = acts.file.study()
    acts.file.ask(study, *(acts.file.row_of(study, record) for record in (0, 1)))
    acts.check()
    assert acts.losses()[1] == {"Ada": 1, "Bo": 0, "Cy": 0}
    acts.persons_of_datasets = lambda: {dataset: [f"{i}" for i in range(N)] for dataset in acts.datasets}
    with pytest.raises(AssertionError):
        acts.check()
    acts.file.close()
