"""Deadlines that tell nothing of the work before them."""

import asyncio


class Pace:
    """Replies leave at whole multiples of ``period_s`` after the arrival, results are settled half way between.

    The clock is set at the arrival and ticks by itself, whatever the work does meanwhile: a timer that is set
    when the work is done would be rounded to the loop's milliseconds, and its rounding would tell of the work.
    What is settled at the half way tells nothing either, however it is seen: the moment in the reply, the log, a
    retry that comes in between. Work that takes longer waits for the next tick of its kind.
    """

    def __init__(self, period_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._half = period_s / 2
        self._arrival = self._loop.time()
        self._ticks = 0
        self._next = self._loop.create_future()
        self._set()

    async def half_way(self) -> None:
        """Wait until an odd number of half periods have passed."""
        await self._until(1)

    async def whole(self) -> None:
        """Wait until a whole number of periods have passed."""
        await self._until(0)

    def stop(self) -> None:
        """Tick no more."""
        self._timer.cancel()

    async def _until(self, odd: int) -> None:
        while True:
            await asyncio.shield(self._next)  # several may wait for one tick
            if self._ticks % 2 == odd:
                return

    def _set(self) -> None:
        self._timer = self._loop.call_at(self._arrival + (self._ticks + 1) * self._half, self._tick)

    def _tick(self) -> None:
        self._ticks += 1
        ticked, self._next = self._next, self._loop.create_future()
        ticked.set_result(None)
        self._set()
