"""Kill -9 at random, under load, for minutes: ``python -m tests.system.crashes.soak --seconds 600``.

One curator, many modelers, all real processes that are killed at any moment (while they start, too) and
started again at once. When the time is over all runs must end, and everything must hold that
``crash_checks`` knows. Prints what was done; exits 1 with the first thing that does not hold.
"""

import argparse
import functools
import json
import random
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from blindopt import wire
from blindopt.audit import reconciliation
from blindopt.client import Owner, Vendor
from blindopt.errors import BlindoptError, Unreachable
from modeler_service.runs.curator_queries import REFUSED_IN_A_ROW
from tests.builders import a_run
from tests.conftest import Service, Small
from tests.system.crashes import crash_checks as checks

EPSILON = "0.1"
TRIALS = 30
PATIENCE_SECONDS = 300.0


def small() -> Small:
    """400 rows with two features."""
    rng = np.random.default_rng(5)
    x = np.round(rng.uniform(-3, 3, size=(400, 2)), 6)
    return Small(x, np.round(np.exp(-0.3 * ((x - [1.1, -0.7]) ** 2).sum(axis=1)), 9))


@dataclass
class Soak:
    """The services, their studies, and what has happened so far."""

    folder: Path
    modelers_wanted: int
    runs_each: int
    tight_answers: int
    curator: Service = field(init=False)
    modelers: list[Service] = field(default_factory=list)
    studies: list[str] = field(default_factory=list)
    granted: dict[tuple[str, int], checks.Study] = field(default_factory=dict)
    """By study and modeler."""
    runs: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    unmet: int = 0
    verified: Counter[str] = field(default_factory=Counter)
    over: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    failures: list[BaseException] = field(default_factory=list)

    def begin(self) -> None:
        """Start all, and open three studies to every modeler; the last has a budget for a part of them."""
        settings = {"RETRY_ATTEMPTS": "6", "RETRY_SECONDS_MAX": "1", "WAIT_SECONDS_FIRST": "0.5"}
        settings |= {"WAIT_SECONDS_MAX": "2", "COUNTERSIGN_EVERY": "10", "CONCURRENT_RUNS": str(self.runs_each)}
        self.curator = Service("curator", self.folder / "curator", fresh=True).start()
        for number in range(self.modelers_wanted):
            self.modelers.append(Service("modeler", self.folder / f"modeler-{number}", settings, fresh=True))
            self.modelers[-1].process = self.modelers[-1].spawn()
        for modeler in self.modelers:
            modeler.start() if modeler.process is None else self._ready(modeler)
        with Owner(self.curator.url, self.curator.token, timeout_s=240) as owner:
            data = small()
            dataset = owner.register("small", data.csv, public=True).id
            gaussian = wire.GaussianRelease(mechanism="gaussian", epsilon="4", delta=1e-5)
            for answers, chosen in ((10**6, {}), (10**6, {"release": gaussian}), (self.tight_answers, {})):
                draft = checks.draft(data, dataset, epsilon="0.1", answers=answers, **chosen)
                study = owner.create_study(draft).id
                owner.release(study)
                self.studies.append(study)
                for number in range(self.modelers_wanted):
                    token = owner.grant(study, wire.GrantCreate(name=f"modeler {number}")).token
                    self.granted[study, number] = checks.Study(study, token, EPSILON)
                    self.runs[study, number] = []

    @staticmethod
    def _ready(service: Service) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with Vendor(service.url, service.token) as vendor:
                    vendor.runs()
                return
            except (OSError, BlindoptError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    # --- while it lasts ---------------------------------------------------------------------------

    def drive(self, number: int, turn: int) -> None:
        """Start one run after another at a modeler, each on another study, and wait for its end."""
        modeler = self.modelers[number]
        while not self.over.is_set():
            study = self.granted[self.studies[(number + turn) % len(self.studies)], number]
            chosen = {"algorithm": wire.RandomRows(name="random")} if turn % 3 == 2 else {}
            chosen |= {"iterations": TRIALS - 1, "seed": number * 1_000 + turn}
            order = a_run(self.curator.url, study.id, study.token, **chosen)
            run, turn = self._start(modeler, order), turn + self.runs_each
            self.runs[study.id, number].append(run)
            while modeler.rows("SELECT ended_at FROM runs WHERE id = ?", run) == [(None,)]:
                if self.ended.wait(0.2):
                    return
            if modeler.rows("SELECT state, study FROM runs WHERE id = ?", run) == [("failed", None)]:
                self.unmet += 1  # no contact at all, and nothing asked: it ends at once, as documented
                self.runs[study.id, number].pop()

    def _start(self, modeler: Service, order: wire.RunCreate) -> str:
        key = secrets.token_hex(16)
        while True:
            try:
                with Vendor(modeler.url, modeler.token, timeout_s=10) as vendor:
                    return vendor.start(order, key=key).id
            except Unreachable:  # it was killed: the same key makes the same run
                if self.ended.wait(0.2):
                    raise

    def kill(self, services: list[Service], pause: Callable[[], float]) -> None:
        """Kill one of ``services`` at random, start it again at once, and sometimes kill it while it starts."""
        while not self.over.wait(pause()):
            service = random.choice(services)
            for _ in range(random.choice([1, 1, 2])):
                assert service.process.poll() is None, f"{service.folder} ended by itself: {service.log[-2000:]}"
                service.kill()
                self.kills[service.name] += 1
                service.process = service.spawn()
                time.sleep(random.uniform(0, 2))

    def verify(self) -> None:
        """Now and then, verify a service from beside it: what is under way is no fault of its log."""
        while not self.over.wait(15):
            for service in (self.curator, random.choice(self.modelers)):
                done = service.run("audit", "verify")
                assert done.returncode == 0, f"audit verify beside {service.folder}: {done.stderr}"
                self.verified[service.name] += 1

    def guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        """``work`` for a thread: what it raises ends the soak."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.failures.append(error)
                self.over.set()
                self.ended.set()

        return run

    def last(self, seconds: float) -> float:
        """Kill for ``seconds``, then let all runs end; how long it took."""
        begun = time.monotonic()
        works: list[Callable[[], None]] = [
            lambda: self.kill([self.curator], lambda: random.uniform(2, 14)),
            lambda: self.kill(self.modelers, lambda: random.uniform(1, 7)),
            self.verify,
        ]
        works += [
            functools.partial(self.drive, number, turn)
            for number in range(len(self.modelers))
            for turn in range(self.runs_each)
        ]
        threads = [threading.Thread(target=self.guarded(work), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        self.over.wait(seconds)
        self.over.set()
        deadline = time.monotonic() + PATIENCE_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.ended.set()
        if self.failures:
            raise self.failures[0]
        assert not any(thread.is_alive() for thread in threads), f"runs do not end: {self.unended()}"
        return time.monotonic() - begun

    def unended(self) -> list[str]:
        """Runs that have not ended, with what is known of them."""
        query = "SELECT id, state, problem, heartbeat_at FROM runs WHERE ended_at IS NULL"
        return [f"{modeler.folder.name}: {row}" for modeler in self.modelers for row in modeler.rows(query)]

    # --- after it ---------------------------------------------------------------------------------

    def check(self) -> tuple[int, int]:
        """Everything that must hold; answers and exchanges."""
        for service in (self.curator, *self.modelers):
            assert checks.faults_in(service.log) == [], "a peer that is killed is no fault of ours"
        records = checks.records_of(self.curator)
        checks.check_service(self.curator)
        ours = reconciliation.read(checks.export(self.curator, self.folder))
        reconciliation.verify_export(ours)
        answers = 0
        spent: Counter[str] = Counter()
        for number, modeler in enumerate(self.modelers):
            checks.check_service(modeler)
            path = checks.export(modeler, self.folder)
            theirs = reconciliation.read(path)
            reconciliation.verify_export(theirs)
            modeler_records = checks.records_of(modeler)
            for study in self.studies:
                runs, granted = self.runs[study, number], self.granted[study, number]
                keys = self._check_runs(modeler, runs, tight=study == self.studies[-1])
                if runs:
                    _, differences = reconciliation.reconcile(ours, theirs, study)
                    assert differences == [], f"{modeler.folder.name}, {study}: {differences}"
                if keys:
                    checks.check_charges(self.curator, granted, keys, records)
                    checks.check_answers(self.curator, granted, keys, modeler, records, modeler_records)
                    checks.check_countersigned(self.curator, modeler, granted)
                    checks.check_choices(modeler, runs)
                answers += len(keys)
                spent[study] += len(keys)
        tight = self.studies[-1]
        assert spent[tight] <= self.tight_answers
        assert spent[tight] == self.tight_answers or not any(
            record["kind"] == "charge.refused" for record in records
        ), f"refused though {spent[tight]} of {self.tight_answers} answers were given"
        with Owner(self.curator.url, self.curator.token, timeout_s=240) as owner:
            for study in self.studies:
                balance = owner.balance(study)
                assert balance.total_plays == spent[study], (
                    f"{balance.total_plays} were charged, {spent[study]} answered"
                )
        met = [study for study in self.studies if self.runs[study, 0]]
        checks.check_reconciled(self.curator, self.modelers[0], met[:1], self.folder)
        return answers, self.curator.rows("SELECT count(*) FROM shared")[0][0]

    @staticmethod
    def _check_runs(modeler: Service, runs: list[str], *, tight: bool) -> dict[str, int]:
        keys: dict[str, int] = {}
        for run in runs:
            state, because, problem = modeler.rows("SELECT state, ended_because, problem FROM runs WHERE id = ?", run)[
                0
            ]
            refused = tight and because == "refused" and json.loads(problem)["code"] == "privacy_budget_exhausted"
            assert state == "completed", f"{run}: {(state, because, problem)}"
            assert refused or (because, problem) == ("budget", None), f"{run}: {(because, problem)}"
            trials = modeler.rows("SELECT number, y FROM trials WHERE run_id = ? ORDER BY number", run)
            answered = [number for number, y in trials if y is not None]
            assert answered == list(range(1, len(answered) + 1))
            # Each of the last was refused alone, and they were too few in a row to end the run.
            at_the_cap = tight and len(trials) == TRIALS and len(answered) > TRIALS - REFUSED_IN_A_ROW
            is_whole = len(answered) == len(trials) == TRIALS
            assert refused or at_the_cap or is_whole, f"{run} has {len(answered)} answers of {len(trials)} trials"
            keys |= dict.fromkeys((f"{run}:{number}" for number in answered), 1)
        return keys

    def end(self) -> None:
        """Leave no process behind."""
        for service in (self.curator, *self.modelers):
            if service.process is not None and service.process.poll() is None:
                service.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--modelers", type=int, default=16)
    parser.add_argument("--each", type=int, default=1, help="runs at once of each modeler")
    parser.add_argument("--tight", type=int, default=400, help="answers that the budget of the third study allows")
    parser.add_argument("--folder", type=Path, help="keep everything here; default: a folder that is removed")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        soak = Soak(chosen.folder or Path(temporary), chosen.modelers, chosen.each, chosen.tight)
        try:
            soak.begin()
            took = soak.last(chosen.seconds)
            answers, exchanges = soak.check()
        finally:
            soak.end()
    runs = sum(map(len, soak.runs.values()))
    print(f"{chosen.seconds:.0f} s of kills, {took:.0f} s until the last run ended")
    print(f"kill -9: {soak.kills['curator']} of the curator, {soak.kills['modeler']} of {chosen.modelers} modelers")
    print(f"{soak.unmet} runs never met the curator and failed at their start")
    print(f"{runs} runs, {answers} answers, {exchanges} exchanges: {exchanges / took:.1f} a second")
    print(f"audit verify beside the services: {soak.verified.total()} times; in the end everything holds")


if __name__ == "__main__":
    sys.exit(main())
