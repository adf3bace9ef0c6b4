"""Checks of the curator's tables against a log that names what it never created: a finding, and not a fault."""

import pytest

from blindopt.errors import LogBroken
from curator_service.context import open_context
from curator_service.integrity import log_checks
from curator_service.settings import Settings

STUDY, TUNING = "std_0123456789abcdef", "tun_0123456789abcdef"


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    with open_context(Settings(data_dir=tmp_path_factory.mktemp("checked"))) as context:
        yield context


@pytest.mark.parametrize(
    ("kind", "details", "fault"),
    [
        ("study.changed", {"study_id": STUDY, "spec_sha256": "0" * 64, "replaces": "1" * 64}, STUDY),
        ("study.released", {"study_id": STUDY, "sha256": "0" * 64}, STUDY),
        ("study.closed", {"study_id": STUDY}, STUDY),
        ("log.restored", {"closed_studies": [STUDY], "closed_accounts": []}, STUDY),
        ("tuning.ended", {"tuning_id": TUNING, "state": "completed", "outcome_sha256": "0" * 64}, TUNING),
        ("tuning.cancelled", {"tuning_id": TUNING}, TUNING),
    ],
)
def test_a_record_about_what_was_never_created_is_a_finding(kind, details, fault, context):
    with context.database.read() as db, pytest.raises(LogBroken, match=f"{fault} .* was never (created|started)"):
        log_checks.check(db, [{"kind": kind, "details": details}])


def test_a_restore_that_closed_nothing_is_sound(context):
    with context.database.read() as db:
        log_checks.check(db, [{"kind": "log.restored", "details": {"closed_studies": [], "closed_accounts": []}}])
