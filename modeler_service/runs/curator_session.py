"""Sessions with a curator: a connection, and outside a run its study with a trusted log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from blindopt import wire
from blindopt.client import StudyClient
from blindopt.client.connection import Watch
from blindopt.client.mailbox import Mailboxes
from blindopt.errors import ProtocolViolated
from modeler_service.runs.addresses import Reached, check_curator
from modeler_service.runs.witness import IsOwnQuery, Witness
from modeler_service.settings import Settings
from service_kit.context.context import ServiceContext

MAILBOXES = Mailboxes()
"""Requests to curators that only open connections. Ids of links are random, so services in one process share none."""
StudyAddress = wire.StudyAccess | wire.RunSpec
"""Types that name a curator and one of its studies."""


def connect(
    settings: Settings,
    address: StudyAddress,
    token: str,
    witness: Witness,
    *,
    reached: Reached | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Callable[[], None] = lambda: None,
) -> StudyClient:
    """Return a client of a study, whose exchanges the witness records.

    Raises Invalid for a curator that is not allowed (any more).
    """
    check_curator(settings, address.curator_url, "curator_url")
    return StudyClient(
        address.curator_url,
        token,
        address.study_id,
        timeout_s=settings.curator_timeout_seconds,
        verify=str(settings.curator_ca) if settings.curator_ca else True,
        client_cert=settings.client_certificate,
        proxy=settings.proxy_to(address.curator_url),
        watch=Watch(witness.record, cancelled, progress, witness.id_of),
        transport=MAILBOXES.transport(address.curator_url),
        reach=reached or Reached(settings, address.curator_url),
    )


@contextmanager
def open_session(
    context: ServiceContext,
    settings: Settings,
    address: StudyAddress,
    token: str,
    actor: str,
    is_own_query: IsOwnQuery = lambda db, key, digest: False,
) -> Iterator[tuple[StudyClient, wire.StudyView]]:
    """Connect to the curator of a study, and check that its log is signed with the expected key.

    No request is sent while this side's own log does not verify. Raises AuditUnavailable, Unreachable, Remote, and
    ProtocolViolated; a violation is recorded, also one that the caller raises in the block.
    """
    context.audit_trail.check_sound()
    witness = Witness(context, address.study_id, actor, is_own_query)
    reached = Reached(settings, address.curator_url)
    try:
        with connect(settings, address, token, witness, reached=reached) as curator:
            with reached.plain_failures():
                study = curator.study(lambda view, note: witness.trust(view, address.log_key, note))
            yield curator, study
    except ProtocolViolated as error:
        witness.dispute(str(error))
        raise
