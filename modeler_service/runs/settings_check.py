"""Compare the settings of a run with the log before it goes on: another seed would choose other candidates."""

from blindopt.audit.merkle_log import sha256
from blindopt.errors import LogBroken, RecordChanged
from modeler_service import store
from service_kit.context.audit_trail import AuditTrail
from service_kit.store import audit_log
from service_kit.store.database import Connection


def check_settings(db: Connection, audit_trail: AuditTrail, run_id: str) -> None:
    """Raise RecordChanged if the settings or the plan of a run are not those that the log records."""
    run = store.find_run(db, run_id)
    logged: dict[str, str] = {}
    for record in audit_log.of_kind(db, "run.created", "run.planned", about=run_id):
        logged |= record["details"]
    for name, text in (("spec_sha256", run.spec), ("plan_sha256", run.plan)):
        if name in logged and (text is None or sha256(text.encode()) != logged[name]):
            audit_trail.report(
                LogBroken(f"the settings of {run_id} were changed: its seed may be another", about=run_id)
            )
            raise RecordChanged("the stored settings of this run differ from the audit log: it does not go on")
