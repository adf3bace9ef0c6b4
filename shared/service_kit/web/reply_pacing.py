"""Reply deadlines that reveal nothing about the work done before them."""

import asyncio


class ReplyPacing:
    """Ticks every half of ``period_s`` after the arrival: results are stored at odd ticks, replies sent at even ones.

    The ticks do not depend on the work: a timer set when the work is done would be rounded to the milliseconds of the
    event loop, and the rounding would depend on how long the work took. Storing at a tick hides that time also from
    those who see the moment in the reply, in the log or by a retry. Work that takes longer waits for the next tick of
    its kind.
    """

    def __init__(self, period_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._half = period_s / 2
        self._arrival = self._loop.time()
        self._ticks = 0
        self._next_tick = self._loop.create_future()
        self._schedule()

    async def half_period(self) -> None:
        """Wait until an odd number of half periods have passed."""
        await self._wait(1)

    async def full_period(self) -> None:
        """Wait until a whole number of periods have passed."""
        await self._wait(0)

    def stop(self) -> None:
        self._timer.cancel()

    async def _wait(self, parity: int) -> None:
        while True:
            await asyncio.shield(self._next_tick)  # several coroutines may wait for one tick
            if self._ticks % 2 == parity:
                return

    def _schedule(self) -> None:
        self._timer = self._loop.call_at(self._arrival + (self._ticks + 1) * self._half, self._tick)

    def _tick(self) -> None:
        self._ticks += 1
        tick, self._next_tick = self._next_tick, self._loop.create_future()
        tick.set_result(None)
        self._schedule()
