"""Messages of runs: what one run waits for, another does not."""

from contextlib import contextmanager

import pytest

from blindopt import wire
from blindopt.errors import BlindoptError, Busy, Unreachable
from modeler_service.use_cases import messages
from tests.modeler_service.in_process_modeler import SPEC, modeler_at_work, request_of, start

WISH = wire.BudgetMessage(kind="budget", more=wire.Budget(queries=5))


def test_a_slow_curator_holds_up_the_messages_of_its_own_run_alone(tmp_path, monkeypatch):
    with modeler_at_work(tmp_path, work=False) as modeler:
        slow, other = start(modeler), start(modeler, SPEC.model_copy(update={"study_id": "std_fedcba9876543210"}))
        refused = {}

        def send(run):
            with pytest.raises(BlindoptError) as error:
                modeler.messages.send(request_of(modeler), run, WISH)
            return type(error.value)

        @contextmanager
        def session(context, settings, spec, *args):
            if spec.study_id == SPEC.study_id:  # while its curator does not reply
                refused.update({run: send(run) for run in (slow, other)})
            raise Unreachable("no reply")
            yield

        monkeypatch.setattr(messages, "open_session", session)
        assert send(slow) is Unreachable
        assert refused == {slow: Busy, other: Unreachable}
        refused.clear()
        assert send(slow) is Unreachable  # and it may be sent again
