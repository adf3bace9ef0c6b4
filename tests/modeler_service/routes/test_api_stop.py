"""A stop that comes at the very moment a run leaves the queue, and requests that wait for the end of a run."""

import asyncio

import pytest

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


@pytest.mark.parametrize("act", ["stop", "pause"])
def test_a_request_that_waits_for_a_run_is_answered_when_it_is_halted(tmp_path, act):
    async def wait(modeler):
        modeler.wakeups.attach()
        run, looks, looked = start(modeler), [], asyncio.Event()
        loop, read = asyncio.get_running_loop(), modeler.run

        def run_as_read(identity):
            looks.append(view := read(identity))
            loop.call_soon_threadsafe(looked.set)
            return view

        modeler.run = run_as_read
        request = asyncio.create_task(modeler.halted(run, 3_600.0))
        await looked.wait()
        await asyncio.to_thread(getattr(modeler, act), request_of(modeler), run)
        view = await request
        assert [look.state for look in looks] == ["queued", view.state]
        assert view.state == {"stop": "stopped", "pause": "paused"}[act]
        assert (await modeler.halted(run, 3_600.0)).state == view.state  # no wait for what is so already

    with modeler_at_work(tmp_path, work=False) as modeler:
        asyncio.run(wait(modeler))


def test_a_worker_that_leaves_a_run_wakes_who_waits_for_it(tmp_path):
    async def wait(modeler):
        modeler.wakeups.attach()
        request = asyncio.create_task(modeler.halted(start(modeler), 3_600.0))
        modeler.scheduler.start()
        return await request

    with modeler_at_work(tmp_path, work=False) as modeler:
        assert asyncio.run(wait(modeler)).state == "failed"  # nobody listens at its curator's address


def test_a_wait_ends_with_its_time_and_with_the_service(tmp_path):
    async def wait(modeler):
        modeler.wakeups.attach()
        run = start(modeler)
        assert (await modeler.halted(run, 0.0)).state == "queued"
        assert (await modeler.halted(run, 0.01)).state == "queued"
        request = asyncio.create_task(modeler.halted(run, 3_600.0))
        modeler.leave()
        assert (await request).state == "queued"

    with modeler_at_work(tmp_path, work=False) as modeler:
        asyncio.run(wait(modeler))
