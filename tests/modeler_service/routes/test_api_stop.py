"""A stop that comes at the very moment a run leaves the queue."""

from modeler_service import store
from tests.modeler_service.in_process_modeler import modeler_at_work, request_of, start


def test_a_run_that_is_stopped_between_its_queue_and_its_start_is_never_shown_as_running_again(tmp_path, until):
    stopped = []

    def stop(number):
        """Just before the write that says that the run is running."""
        if number == 1:
            with modeler.context.database.read() as db:
                stopped.append(store.run_page(db, position=None, newest=False, limit=1)[0].id)
            modeler.stop(request_of(modeler), stopped[0])

    with modeler_at_work(tmp_path, concurrent_runs=1) as modeler:
        modeler.context.database.before_write = stop
        run = start(modeler)
        ended = until(lambda: (view := modeler.run(run)).ended_at and view)
        # The only worker takes the next run after it has left the first one.
        after = start(modeler)
        until(lambda: modeler.run(after).ended_at)
        assert stopped == [run]
        assert (ended.state, modeler.run(run).state) == ("stopped", "stopped")
