"""Notices that the curator sent to its people by webhook."""

from blindopt import wire
from service_kit.console import Page
from service_kit.console.notices import pages_of


def _about(page: Page, subject: wire.NoticeSubject) -> tuple[str, str] | None:
    if subject.study_id is None:
        return None
    return "study", f"/{'studies' if page.may('owner') else 'accounts'}/{subject.study_id}"


pages = pages_of(_about, readers=("owner", "auditor"), testers=("owner",))
