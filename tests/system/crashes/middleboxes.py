"""Middleboxes between the parties, for minutes: ``python -m tests.system.crashes.middleboxes --seconds 120``.

Each reply of a curator meets, in a share of cases, a proxy that answers itself, changes it, repeats it, delays it or
loses it. One run after another and one loop of the library after another work through that. Then the network is
good: all of them must end, everything be charged once, both logs verify, and the parties reconcile, without a dispute.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import blindopt as bo
from blindopt import wire
from blindopt.client import Owner, StudyClient, Vendor
from tests.builders import a_run
from tests.conftest import Service
from tests.system.crashes import crash_checks as checks
from tests.system.crashes.soak import small
from tests.system.meddler import MIDDLEBOXES, Meddler, between, cut, late, middlebox, refused, repeated, truncated

SHARE = 0.15
TRIALS = 12
PATIENCE_SECONDS = 300.0


class Weather:
    """The fault of each reply, until ``is_over``. Some faults last for seconds: then runs wait."""

    def __init__(self, seed: int) -> None:
        self.is_over = False
        self._random = random.Random(seed)
        self._faults = {kind: middlebox(kind, 1.0) for kind in [*MIDDLEBOXES, "reply of before"]}
        self._faults |= {fault.__name__: fault for fault in (late, refused, cut, repeated, truncated)}
        self._lasting: tuple[float, str] = (0.0, "")

    def __call__(self, net: Meddler, forward: Any) -> Any:
        now = time.monotonic()
        with net.lock:
            until, kind = self._lasting
            if now > until:
                kind = self._random.choice(list(self._faults)) if self._random.random() < SHARE else ""
                if kind and self._random.random() < 0.1:
                    self._lasting = now + self._random.uniform(1, 6), kind
        if self.is_over or not kind:
            return forward()
        return self._faults[kind](net, forward)


def drive(modeler: Service, order: wire.RunCreate, until: float, runs: list[str]) -> None:
    """Start one run after another, and wait for its end; one that failed before it met the curator is resumed."""
    deadline = until + PATIENCE_SECONDS
    with Vendor(modeler.url, modeler.token, timeout_s=240) as vendor:
        while time.monotonic() < until:
            run = vendor.start(order.model_copy(update={"seed": len(runs)}))
            runs.append(run.id)
            while (view := vendor.run(run.id).view).ended_at is None or view.can_resume:
                if view.can_resume and view.ended_at is not None:
                    vendor.resume(run.id)
                assert time.monotonic() < deadline, f"{run.id} does not end: {view.state}, {view.problem}"
                time.sleep(0.1)
            seen = f"{run.id}: {view.state}, {view.problem}, {modeler.log[-3000:]}"
            assert (view.state, view.problem) == ("completed", None), seen


def query(grant: wire.GrantFile, url: str, log: Path, until: float, queried: list[int]) -> None:
    """Query by the library, one session after another on the same log."""
    while time.monotonic() < until:
        with bo.Study.from_grant(grant, url=url, log=log, patience_s=PATIENCE_SECONDS) as study:
            for _ in range(5):
                study.query(len(queried) % 400)
                queried.append(1)


def soak(folder: Path, seconds: float, seed: int) -> str:
    """Do all of it; a sentence about what was done."""
    settings = {"RETRY_ATTEMPTS": "4", "RETRY_SECONDS_MAX": "0.5", "WAIT_SECONDS_FIRST": "0.2", "WAIT_SECONDS_MAX": "1"}
    curator = Service("curator", folder / "curator", fresh=True).start()
    modeler = Service("modeler", folder / "modeler", settings | {"COUNTERSIGN_EVERY": "5"}, fresh=True).start()
    try:
        with Owner(curator.url, curator.token, timeout_s=240) as owner:
            data = small()
            draft = checks.draft(data, owner.register("small", data.csv, public=True).id, epsilon="0.1", answers=10**6)
            study = owner.create_study(draft).id
            owner.release(study)
            granted = [owner.grant(study, wire.GrantCreate(name=name)) for name in ("runs", "loop")]
        weather, until = Weather(seed), time.monotonic() + seconds
        runs: list[str] = []
        queried: list[int] = []
        failures: list[BaseException] = []
        with between(curator, weather) as net:
            order = a_run(net.url, study, granted[0].token, iterations=TRIALS - 1)
            file = grant_file(curator, study, granted[1].token)

            def guarded(work: Any, *arguments: Any) -> None:
                try:
                    work(*arguments)
                except BaseException as error:
                    failures.append(error)

            threads = [
                threading.Thread(target=guarded, args=(drive, modeler, order, until, runs), daemon=True),
                threading.Thread(target=guarded, args=(drive, modeler, order, until, runs), daemon=True),
                threading.Thread(
                    target=guarded, args=(query, file, net.url, folder / "loop.sqlite", until, queried), daemon=True
                ),
            ]
            for thread in threads:
                thread.start()
            time.sleep(seconds)
            weather.is_over = True
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
            if failures:
                raise failures[0]
            assert not any(thread.is_alive() for thread in threads), "runs or the loop do not end"
            faults = Counter(net.seen)
        check(curator, modeler, study, runs, queried, folder)
    finally:
        for service in (curator, modeler):
            if service.process is not None and service.process.poll() is None:
                service.kill()
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items()))
    return f"{len(runs)} runs and {len(queried)} queries of a loop through {faults.total()} faults ({kinds})"


def grant_file(curator: Service, study: str, token: str) -> wire.GrantFile:
    """The file that the console of a curator offers for a grant."""
    with StudyClient(curator.url, token, study) as client:
        key = client.study().log_key
    given = {"curator_url": curator.url, "study_id": study, "token": token, "log_key": key, "name": "loop"}
    more = {"format": "blindopt-grant-1", "expires_at": "2030-01-01T00:00:00Z"}
    return wire.GrantFile.model_validate_json(json.dumps(given | more))


def check(curator: Service, modeler: Service, study: str, runs: list[str], queried: list[int], folder: Path) -> None:
    """Everything that must hold."""
    for service in (curator, modeler):
        checks.check_service(service)
    with Owner(curator.url, curator.token, timeout_s=240) as owner:
        charged = owner.balance(study).total_plays
    answered = modeler.rows("SELECT count(*) FROM trials WHERE y IS NOT NULL")[0][0]
    assert answered == TRIALS * len(runs), f"{answered} answers of {len(runs)} runs"
    assert charged == answered + len(queried), f"{charged} were charged, {answered} + {len(queried)} answered"
    assert modeler.rows("SELECT count(*) FROM log WHERE CAST(body AS TEXT) LIKE '%log.disputed%'") == [(0,)]
    checks.check_choices(modeler, runs)
    checks.check_reconciled(curator, modeler, [study], folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(soak(Path(folder), chosen.seconds, chosen.seed))
    print("each was charged once, both logs verify, no dispute, 0 differences")


if __name__ == "__main__":
    sys.exit(main())
