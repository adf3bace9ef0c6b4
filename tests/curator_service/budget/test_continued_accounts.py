"""One account over several files: after random acts, each person has used what the log and the files say, or more.

The recount takes one file after another, as ``recomputed_account`` does, and adds what each person used by name.
"""

from collections import Counter
from contextlib import closing
from fractions import Fraction

import pytest

from blindopt import wire
from blindopt.wire import ColumnMeasurement, Feature
from curator_service import store
from curator_service.budget.file_use import FileUses
from curator_service.budget.people import People
from curator_service.datasets.same_people import SamePeople
from curator_service.privacy.prices import text
from service_kit.store import audit_log
from tests import beside
from tests.curator_service.budget.file_of_records import FileOfRecords, N, spec_of
from tests.curator_service.budget.recomputed_account import recomputed, recomputed_delta
from tests.curator_service.budget.test_account_sequences import ACTS, PERSONS, SCORER, Acts, Killed
from tests.interventions import fail_at

ACTS_OVER_FILES = {name: times for name, times in ACTS.items() if name != "register_again"}
ACTS_OVER_FILES |= {"register_again": 1, "new_export": 4, "interrupted_decision": 1, "erase": 1}
COLUMN_B = ColumnMeasurement(column="b", direction="maximize")
OF_RECORDS = {"columns": '["a", "b", "y"]'}


class ActsOverFiles(Acts):
    """Acts on an account of several files. A person has a name, and in each file a key: a pseudonym, or a version."""

    def __init__(self, folder, seed, *, persons, **settings) -> None:
        super().__init__(folder, seed, persons=persons, **settings)
        self.names: dict[str, list[str]] = {}
        """By dataset, the person behind each stored record."""
        self.keys: dict[str, list[str]] = {}
        self.files: dict[str, int] = {}
        self.pseudonyms: dict[int, int] = {}
        """By file, which pseudonyms it has."""
        self.live: set[int] = set()
        self.has_erased = False
        self.new_persons = 0
        everybody = list(PERSONS) if persons else [f"r{i}" for i in range(N)]
        self._note(self.file.dataset, 0, 0, everybody, everybody)

    def _note(self, dataset, number, pseudonyms, names, keys) -> None:
        kept = (
            [i - 1 for i in self.file.in_process.curator.vault.numbers(dataset)] if self.persons else range(len(names))
        )
        self.names[dataset], self.keys[dataset] = [names[i] for i in kept], [keys[i] for i in kept]
        self.files[dataset], self.pseudonyms[number] = number, pseudonyms
        self.live.add(number)

    # --- acts -----------------------------------------------------------------------------------------

    def run(self, names) -> None:
        for self.name in names:
            getattr(self, self.name)()
            self.check()

    def register_again(self) -> None:
        super().register_again()
        everybody = list(PERSONS) if self.persons else [f"r{i}" for i in range(N)]
        self._note(self.datasets[-1], 0, 0, everybody, everybody)

    def new_export(self) -> None:
        dataset, decision = self._export()
        assert self._done(self.file.decide(dataset, **decision))

    def interrupted_decision(self) -> None:
        """A kill in the middle of a decision: nothing of it is stored, and it is taken again."""
        dataset, decision = self._export()
        with pytest.MonkeyPatch.context() as patch:
            assert fail_at(patch, store, "join_accounts", Killed) == []
            assert self.file.decide(dataset, **decision).status_code == 500
        self.crash()
        assert self._done(self.file.decide(dataset, **decision))

    def _export(self):
        """A new file of persons whom there are and new ones, and the decision to continue the account."""
        earlier = self.choose.choice(sorted(self.files))
        names = sorted({name for names in self.names.values() for name in names})
        again = [name for name in names if self.choose.random() < 0.7]
        self.new_persons += 1
        people = [*again, f"new{self.new_persons}"]
        self.choose.shuffle(people)
        pseudonyms, differ = self.pseudonyms[self.files[earlier]], self.choose.random() < 0.2
        if differ:
            pseudonyms = 1 + max(self.pseudonyms.values())
        if self.persons:
            rows = [name for name in people for _ in range(self.choose.randint(1, 3))]
            keys = [f"{name}{pseudonyms or ''}" for name in rows]
            cells = [(i % 3, i % 2, i % 4, key) for i, key in enumerate(keys)]
        else:
            rows, keys, cells = people, [], []
            for name in rows:
                version = self.choose.choice((0, 0, 0, len(self.files)))  # of a record that was corrected
                number = int(name.removeprefix("r")) if name[0] == "r" else N + int(name.removeprefix("new"))
                keys.append(f"{name}.{version}.{pseudonyms}" if version or pseudonyms else name)
                y = (number % 4 if number < N else number) + version / 1000 + pseudonyms * 100
                cells.append((number % 3, number % 2, y))
        head = b"a,b,y,person\n" if self.persons else b"a,b,y\n"
        content = head + b"".join(",".join(map(str, row)).encode() + b"\n" for row in cells)
        dataset = self.file.in_process.register(content, apart=False, **(self.fields or OF_RECORDS))
        overlaps = self.file.in_process.call("owner", "GET", f"/v1/datasets/{dataset}")["overlaps"]
        if overlaps:
            assert self.file.release(self.file.draft(dataset)).json()["code"] == "overlap_undecided"
        number = 1 + max(self.files.values())
        others = {self.files[other] for other in self.files}
        seen = {key for other in self.keys if self.files[other] in self.live & others for key in self.keys[other]}
        if not overlaps:
            pseudonyms = 1 + max(self.pseudonyms.values())
        assert bool(overlaps) == bool(seen & set(keys))
        self._note(dataset, number, pseudonyms, rows, keys)
        self.datasets.append(dataset)
        return dataset, {"continues": [earlier], "pseudonyms_differ": differ}

    def withhold(self) -> None:
        dataset = self.choose.choice(self.datasets)
        record = self.choose.randrange(len(self.keys[dataset]))
        body = {"person": self.keys[dataset][record]} if self.persons else {"record": record + 1}
        self._done(self.file.in_process.send("owner", "POST", f"/v1/datasets/{dataset}:withhold", json=body), 409)

    def erase(self) -> None:
        """A file whose studies are closed is erased: from then on nobody can say who was in it."""
        if len(self.live) < 2:
            return
        number = self.choose.choice(sorted(self.live))
        for study in list(self.columns + self.inboxes):
            if self.files[self._spec(study)["dataset_id"]] == number:
                self.file.in_process.call("owner", "POST", f"/v1/studies/{study}:close")
                self.columns, self.inboxes = ([s for s in each if s != study] for each in (self.columns, self.inboxes))
                self.queries = []
        for dataset in [each for each in self.datasets if self.files[each] == number]:
            self.file.in_process.call("owner", "POST", f"/v1/datasets/{dataset}:archive")
            reply = self.file.in_process.send("owner", "POST", f"/v1/datasets/{dataset}:erase")
            if reply.status_code == 409:  # a tuning that never runs here is under way
                return
            self._done(reply)
            self.has_erased = True
            self.datasets.remove(dataset)
            self.unreleased = []
        self.live.discard(number)

    # --- the check ------------------------------------------------------------------------------------

    def recounted(self):
        """By file, what everybody used by it, and each person beyond that; and the sum of its deltas."""
        with self.file.in_process.context.database.read() as db:
            records = [entry.record for entry in audit_log.walk(db)]

        def spec(study):
            if study not in self._specs:
                self._specs[study] = self._spec(study)
            return self._specs[study]

        def order(study):
            if study not in self._orders:
                self._orders[study] = self.file.order(study)
            return self._orders[study]

        def number(record):
            details = record.get("details", {})
            dataset = details.get("dataset_id") or spec(details["study_id"])["dataset_id"]
            return self.files.get(dataset)

        kinds = ("charge", "study.released", "tuning.started", "bounds.started")
        charges = [(number(record), record) for record in records if record["kind"] in kinds]
        uses = {}
        for file in self.pseudonyms:
            of_file = [record for other, record in charges if other == file]
            persons = {name for dataset in self.files for name in self.names[dataset] if self.files[dataset] == file}
            everyone, units = recomputed(of_file, spec, order, self.names, persons)
            uses[file] = everyone, units, recomputed_delta(of_file, spec)
        return uses

    def expected(self, uses, file: int, name: str, key: str) -> tuple[Fraction, Fraction, Fraction]:
        """What a person has used in truth, the figure of the account, and the delta."""
        truth = figure = delta = Fraction(0)
        for other, (everyone, units, its_delta) in uses.items():
            used = everyone + units[name] if name in units else Fraction(0)
            worst = everyone + max(units.values())
            keys = {k for dataset in self.files if self.files[dataset] == other for k in self.keys[dataset]}
            alike = self.pseudonyms[other] == self.pseudonyms[file] and other in self.live
            truth += used
            if other == file or (alike and key in keys):
                figure, delta = figure + used, delta + its_delta
            elif not alike or not self.persons:
                figure, delta = figure + worst, delta + its_delta
        return truth, figure, delta

    def check(self) -> None:
        uses = self.recounted()
        curator = self.file.in_process.curator
        for dataset in self.datasets:
            file = self.files[dataset]
            with self.file.in_process.context.database.read() as db:
                use = curator.budgets.uses.read(db, store.find(db, store.datasets, dataset))
            account, figures = self.file.account(dataset), {}
            units = use.units["person" if self.persons else None].numbers[dataset]
            deltas, worst = [], Fraction(0)
            for record, (name, key) in enumerate(zip(self.names[dataset], self.keys[dataset], strict=True)):
                truth, figure, delta = self.expected(uses, file, name, key)
                unit = record if units is None else int(units[record])
                counted = use.everyone + int(use.of_kind("person" if self.persons else None)[unit])
                figures[unit] = Fraction(text(counted))
                deltas.append(delta)
                worst = max(worst, truth)
                assert truth <= figure <= figures[unit]
                assert self.has_erased or figure == figures[unit], (self.name, dataset, name, key)
            assert Fraction(account.delta) == max(deltas)
            if account.unbounded:
                assert account.epsilon is None
                continue
            assert Fraction(account.epsilon) >= max(figures.values())
            shares = Counter({Fraction(share.epsilon): share.units for share in account.losses})
            if self.files[dataset] != 0:  # a file that is registered once: of two registrations others may be kept
                assert shares == Counter(figures.values())
            if account.cap_epsilon is not None:
                assert worst <= Fraction(account.cap_epsilon)


def _acts(folder, seed, *, persons):
    secret = folder / "scorer.key"
    secret.write_bytes(b"k" * 40)
    return ActsOverFiles(folder, seed, persons=persons, scorer_secret_file=secret, **SCORER)


@pytest.mark.parametrize("persons", [False, True], ids=["records", "persons"])
def test_over_two_files_each_person_has_used_what_the_log_and_the_files_say(persons, tmp_path):
    """The sibling of the next test: a few acts of each kind that charges."""
    acts = _acts(tmp_path, 7, persons=persons)
    acts.refined = 1.0
    acts.run(["open_column_study", "new_export", "open_column_study", "ask", "ask", "withhold", "interrupted_bounds"])
    assert len(acts.pseudonyms) == 2
    assert acts.draws
    acts.file.close()


@pytest.mark.slow(sibling="test_over_two_files_each_person_has_used_what_the_log_and_the_files_say")
@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("persons", [False, True], ids=["records", "persons"])
def test_over_several_files_each_person_has_used_what_the_log_and_the_files_say(persons, seed, tmp_path):
    acts = _acts(tmp_path, seed, persons=persons)
    assert acts.file.caps("5", 5e-6).status_code == 200
    names = [name for name, times in ACTS_OVER_FILES.items() for _ in range(times)]
    acts.choose.shuffle(names)
    acts.run(["new_export", *names])
    assert {"ask", "new_export", "interrupted_decision"} <= set(acts.done), acts.done
    acts.file.close()


@pytest.mark.slow(sibling="test_over_two_files_each_person_has_used_what_the_log_and_the_files_say")
def test_tunings_of_all_kinds_are_told_apart_over_several_files(tmp_path):
    kinds = set()
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        acts = _acts(folder, seed, persons=False)
        acts.run(["open_column_study", "tune", "new_export", "tune", "ask", "tune", "find_bounds", "tune", "ask"])
        acts.tune(("worst_case", "prior_average", "none")[seed])
        acts.check()
        kinds |= acts.kinds
        acts.file.close()
    assert kinds == {"worst_case", "prior_average", "none"}


# --- one table in two months ---------------------------------------------------------------------------

NAMES = [f"p{i}" for i in range(41)]
WITH_PERSONS = {"person": "person", "rows_per_person": "2"}


def table(people, version="", column="y"):
    rows = [f"{i % 4}.{i:03},{i % 3},{i % 4}{version},{name}" for i, name in enumerate(people)]
    return f"a,b,{column},person\n" + "".join(f"{row}\n" for row in rows)


def twice(people):
    return [name for name in people for _ in range(2)]


@pytest.fixture
def may(tmp_path):
    """40 persons with two records each, one study of epsilon 1, a cap of 1.5, and one person withheld."""
    secret = tmp_path / "scorer.key"
    secret.write_bytes(b"k" * 40)
    settings = {"scorer_secret_file": secret, **SCORER}
    file = FileOfRecords(tmp_path, csv=table(twice(NAMES[:40])), fields=WITH_PERSONS, name="may", **settings)
    file.study()
    assert file.caps("1.5").status_code == 200
    body = {"person": "p7"}
    file.in_process.call("owner", "POST", f"/v1/datasets/{file.dataset}:withhold", json=body)
    yield file
    file.close()


def june_of(file, content=None, **fields):
    content = table([*twice(NAMES[:40]), NAMES[40]]) if content is None else content
    return file.in_process.register(content, apart=False, **{"name": "june", **WITH_PERSONS, **fields})


def view(file, dataset):
    return file.in_process.call("owner", "GET", f"/v1/datasets/{dataset}")


def test_june_continues_may(may):
    """The right values of the outside review."""
    june = june_of(may)
    (overlap,) = view(may, june)["overlaps"]
    assert overlap["sentence"] == (
        "40 of 41 persons are in may, which has used epsilon 1 of its cap 1.5 and withholds 1 person. "
        "Continue its account?"
    )
    draft = may.draft(june)
    bounds = {"columns": [{"column": "a", "outer": [0.0, 4.0]}], "epsilon": "1"}
    tuning = {
        "name": "t",
        "grid": [{"name": "depth", "values": [1.0, 2.0]}],
        "score": {"kind": "http", "model": "m", "lower": 0.0, "upper": 1.0},
        "validation_dataset_id": june,
        "method": {"name": "grid_exponential"},
        "budget": {"epsilon": "1"},
        "caps": {"epsilon": "5", "delta": 0.5},
    }
    for reply in (
        may.release(draft),
        may.in_process.send("owner", "POST", f"/v1/datasets/{june}:bounds", json=bounds),
        may.in_process.send("owner", "POST", "/v1/tunings", json=tuning),
    ):
        assert (reply.status_code, reply.json()["code"]) == (409, "overlap_undecided"), reply.text
    assert may.account(june).epsilon == "0"
    assert may.decide(june, continues=[may.dataset]).status_code == 200
    account = may.account(june)
    assert (account.account, account.cap_epsilon, account.uses[-1].act) == (may.dataset, "1.5", "continued")
    assert [(share.epsilon, share.units) for share in account.losses] == [("1", 40), ("0", 1)]
    assert "The account is of 2 files" in account.sentence
    refused = may.release(draft)
    assert (refused.status_code, refused.json()["code"]) == (403, "privacy_budget_exhausted")
    assert may.caps("3", raise_caps=True, reason="june").status_code == 200
    assert len(may.order(may.study(june))) == 79
    for dataset in (may.dataset, june):
        assert may.account(dataset).epsilon == "2"
    assert [(share.epsilon, share.units) for share in may.account(june).losses] == [("2", 40), ("1", 1)]
    may.in_process.check()


def test_an_answer_in_one_file_counts_in_the_other_for_its_person_alone(may):
    june, first = june_of(may), may.in_process.call("owner", "GET", "/v1/studies")["studies"][0]["id"]
    assert may.decide(june, continues=[may.dataset]).status_code == 200
    assert may.caps("3", raise_caps=True, reason="june").status_code == 200
    study = may.study(june)
    may.grant(first)
    numbers = [int(number) for number in may.in_process.curator.vault.numbers(june)]
    row = may.order(study).index(numbers.index(1))  # a record of p0
    assert may.ask(study, row).status_code == 201
    assert may.account().epsilon == may.account(june).epsilon == "2.5"
    of_p0 = [may.row_of(first, record) for record in (0, 1)]
    assert may.ask(first, of_p0[0]).status_code == 201
    assert may.ask(first, of_p0[1]).status_code == 403  # 2 releases and 2 answers are 3
    assert may.ask(first, may.row_of(first, 2)).status_code == 201  # of p1
    assert may.account().epsilon == may.account(june).epsilon == "3"
    may.in_process.check()


def test_accounts_that_are_kept_apart_say_so_and_why(may):
    june = june_of(may)
    missing = may.decide(june, continues=[])
    assert missing.status_code == 422
    reply = may.decide(june, separate="another hospital numbers its patients likewise")
    assert reply.json()["overlaps"][0]["decision"] == "separate"
    assert may.account(june).cap_epsilon is None
    for dataset in (june, may.dataset):
        says = "persons have accounts of their own, as the owner says: another hospital numbers its patients likewise."
        assert says in may.account(dataset).sentence
        report = may.in_process.call("owner", "POST", f"/v1/datasets/{dataset}:report")["report"]
        assert says in report["account"]["sentence"]
    march = may.in_process.register(table([f"another{i}" for i in range(4)], ".7"), apart=False, **WITH_PERSONS)
    assert "another hospital" not in may.account(march).sentence
    assert len(may.records("dataset.decided")) == 1
    assert may.release(may.draft(june)).status_code == 200
    assert may.decide(june, separate="again").status_code == 422  # there is nothing left to decide
    may.in_process.check()


def test_accounts_that_have_become_one_are_no_longer_said_to_be_apart(may):
    june = june_of(may)
    assert may.decide(june, separate="another hospital").status_code == 200
    july = june_of(may, table(NAMES[:9], ".5"), name="july")
    assert may.decide(july, continues=[june], separate="of the hospital of june").status_code == 200
    august = june_of(may, table(NAMES[:8], ".7"), name="august")
    sentences = [may.account(dataset).sentence for dataset in (may.dataset, june, july)]
    assert all("another hospital" in each and "of the hospital of june" in each for each in sentences)
    assert may.decide(august, continues=[may.dataset, june]).status_code == 200
    for dataset in (may.dataset, june, july, august):
        assert "accounts of their own" not in may.account(dataset).sentence
    may.in_process.check()


def test_several_accounts_become_one_with_the_lowest_caps(may):
    april = june_of(may, table(NAMES[:9], ".5"), name="april")
    assert may.decide(april, separate="a mistake").status_code == 200
    body = {"epsilon": "2", "delta": 0.25}
    assert may.in_process.send("owner", "PUT", f"/v1/datasets/{april}/account/caps", json=body).status_code == 200
    may.study(april)
    june = june_of(may)
    assert {each["matched"] for each in view(may, june)["overlaps"]} == {40, 9}
    assert may.decide(june, continues=[may.dataset]).status_code == 422  # april is left
    assert may.decide(june, continues=[may.dataset, april]).status_code == 200
    accounts = [may.account(dataset) for dataset in (may.dataset, april, june)]
    assert {(each.account, each.cap_epsilon, each.cap_delta) for each in accounts} == {(may.dataset, "1.5", "0.25")}
    assert [each.epsilon for each in accounts] == ["2", "2", "2"]  # p0 is in all
    shares = [[(share.epsilon, share.units) for share in each.losses] for each in accounts]
    assert shares == [[("2", 9), ("1", 31)], [("2", 9)], [("2", 9), ("1", 31), ("0", 1)]]
    assert may.release(may.draft(april)).status_code == 403
    may.in_process.check()


def test_other_pseudonyms_and_an_erased_file_start_everybody_at_the_worst_total(may):
    first = may.in_process.call("owner", "GET", "/v1/studies")["studies"][0]["id"]
    may.grant(first)
    may.caps("4", raise_caps=True, reason="more")
    assert may.ask(first, may.row_of(first, 0)).status_code == 201
    june = june_of(may, table(f"new{name}" for name in NAMES))
    assert view(may, june)["overlaps"] == []
    assert may.decide(june, continues=[may.dataset]).status_code == 200
    assert [(share.epsilon, share.units) for share in may.account(june).losses] == [("1.5", 41)]
    july = june_of(may, table(NAMES[:5], ".25"))
    assert may.decide(july, continues=[may.dataset], pseudonyms_differ=True).status_code == 200
    assert [(share.epsilon, share.units) for share in may.account(july).losses] == [("1.5", 5)]
    for path in (f"studies/{first}:close", f"datasets/{may.dataset}:archive", f"datasets/{may.dataset}:erase"):
        may.in_process.call("owner", "POST", f"/v1/{path}")
    august = june_of(may, table([f"new{name}" for name in NAMES[:3]], ".75"))
    assert may.decide(august, continues=[june]).status_code == 200
    assert [(share.epsilon, share.units) for share in may.account(august).losses] == [("1.5", 3)]
    may.study(june)
    assert may.account(august).epsilon == "2.5"
    may.in_process.check()


def test_a_file_that_has_nobody_of_this_one_counts_with_its_worst_total(may):
    """June continues may, whose people it has, and january, which numbers its patients in another way."""
    january = june_of(may, table([f"j{i}" for i in range(6)], ".5"), name="january")
    for _ in range(2):
        may.study(january)
    june = june_of(may)
    assert may.decide(june, continues=[may.dataset, january]).status_code == 200
    assert [(share.epsilon, share.units) for share in may.account(june).losses] == [("3", 40), ("2", 1)]
    assert may.account().epsilon == may.account(january).epsilon == "3"
    july = june_of(may, table(NAMES[:40], ".25"), name="july")
    assert may.decide(july, continues=[may.dataset, june]).status_code == 200
    assert [(share.epsilon, share.units) for share in may.account(july).losses] == [("3", 40)]
    may.in_process.check()


def test_a_file_with_the_people_of_two_that_name_them_otherwise_erases_nothing_that_they_lost(may):
    january = june_of(may, table([f"j{i}" for i in range(6)], ".5"), name="january")
    for _ in range(2):
        may.study(january)
    february = june_of(may, table(NAMES[:6], ".75"), name="february")
    assert may.decide(february, continues=[january], separate="not may").status_code == 200
    may.study(february)
    epsilon = {"epsilon": "3", "delta": None}
    assert may.in_process.send("owner", "PUT", f"/v1/datasets/{february}/account/caps", json=epsilon).is_success
    assert (may.account(february).epsilon, may.account(january).epsilon) == ("3", "3")
    draft = may.draft(february)
    assert may.release(draft).status_code == 403
    both = june_of(may, table([*NAMES[:6], "j0"], ".125"), name="both")
    assert may.decide(both, continues=[february, january], separate="not may").status_code == 200
    assert (may.account(february).epsilon, may.account(january).epsilon) == ("3", "3")
    assert [(share.epsilon, share.units) for share in may.account(both).losses] == [("3", 7)]
    assert may.release(draft).status_code == 403
    may.in_process.check()


def test_persons_who_come_and_go_are_matched_over_a_file_in_between(may):
    """The control: of two files without a common person, a third that both are said to continue says who is who."""
    june = june_of(may, table([*NAMES[30:40], *(f"new{i}" for i in range(5))], ".5"))
    assert may.decide(june, continues=[may.dataset]).status_code == 200
    july = june_of(may, table([f"new{i}" for i in range(6)], ".25"), name="july")
    assert may.decide(july, continues=[may.dataset, june]).status_code == 200
    assert [(share.epsilon, share.units) for share in may.account(july).losses] == [("0", 6)]
    assert [(share.epsilon, share.units) for share in may.account().losses] == [("1", 40)]


@pytest.mark.parametrize("exact", [True, False], ids=["exact answers", "the control: private answers"])
def test_a_cap_holds_nothing_of_an_account_that_a_file_without_a_bound_joined(may, exact):
    """January has exact answers and no cap, may has both a cap and an open study; the owner's way out is no cap."""
    first = may.grant(may.in_process.call("owner", "GET", "/v1/studies")["studies"][0]["id"])
    january = june_of(may, table([f"j{i}" for i in range(6)], ".5"), name="january")
    study = may.study(january, **({"answers": wire.NONE} if exact else {}))
    assert may.ask(study, 0).status_code == 201
    assert may.caps("9", raise_caps=True, reason="more").status_code == 200
    june = june_of(may, table([*NAMES[:40], *(f"j{i}" for i in range(6))], ".25"))
    assert may.decide(june, continues=[may.dataset, january]).status_code == 200
    assert (may.account(june).epsilon, may.account(june).cap_epsilon) == (None if exact else "1.5", "9")
    created = may.in_process.call("owner", "POST", "/v1/studies", json=spec_of(june))
    assert ("no cap on this dataset can hold" in (created["account"]["problem"] or "")) == exact
    draft = created["id"]
    refused, query = may.release(draft), may.ask(first, may.row_of(first, 0))
    assert (refused.status_code, query.status_code) == ((409, 403) if exact else (200, 201)), refused.text
    if exact:
        assert study in refused.json()["detail"]
        assert study not in query.text
        assert may.caps(None, raise_caps=True, reason="january has no bound").status_code == 200
        assert may.release(draft).status_code == 200
        assert may.ask(first, may.row_of(first, 0)).status_code == 201
    may.in_process.check()


def test_a_public_registration_of_an_undecided_file_skips_no_decision(may):
    june = june_of(may)
    public = june_of(may, public=True, name="june for all")
    assert view(may, public)["overlaps"] == []
    created = may.in_process.call("owner", "POST", "/v1/studies", json=spec_of(public))
    assert june in created["account"]["problem"]
    bounds = {"columns": [{"column": "a", "outer": [0.0, 4.0]}], "epsilon": "0.25"}

    def replies():
        yield may.release(created["id"])
        yield may.in_process.send("owner", "POST", f"/v1/datasets/{public}:bounds", json=bounds)

    assert {(reply.status_code, reply.json()["code"]) for reply in replies()} == {(409, "overlap_undecided")}
    assert may.decide(june, continues=[may.dataset]).status_code == 200
    assert [reply.status_code for reply in replies()] == [403, 200]  # at the cap of may; below it
    assert may.account(june).epsilon == "1.25"
    may.in_process.check()


def test_records_match_over_a_third_file_where_columns_differ(tmp_path):
    """May and july have no column in common; june has those of both."""
    columns = [("a", "b"), ("a", "b", "c", "d"), ("c", "d")]
    cells = {name: [f"{i}.{ord(name)}" for i in range(9)] for name in "abcd"}

    def content(names):
        return "\n".join(map(",".join, [names, *zip(*(cells[name] for name in names), strict=True)])) + "\n"

    file = FileOfRecords(tmp_path, csv=content(columns[0]), name="may")
    file.study(features=[Feature(column="a", lower=0.0, upper=9.0)], measurement=COLUMN_B)
    june, july = (file.in_process.register(content(names), apart=False) for names in columns[1:])
    assert file.decide(june, continues=[file.dataset]).status_code == 200
    assert file.decide(july, continues=[june]).status_code == 200
    file.in_process.call("owner", "POST", f"/v1/datasets/{july}:withhold", json={"record": 4})
    for dataset in (file.dataset, june, july):
        assert [(share.epsilon, share.units) for share in file.account(dataset).losses] == [("1", 9)]
        items = file.in_process.call("owner", "GET", f"/v1/datasets/{dataset}/withheld")["withheld"]
        assert [item["record"] for item in items] == [4]
    file.close()


def test_files_that_an_earlier_version_registered_are_compared_at_the_start(may, monkeypatch):
    """Row and log as an earlier version wrote them: it compared nobody, and withheld nobody in another file."""
    register = store.register
    with monkeypatch.context() as patch:
        patch.setattr(store, "register", lambda db, **values: register(db, **values | {"overlaps": None}))
        patch.setattr(SamePeople, "withhold", lambda *args: None)
        june = june_of(may)
    refused = may.release(may.draft(june))
    assert (refused.status_code, refused.json()["code"]) == (409, "overlap_undecided")
    assert may.in_process.call("owner", "GET", f"/v1/datasets/{june}/withheld")["withheld"] == []
    may.reopen()
    assert [each["matched"] for each in view(may, june)["overlaps"]] == [40]
    assert len(may.in_process.call("owner", "GET", f"/v1/datasets/{june}/withheld")["withheld"]) == 1
    assert may.release(may.draft(june)).json()["code"] == "overlap_undecided"


def test_a_database_of_the_version_without_accounts_over_files_opens_and_verifies(may):
    again, april = may.register(**WITH_PERSONS), june_of(may, table([f"other{name}" for name in NAMES[:5]], ".5"))
    path = may.in_process.context.database.path
    may.in_process.curator.close()
    may.in_process.close()
    with closing(beside.connect(path)) as db:
        for column in ("account", "overlap_decisions"):
            db.execute(f"ALTER TABLE datasets DROP COLUMN {column}")
        beside.set_version(db, 16)
        db.commit()
    may.in_process.open_folder()
    may.in_process.check()
    accounts = [may.account(dataset).account for dataset in (may.dataset, again, april)]
    assert accounts == [may.dataset, may.dataset, april]
    june = june_of(may)
    assert may.decide(june, continues=[again]).status_code == 200
    assert may.account(june).account == may.dataset
    may.in_process.check()


def test_ids_that_one_file_folds_and_another_takes_as_written_are_one_person_s(tmp_path):
    """Two persons of may are one in june, who has used what each of them did."""
    rows = "a,b,y,person\n0,0,0,1017\n1,1,1,1017.0\n2,0,2,P-3\n"
    file = FileOfRecords(tmp_path, csv=rows, fields={**WITH_PERSONS, "person_ids": "as_written"})
    file.study()
    june = june_of(file, rows.replace("0,0,0", "0,1,0") + "1,0,1,P-4\n", person_ids="folded_1")
    assert file.decide(june, continues=[file.dataset]).status_code == 200
    assert {share.epsilon: share.units for share in file.account(june).losses} == {"2": 1, "1": 1, "0": 1}
    assert file.account().epsilon == "1"
    file.close()


@pytest.mark.parametrize("fault", ["others", "labels"])
def test_the_controls_without_the_other_files_or_with_nobody_matched_the_recount_is_not_met(
    fault, tmp_path, monkeypatch
):
    acts = _acts(tmp_path, 7, persons=True)
    acts.run(["open_column_study", "new_export"])
    if fault == "others":
        monkeypatch.setattr(FileUses, "_joined", lambda self, dataset, registered, uses: uses[dataset.sha256])
    else:
        monkeypatch.setattr(People, "digests", lambda self, dataset, other: None)
        acts.file.reopen()
    with pytest.raises(AssertionError):
        acts.check()
    acts.file.in_process.close()
