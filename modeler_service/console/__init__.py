"""The modeler's console: pages for vendors and viewers, over the modeler's own API."""

from pathlib import Path

from blindopt import wire
from modeler_service.console import home, log, messages, runs, start
from service_kit.console import Console, Page
from service_kit.console.notices import pages_of


def _about(page: Page, subject: wire.NoticeSubject) -> tuple[str, str] | None:
    return None if subject.run_id is None else ("run", f"/runs/{subject.run_id}")


def build() -> Console:
    """The console, before it is given its service."""
    pages = [module.pages for module in (home, runs, messages, start, log)]
    notices = pages_of(_about, readers=("vendor",), testers=("vendor",))
    return Console("Modeler", [*pages, notices], Path(__file__).parent)
