"""What a restore from a backup closes, so that nothing is spent twice."""

from curator_service import store
from curator_service.store import inbox
from curator_service.use_cases.accounts import tuning_accounts
from service_kit.context.context import ServiceContext
from service_kit.store.database import Connection


def restored(db: Connection, context: ServiceContext) -> None:
    """After a restore: charges and answers that came after the backup are lost, and could be spent again.

    So nothing more is told of queries that somebody was to measure, and every study is closed, drafts too: one may
    have been released since, and would be a second time for the charge of one. Its owner may make a new one.
    """
    closed = store.unclosed_studies(db)
    for identity in closed:
        store.change(db, store.studies, identity, state="closed")
    inbox.lose(db)
    context.audit_trail.record_restored(
        db, {"closed_studies": closed, "closed_accounts": tuning_accounts.close_all(db, context)}
    )
