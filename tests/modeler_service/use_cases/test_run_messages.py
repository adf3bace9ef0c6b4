"""Messages of runs: what one run waits for, another does not."""

import re
from contextlib import contextmanager

import pytest

from blindopt import wire
from blindopt.errors import BlindoptError, Busy, CuratorRefused, Remote, Unreachable
from modeler_service.settings import Settings
from modeler_service.use_cases.messages import RunMessages
from tests.modeler_service.in_process_modeler import SPEC, modeler_at_work, request_of, start

WISH = wire.BudgetMessage(kind="budget", more=wire.Budget(queries=5))


def messages_over(session, modeler, folder):
    """Messages of runs, with ``session`` for a connection to their curators."""
    return RunMessages(modeler.context, Settings(data_dir=folder), modeler.recommendation, session)


def test_a_slow_curator_holds_up_the_messages_of_its_own_run_alone(tmp_path):
    with modeler_at_work(tmp_path, work=False) as modeler:
        slow, other = start(modeler), start(modeler, SPEC.model_copy(update={"study_id": "std_fedcba9876543210"}))
        refused = {}

        def send(run):
            with pytest.raises(BlindoptError) as error:
                messages.send(request_of(modeler), run, WISH)
            return type(error.value)

        @contextmanager
        def session(context, settings, spec, *args):
            if spec.study_id == SPEC.study_id:  # while its curator does not reply
                refused.update({run: send(run) for run in (slow, other)})
            raise Unreachable("no reply")
            yield

        messages = messages_over(session, modeler, tmp_path)
        assert send(slow) is Unreachable
        assert refused == {slow: Busy, other: Unreachable}
        refused.clear()
        assert send(slow) is Unreachable  # and it may be sent again


def test_a_note_is_not_confirmed_by_the_digest_of_its_request_in_the_log(tmp_path):
    """Both logs have the digest of the request: its body holds 128 random bits that only the two parties store."""
    bodies = []
    with modeler_at_work(tmp_path, work=False) as modeler:
        run = start(modeler)

        @contextmanager
        def session(*args):
            yield type("Curator", (), {"send_message": lambda self, message, *, key: send(message, key)})(), None

        def send(message, key):
            bodies.append((key, message.model_dump_json()))
            raise Unreachable("no reply")

        messages = messages_over(session, modeler, tmp_path)
        for wish in (WISH, WISH.model_copy(update={"salt": "guess"}), WISH):
            with pytest.raises(Unreachable):
                messages.send(request_of(modeler), run, wish)
        with pytest.raises(Unreachable):
            messages.update(request_of(modeler), run, 1)
    assert bodies[3] == bodies[0]  # sent again, it is the same request
    salts = {re.search('"salt":"([0-9a-f]{32})"', body)[1] for _, body in bodies}
    assert len(salts) == 3
    assert WISH.model_dump_json() not in {body for _, body in bodies}


def test_a_refusal_that_a_vendor_cannot_mend_is_told_by_its_code_alone(tmp_path):
    """The curator's text may quote a token."""
    with modeler_at_work(tmp_path, work=False) as modeler:
        run = start(modeler)

        @contextmanager
        def session(*args):
            raise Remote(code="forbidden", status=403, detail="not with blindopt_secret", retryable=False)
            yield

        with pytest.raises(CuratorRefused, match=r"forbidden \(403\)") as refused:
            messages_over(session, modeler, tmp_path).send(request_of(modeler), run, WISH)
    assert "secret" not in str(refused.value)
