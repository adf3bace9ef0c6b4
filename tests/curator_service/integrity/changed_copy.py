"""A prepared data folder, copied and changed by hand, with a curator that may be opened on it."""

import json
from contextlib import closing

from curator_service.integrity import log_checks
from service_kit.cli.findings import print_findings
from tests import beside, postgres
from tests.curator_service.queries.inbox.in_process_curator import InProcessCurator


class Copy:
    """A copy of a folder; ``names`` fill the statements and paths, ``tokens`` are of the grants in it."""

    def __init__(self, prepared, folder):
        source, self.names, self.tokens = prepared
        self.folder = folder / "copy"
        beside.copytree(source, self.folder)
        self.curator = None

    def open(self):
        self.curator = InProcessCurator(self.folder, recovers=False)
        self.curator.tokens |= self.tokens
        self.verification = self.curator.app.state.log_verification
        self.verification.start()
        self.curator.curator.recover()

    def close(self):
        if self.curator is not None:
            self.verification.close()
            self.curator.curator.close()
            self.curator.close()

    def edit(self, statement):
        with closing(beside.connect(self.folder / "data" / "curator.sqlite")) as db:
            beside.drop_triggers(db)
            assert db.execute(statement.format(**self.names)).rowcount > 0
            db.commit()

    def ask(self, name, token=None, row=0, key=None):
        body = {"rows": [{"row": row, "plays": 1}]}
        return self.curator.send(token or name, "POST", f"/v1/studies/{self.names[name]}/queries", json=body, key=key)

    def count(self, kind):
        """How many records of a kind the log has."""
        with closing(beside.connect(self.folder / "data" / "curator.sqlite")) as db:
            return db.execute("SELECT count(*) FROM log WHERE kind = ?", (kind,)).fetchone()[0]

    def findings(self):
        """What a verification in the background finds, with what each finding is about."""
        lines = []
        data = self.folder / "data"
        print_findings(
            data, "curator", log_checks.findings, lines.append, postgres.address_for(data / "curator.sqlite")
        )
        return {m["finding"]: m["about"] for m in map(json.loads, lines) if "finding" in m}
