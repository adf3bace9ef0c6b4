"""Meeting a curator outside a run: its study, told by the log that this side knows, or a dispute."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from blindopt import wire
from blindopt.client import StudyClient
from blindopt.errors import ProtocolViolated
from modeler_service.runs.witness import Asked, Witness
from modeler_service.runs.worker import connected
from modeler_service.settings import Settings
from service_kit.context.context import ServiceContext


@contextmanager
def met(
    context: ServiceContext,
    settings: Settings,
    told: wire.StudyAccess | wire.RunSpec,
    token: str,
    actor: str,
    request: Asked = lambda db, key, digest: False,
    *,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[StudyClient, wire.StudyView]]:
    """A connection to the curator of a study, and the study, whose log is signed with the key that is expected.

    Nothing is asked that this side's own log could not tell. Raises AuditUnavailable, Unreachable, Remote, and
    ProtocolViolated, which is recorded: also what the caller finds in the block.
    """
    context.audit_trail.check_sound()
    witness = Witness(context, told.study_id, actor, request)
    try:
        with connected(settings, told, token, witness, cancelled=cancelled) as curator:
            study = curator.study()
            witness.trust(study, told.log_key)
            yield curator, study
    except ProtocolViolated as error:
        witness.dispute(str(error))
        raise
