"""Workers of the asyncio client: one task per slot."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import contextmanager
from typing import Any, Awaitable, Callable, Dict, Iterator, List, Optional, Set

from ..errors import BrokerError, Lost
from ..work import GRACE, Outcome, log
from .runner import Runner


class Worker:
    """One call of work."""

    def __init__(
        self, calls: Runner, source: Any, handler: Callable[[Any], Awaitable[Any]], concurrency: int, drain: float,
        stop: Optional[asyncio.Event],
    ) -> None:
        self._calls, self._source, self._handler, self._drain = calls, source, handler, drain
        self._stop, self._stopping = stop or asyncio.Event(), False
        self._concurrency = concurrency
        self._claiming: Set[asyncio.Task[Any]] = set()
        self._running: Dict[asyncio.Task[Any], Any] = {}  # the job of each handler

    async def run(self) -> None:
        """Works until the stop event, SIGTERM or an error that no retry heals. Cancelling it cancels the handlers."""
        begun = asyncio.ensure_future(self._calls.run(self._source.begin()))
        slots = [asyncio.ensure_future(self._slot(slot, begun)) for slot in range(self._concurrency)]
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            with _heeding_sigterm(self._stop):
                await asyncio.wait([stop, *slots], return_when=asyncio.FIRST_COMPLETED)  # a slot ends by an error
            self._stopping = True
            for claiming in self._claiming:
                claiming.cancel()
            log.info("the worker stops, and waits for %d handlers", len(self._running))
            await asyncio.wait(slots, timeout=self._drain)
        finally:
            stop.cancel()
            self._stopping = True
            await self._abandon(slots)
        failures = [slot.exception() for slot in slots if not slot.cancelled()]
        for failure in filter(None, failures):
            raise failure

    async def _slot(self, slot: int, begun: asyncio.Future[None]) -> None:
        await begun
        while not self._stopping:
            claiming = asyncio.ensure_future(self._calls.run(self._source.next(slot)))
            self._claiming.add(claiming)
            try:
                job = await claiming
            except asyncio.CancelledError:
                if not (self._stopping and claiming.cancelled()):
                    raise
                await self._calls.run(self._source.undo(slot))
                return
            finally:
                self._claiming.discard(claiming)
            if job is not None:
                await self._handle(job)

    async def _handle(self, job: Any) -> None:
        running: asyncio.Task[Any] = asyncio.ensure_future(self._handler(job))  # type: ignore[arg-type]
        self._running[running] = job

        def lose(error: BrokerError) -> None:
            job._lose(error)
            running.cancel()

        keeper = self._calls.background(self._source.keep(job, lose))
        try:
            await asyncio.wait([running])
            outcome = Outcome(error=asyncio.CancelledError("cancelled")) if running.cancelled() else Outcome(
                None if running.exception() else running.result(), running.exception())
            if outcome.error is None or not job.lost.is_set():
                await self._calls.run(self._source.settle(job, outcome))
        except Lost as lost:
            log.warning("%r was lost before it was settled: %s", job, lost)
        finally:
            keeper.cancel()
            if running.done():
                self._running.pop(running, None)

    async def _abandon(self, slots: Any) -> None:
        """Cancels the handlers that have not returned, and releases their jobs for other workers."""
        for slot in slots:
            slot.cancel()
        await asyncio.wait(slots)
        for running, job in self._running.items():
            job._lose(Lost("the worker stops", reason="STOPPED"))
            running.cancel()
            log.warning("the worker stops, and releases %r", job)
            try:
                await self._calls.run(self._source.release(job, timeout=GRACE, patience=0))
            except BrokerError as error:
                log.warning("%r was not released, and its claim ends by itself: %s", job, error)


class _Termination:
    """Stops all workers of an event loop at SIGTERM. A second SIGTERM has its usual effect."""

    of_loop: Dict[asyncio.AbstractEventLoop, _Termination] = {}

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stops: List[asyncio.Event] = []
        self._loop, self._previous = loop, signal.getsignal(signal.SIGTERM)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)

    def _terminate(self) -> None:
        for stop in self.stops:
            stop.set()
        self.ignore()

    def ignore(self) -> None:
        if self._loop.remove_signal_handler(signal.SIGTERM):
            signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)


@contextmanager
def _heeding_sigterm(stop: asyncio.Event) -> Iterator[None]:
    """Sets the event at SIGTERM, if the loop runs in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    termination = _Termination.of_loop.get(loop)
    if termination is None:
        termination = _Termination.of_loop[loop] = _Termination(loop)
    termination.stops.append(stop)
    try:
        yield
    finally:
        termination.stops.remove(stop)
        if not termination.stops:
            termination.ignore()
            del _Termination.of_loop[loop]
