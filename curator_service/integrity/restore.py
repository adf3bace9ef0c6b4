"""Close what a restore from a backup would let be spent twice."""

from curator_service import store
from curator_service.budget.budgets import close_all
from curator_service.queries import table as inbox
from service_kit.context.context import ServiceContext
from service_kit.store.database import Connection


def close_after_restore(db: Connection, context: ServiceContext) -> None:
    """Close every study and account after a restore, and publish no more versions of stored queries.

    Charges and answers later than the backup are lost, and could be spent again. Drafts are closed too: one may have
    been released since, and would be released twice for one charge. Its owner may make a new one.
    """
    closed = store.unclosed_studies(db)
    for study_id in closed:
        store.change(db, store.studies, study_id, state="closed")
    inbox.lose(db)
    context.audit_trail.record_restored(db, {"closed_studies": closed, "closed_accounts": close_all(db, context)})
