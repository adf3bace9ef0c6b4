"""The notices that the modeler sent by webhook."""

from blindopt import wire
from service_kit.console import Page
from service_kit.console.notices import pages_of


def _about(page: Page, subject: wire.NoticeSubject) -> tuple[str, str] | None:
    return None if subject.run_id is None else ("run", f"/runs/{subject.run_id}")


pages = pages_of(_about, readers=("vendor",), testers=("vendor",))
