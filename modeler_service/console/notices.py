"""Notices: what the modeler told its people by webhook."""

from shared import wire
from shared.serving.console import Page
from shared.serving.console.notices import pages_of


def _about(page: Page, subject: wire.NoticeSubject) -> tuple[str, str] | None:
    return None if subject.run_id is None else ("run", f"/runs/{subject.run_id}")


pages = pages_of(_about, readers=("vendor",), testers=("vendor",))
