"""A curator with a study that people measure, a modeler and a measurer: for tests of all three."""

import threading
from collections import defaultdict
from contextlib import contextmanager, suppress

from blindopt import wire
from blindopt.client import Measurer, Owner, Vendor
from blindopt.errors import Unreachable
from tests.builders import BY_HAND, a_run, a_study_of
from tests.curator_service.queries.inbox.measured_study import answers_for
from tests.system.crashes import crash_checks as checks

QUICK = {
    "retry_attempts": "60",
    "retry_seconds_max": "0.3",
    "people_hold_seconds": "0.2",
    "people_seconds": "0.1",
    "people_seconds_max": "0.3",
    "countersign_every": "4",
}


class ThreeParties:
    """Both services, already started, with clients of the owner, the vendor and a measurer."""

    def __init__(self, curator, modeler, small):
        self.curator, self.modeler, self.small = curator, modeler, small
        self.owner = Owner(self.curator.url, self.curator.token, timeout_s=240)
        self.vendor = Vendor(self.modeler.url, self.modeler.token, timeout_s=240)
        made = self.curator.run("token", "create", "--role", "measurer", "--name", "Ms M")
        self.measurer_token = made.stdout.strip()
        self.measurer = Measurer(self.curator.url, self.measurer_token)
        self.data = self.owner.register("small", small.csv, public=True).id

    def opened(self, **chosen):
        """A study with a grant: its id and the token."""
        kernel = wire.Kernel(lengthscale=3.0, signal_variance=1.0, noise_variance=1e-2)
        draft = a_study_of(self.small, self.data, measurement=BY_HAND, kernel=kernel, **chosen)
        study = self.owner.create_study(draft).id
        self.owner.release(study)
        return study, self.owner.grant(study, wire.GrantCreate(name="modeler"))

    def start(self, opened, url=None, **chosen):
        study, grant = opened
        settings = {"iterations": 8, "initial_rows": 2, "seed": 3} | chosen
        return self.vendor.start(a_run(url or self.curator.url, study, grant.token, **settings)).id

    def close(self):
        for client in (self.owner, self.vendor, self.measurer):
            client.close()

    def open_items(self, study):
        return list(self.measurer.measurements(study_id=study))

    @contextmanager
    def somebody(self, study, *, declines=lambda item: False):
        """Answers as long as the test goes on, each query on its own, with what is in the file."""
        done, faults = threading.Event(), []

        def work():
            with Measurer(self.curator.url, self.measurer_token) as measurer:
                while not done.wait(0.05):
                    with suppress(Unreachable):  # it may be down for a moment
                        self._answer(measurer, study, declines)

        def watched():
            try:
                work()
            except Exception as error:
                faults.append(error)

        thread = threading.Thread(target=watched, daemon=True)
        thread.start()
        yield
        done.set()
        thread.join(10)
        assert not faults, faults

    def _answer(self, measurer, study, declines):
        queries = defaultdict(list)
        for item in measurer.measurements(study_id=study):
            queries[item.query_id].append(item)
        for query, items in queries.items():
            no = [item for item in items if declines(item)]
            yes = [item for item in items if not declines(item)]
            if no:
                ids = [item.id for item in no]
                measurer.decline(query, wire.DeclineCreate(measurement_ids=ids, reason="consent"))
            if yes:
                measurer.answer(query, answers_for(yes, *(self.truth(item) for item in yes)))

    def truth(self, item):
        return float(self.small.y[item.record - 1])

    def check(self, study, *runs, folder):
        """Replays, both logs, and both together."""
        for run in runs:
            code, said = checks.command(self.modeler, "replay", run)
            assert code == 0, said
        for service in (self.curator, self.modeler):
            checks.check_service(service)
        checks.check_reconciled(self.curator, self.modeler, [study], folder)

    def charges(self, study):
        return [line for line in self.owner.ledger(study) if line.kind == "answers"]
