"""A formal specification of ledger and account, apart from the code, and its exhaustive check: `make check-model`.

State: for each study whether its release is charged, drawn, published; for each query the same, with its corrections;
who is withheld; whether the second file continues the account of the first; a backup; whether a restore closed all.
What is in memory alone is lost by a crash. Each transition is one commit or one loss of memory. Any order of all
transitions is enumerated, so a retry is a transition that comes again.

The world: file 0 holds person 0, file 1 persons 0 and 1. Study 0 is on file 0, study 1 on file 1. Study 2 reads the
release of study 0: another outcome of the same candidates. A release uses epsilon 1 of everybody in its file, an answer
1 of its person, and the account has a ``cap``. With four queries, one correction of each, one backup and a cap of 3
there are 3,201,774 states and 14,846,223 transitions: two minutes of a processor, and 2 GB.

Invariants, in each state that can be reached:

- *cap*: no person's published draws, over all files of an account, sum to more than its cap.
- *charged first*: until a restore, no person's published draws sum to more than was charged.
- *once*: each charge of a key is for a version of its answer that was stored, or for the one under way.
- *withheld*: nothing is drawn about a person after that person was withheld.

Each fault of ``FAULTS`` changes one rule, and breaks an invariant. Nothing is shown about sizes beyond those here, and
nothing about the code: tests/curator_service/budget/test_account_sequences.py walks the code through random acts.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

FILE_OF = (0, 1, 0)
"""By study."""
PERSONS = ((0,), (0, 1))
"""By file."""
READS = (0, 1, 0)
"""By study, the one whose release it reads."""
QUERIES = ((0, 0), (1, 0), (2, 0), (1, 1))
"""By key: its study and the person behind its candidate."""
IDLE, CHARGED, DRAWN, PUBLISHED, VOID = range(5)
"""Stages. What is drawn is in memory alone."""
UNDECIDED, CONTINUES, SEPARATE = range(3)

FAULTS = {
    "a retry is charged again": "once",
    "an answered key is drawn again": "charged first",
    "an answer leaves before it is stored": "charged first",
    "a draw comes before its charge": "charged first",
    "check and charge are two transactions": "cap",
    "a correction is not charged": "charged first",
    "a void gives its charge back": "charged first",
    "a file that continues starts at zero": "cap",
    "a file is released before its owner decided": "cap",
    "a release that is read again is drawn again": "charged first",
    "a restored account stays open": "cap",
    "the list of withheld persons is read at the charge alone": "withheld",
}
"""Each with the invariant that it breaks."""


class Stored(NamedTuple):
    """What the database holds."""

    releases: tuple[int, ...]
    """Stage, by study."""
    answers: tuple[int, ...]
    """Stage, by key."""
    release_charges: tuple[int, ...]
    answer_charges: tuple[int, ...]
    versions: tuple[int, ...]
    """By key, how often an answer was stored: the first one, and corrections."""
    withheld: frozenset[int] = frozenset()
    decision: int = UNDECIDED
    closed: bool = False


class State(NamedTuple):
    """What the database holds, its backup, and what happened, which no crash and no restore undoes."""

    stored: Stored
    backup: Stored | None
    passed: frozenset[int]
    """In memory: keys whose caps were checked, where check and charge are two transactions."""
    release_draws: tuple[int, ...]
    """Published draws, by study."""
    answer_draws: tuple[int, ...]
    """Published draws, by key."""
    withheld_drawn: bool = False


@dataclass(frozen=True)
class Model:
    """The transitions, for so many keys, with one rule changed by a ``fault``."""

    keys: int = len(QUERIES)
    cap: int = 3
    corrections: int = 1
    fault: str = ""

    def first(self) -> State:
        none, zeros = (IDLE,) * len(FILE_OF), (0,) * self.keys
        stored = Stored(none, (IDLE,) * self.keys, (0,) * len(FILE_OF), zeros, zeros)
        return State(stored, None, frozenset(), (0,) * len(FILE_OF), zeros)

    # --- sums ---------------------------------------------------------------------------------------------------

    def files(self, file: int, decision: int) -> tuple[int, ...]:
        """The files of the account of a file."""
        return (0, 1) if decision == CONTINUES else (file,)

    def total(self, files: tuple[int, ...], person: int, releases: tuple[int, ...], answers: tuple[int, ...]) -> int:
        """What releases and answers, by their numbers, sum to for a person over files."""
        of_releases = sum(
            count
            for study, count in enumerate(releases)
            if FILE_OF[study] in files and person in PERSONS[FILE_OF[study]]
        )
        of_answers = sum(
            count
            for (study, other), count in zip(QUERIES, answers, strict=False)
            if FILE_OF[study] in files and other == person
        )
        return of_releases + of_answers

    def allows(self, stored: Stored, study: int, persons: tuple[int, ...]) -> bool:
        """Whether the account has epsilon 1 left of each of these persons."""
        files = self.files(FILE_OF[study], stored.decision)
        if self.fault == "a file that continues starts at zero":
            files = (FILE_OF[study],)
        sums = (self.total(files, person, stored.release_charges, stored.answer_charges) for person in persons)
        return not stored.closed and max(sums) + 1 <= self.cap

    # --- transitions --------------------------------------------------------------------------------------------

    def next(self, state: State) -> Iterator[tuple[str, State]]:
        """Every transition, with its name."""
        yield from self.of_releases(state)
        for key in range(self.keys):
            yield from self.of_key(state, key)
        yield from self.of_owner(state)

    def of_releases(self, state: State) -> Iterator[tuple[str, State]]:
        stored = state.stored
        for study, stage in enumerate(stored.releases):
            file, source = FILE_OF[study], READS[study]
            is_decided = file == 0 or stored.decision != UNDECIDED or self.fault.startswith("a file is released")
            if stage == IDLE and source != study and stored.releases[source] == PUBLISHED and not stored.closed:
                drawn = state.release_draws
                if self.fault.startswith("a release that is read again"):
                    drawn = add(drawn, study)
                opened = stored._replace(releases=put(stored.releases, study, PUBLISHED))
                yield f"study {study} reads a release", state._replace(stored=opened, release_draws=drawn)
            if stage == IDLE and source == study and is_decided and self.allows(stored, study, PERSONS[file]):
                charged = stored._replace(
                    releases=put(stored.releases, study, CHARGED), release_charges=add(stored.release_charges, study)
                )
                yield f"charge release {study}", state._replace(stored=charged)
            if stage == CHARGED and not stored.closed:
                drawn_stage = stored._replace(releases=put(stored.releases, study, DRAWN))
                yield f"draw release {study}", state._replace(stored=drawn_stage)
            if stage == DRAWN:
                opened = stored._replace(releases=put(stored.releases, study, PUBLISHED))
                published = add(state.release_draws, study)
                yield f"publish release {study}", state._replace(stored=opened, release_draws=published)

    def of_key(self, state: State, key: int) -> Iterator[tuple[str, State]]:
        stored, (study, person) = state.stored, QUERIES[key]
        stage = stored.answers[key]
        is_open = stored.releases[study] == PUBLISHED and not stored.closed
        charged = stored._replace(
            answers=put(stored.answers, key, CHARGED), answer_charges=add(stored.answer_charges, key)
        )
        may_charge = is_open and person not in stored.withheld and self.allows(stored, study, (person,))
        if stage == IDLE:
            if self.fault == "check and charge are two transactions":
                if may_charge and key not in state.passed:
                    yield f"check {key}", state._replace(passed=state.passed | {key})
                if key in state.passed:
                    yield f"charge {key}", state._replace(stored=charged, passed=state.passed - {key})
            elif self.fault == "a draw comes before its charge":
                if may_charge:
                    early = stored._replace(answers=put(stored.answers, key, DRAWN))
                    yield f"draw {key}", state._replace(stored=early, answer_draws=add(state.answer_draws, key))
            elif may_charge:
                yield f"charge {key}", state._replace(stored=charged)
        if stage == CHARGED and is_open:
            yield from self.of_draw(state, key, person)
        if stage in (CHARGED, PUBLISHED) and may_charge and self.fault == "a retry is charged again":
            twice = stored._replace(answer_charges=charged.answer_charges)
            yield f"ask {key} again", state._replace(stored=twice)
        if stage == DRAWN:
            yield f"publish {key}", self.published(state, key)
        if stage == PUBLISHED and is_open:
            if self.fault == "an answered key is drawn again":
                yield f"ask {key} again", self.published(state, key)
            given_back = (
                add(stored.answer_charges, key, -1) if self.fault.startswith("a void") else stored.answer_charges
            )
            voided = stored._replace(answers=put(stored.answers, key, VOID), answer_charges=given_back)
            yield f"void {key}", state._replace(stored=voided)
        if stage in (PUBLISHED, VOID) and stored.versions[key] <= self.corrections:
            again = stored._replace(answers=put(stored.answers, key, CHARGED))
            if self.fault == "a correction is not charged" and is_open:
                yield f"correct {key}", state._replace(stored=again)
            elif may_charge:
                yield f"correct {key}", state._replace(stored=charged)

    def of_draw(self, state: State, key: int, person: int) -> Iterator[tuple[str, State]]:
        """A charged answer is drawn, unless its person was withheld since: then it is declined, and charged."""
        is_withheld = person in state.stored.withheld
        if is_withheld and not self.fault.startswith("the list of withheld"):
            return
        state = state._replace(withheld_drawn=state.withheld_drawn or is_withheld)
        if self.fault == "an answer leaves before it is stored":
            state = state._replace(answer_draws=add(state.answer_draws, key))
        drawn = state.stored._replace(answers=put(state.stored.answers, key, DRAWN))
        yield f"draw {key}", state._replace(stored=drawn)

    def published(self, state: State, key: int) -> State:
        """An answer is stored, and from then on it is sent to whoever asks under its key."""
        stored = state.stored
        kept = stored._replace(answers=put(stored.answers, key, PUBLISHED), versions=add(stored.versions, key))
        if self.fault == "a draw comes before its charge":
            kept = kept._replace(answer_charges=add(stored.answer_charges, key))
        has_left = self.fault in ("an answer leaves before it is stored", "a draw comes before its charge")
        draws = state.answer_draws if has_left else add(state.answer_draws, key)
        return state._replace(stored=kept, answer_draws=draws)

    def of_owner(self, state: State) -> Iterator[tuple[str, State]]:
        """Decisions of the owner and the operator, and crashes."""
        stored = state.stored
        for person in PERSONS[1]:
            if person not in stored.withheld:
                yield f"withhold {person}", state._replace(stored=stored._replace(withheld=stored.withheld | {person}))
        if stored.decision == UNDECIDED and not stored.closed:
            for name, decision in (("continue", CONTINUES), ("separate", SEPARATE)):
                yield name, state._replace(stored=stored._replace(decision=decision))
        if DRAWN in (*stored.releases, *stored.answers) or state.passed:
            yield "crash", state._replace(stored=self.after_crash(stored), passed=frozenset())
        if state.backup is None:
            yield "back up", state._replace(backup=self.after_crash(stored))
        elif not stored.closed:
            is_closed = self.fault != "a restored account stays open"
            back = state.backup._replace(closed=is_closed)
            yield "restore", state._replace(stored=back, passed=frozenset())

    def after_crash(self, stored: Stored) -> Stored:
        """What is left where a program ends: an answer that was drawn first has no charge."""
        back = IDLE if self.fault == "a draw comes before its charge" else CHARGED
        answers = tuple(back if stage == DRAWN else stage for stage in stored.answers)
        releases = tuple(CHARGED if stage == DRAWN else stage for stage in stored.releases)
        return stored._replace(answers=answers, releases=releases)

    # --- invariants ---------------------------------------------------------------------------------------------

    def broken(self, state: State) -> str | None:
        """The invariant that a state breaks; None: it holds them all."""
        stored = state.stored
        if state.withheld_drawn:
            return "withheld"
        of_keys = zip(stored.answer_charges, stored.versions, stored.answers, strict=True)
        if any(charges > versions + (stage in (CHARGED, DRAWN)) for charges, versions, stage in of_keys):
            return "once"
        for file in (0, 1):
            files = self.files(file, stored.decision)
            for person in PERSONS[1]:
                published = self.total(files, person, state.release_draws, state.answer_draws)
                charged = self.total(files, person, stored.release_charges, stored.answer_charges)
                if published > charged and not stored.closed and self.fault != "a restored account stays open":
                    return "charged first"
                if published > self.cap:
                    return "cap"
        return None


def put(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


def add(values: tuple[int, ...], index: int, number: int = 1) -> tuple[int, ...]:
    return put(values, index, values[index] + number)


class Result(NamedTuple):
    """How many states were enumerated, and the first that breaks an invariant, with the way to it."""

    states: int
    transitions: int
    broken: str | None
    steps: list[str]


def check(model: Model) -> Result:
    """Enumerate every state that can be reached, nearest first, until one breaks an invariant."""
    first = model.first()
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    frontier, transitions = [first], 0
    while frontier:
        following = []
        for state in frontier:
            if (invariant := model.broken(state)) is not None:
                return Result(len(came_from), transitions, invariant, steps_to(state, came_from))
            for name, after in model.next(state):
                transitions += 1
                if after not in came_from:
                    came_from[after] = state, name
                    following.append(after)
        frontier = following
    return Result(len(came_from), transitions, None, [])


def steps_to(state: State, came_from: dict[State, tuple[State, str] | None]) -> list[str]:
    steps = []
    while (step := came_from[state]) is not None:
        state = step[0]
        steps.append(step[1])
    return steps[::-1]


def main() -> int:
    whole = check(Model())
    print(f"{whole.states:,} states, {whole.transitions:,} transitions: {whole.broken or 'every invariant holds'}")
    missed = whole.broken is not None
    for fault, invariant in FAULTS.items():
        result = check(Model(fault=fault))
        print(f"{fault}: breaks {result.broken!r} by {', '.join(result.steps)}")
        missed |= result.broken != invariant
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
