"""Links to curators that only open connections."""

from blindopt import wire
from blindopt.client.mailbox import SCHEME
from modeler_service.runs.curator_session import MAILBOXES
from service_kit.context.context import ServiceContext
from service_kit.store.tokens import is_live
from service_kit.web.metrics import Figures, gauge


def address_of(link: str) -> str:
    """The address of a link's curator, in grants and runs."""
    return f"{SCHEME}://{link}"


def views(context: ServiceContext) -> list[wire.LinkView]:
    """Every link, oldest first: one for each holder of a token of the role ``link``."""
    rows = [row for row in context.authentication.tokens() if row.role == "link"]
    live = {row.principal for row in rows if is_live(row, context.clock())}
    names = {row.principal: row.name for row in rows}
    return [_view(link, name, is_open=link in live) for link, name in names.items()]


def gauges(context: ServiceContext) -> Figures:
    def by_state() -> dict[tuple[str, ...], float]:
        counts: dict[tuple[str, ...], float] = {("connected",): 0, ("absent",): 0, ("revoked",): 0}
        for view in views(context):
            counts[view.state,] += 1
        return counts

    yield gauge("blindopt_links", "Links to curators by state.", by_state, ("state",))


def _view(link: str, name: str, *, is_open: bool) -> wire.LinkView:
    mailbox = MAILBOXES.of(link)
    return wire.LinkView(
        id=link,
        name=name,
        address=address_of(link),
        state=("connected" if mailbox.is_connected else "absent") if is_open else "revoked",
        seconds_since_pull=mailbox.seconds_since_pull,
        waiting=mailbox.waiting,
    )
