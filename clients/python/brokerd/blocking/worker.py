"""Workers of the blocking client: one thread per slot."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional

from ..errors import BrokerError, Lost, Unreachable
from ..job import Job
from ..work import GRACE, Outcome, log
from .runner import Cancelled, Runner, Scope


class Worker:
    """One call of work."""

    def __init__(
        self, calls: Runner, source: Any, handler: Callable[[Any], Any], concurrency: int, drain: float,
        stop: Optional[threading.Event],
    ) -> None:
        self._calls, self._source, self._handler, self._drain = calls, source, handler, drain
        self._stop = stop or threading.Event()
        self._taking, self._settling = Scope(), Scope()
        self._slots = [
            threading.Thread(target=self._slot, args=(slot,), name=f"brokerd-slot-{slot}", daemon=True)
            for slot in range(concurrency)
        ]
        self._lock = threading.Lock()
        self._jobs: Dict[int, Job] = {}  # by slot; guarded by _lock
        self._failure: Optional[BrokerError] = None

    def run(self) -> None:
        """Works until the stop event, SIGTERM or an error that no retry heals."""
        try:
            with _heeding_sigterm(self._stop):
                self._calls.run(self._source.begin())
                for slot in self._slots:
                    slot.start()
                self._stop.wait()
            self._taking.cancel()
            log.info("the worker stops, and waits for %d handlers", len(self._jobs))
            ends = time.monotonic() + self._drain
            for slot in self._slots:
                slot.join(max(0.0, ends - time.monotonic()))
        finally:  # after KeyboardInterrupt, without a drain
            self._taking.cancel()
            self._abandon()
        if self._failure:
            raise self._failure

    def _slot(self, slot: int) -> None:
        try:
            while not self._stop.is_set():
                try:
                    job = self._calls.run(self._source.next(slot), self._taking)
                except Cancelled:
                    self._calls.run(self._source.undo(slot), self._settling)
                    return
                if job is not None:
                    self._handle(slot, job)
        except Cancelled:
            pass
        except BrokerError as error:
            self._failure = self._failure or error
            self._stop.set()

    def _handle(self, slot: int, job: Any) -> None:
        with self._lock:
            self._jobs[slot] = job
        keeper = self._calls.background(self._source.keep(job, job._lose))
        try:
            outcome = Outcome(self._handler(job))
        except BaseException as error:  # SystemExit too ends the attempt, not the worker
            outcome = Outcome(error=error)
        try:
            if outcome.error is None or not job.lost.is_set():
                self._calls.run(self._source.settle(job, outcome), self._settling)
        except Lost as lost:
            log.warning("%r was lost before it was settled: %s", job, lost)
        finally:
            keeper.cancel()
            with self._lock:
                self._jobs.pop(slot, None)

    def _abandon(self) -> None:
        """Releases the jobs whose handlers have not returned, for other workers."""
        self._settling.cancel()
        with self._lock:
            jobs: List[Job] = list(self._jobs.values())
        for job in jobs:
            job._lose(Lost("the worker stops", reason="STOPPED"))
            log.warning("the worker stops, and releases %r", job)
        try:
            for job in jobs:
                self._calls.run(self._source.release(job, timeout=GRACE, patience=0))
        except Unreachable:
            pass  # the claims end by themselves
        except BrokerError as error:
            log.warning("a claim was not released, and ends by itself: %s", error)


@contextmanager
def _heeding_sigterm(stop: threading.Event) -> Iterator[None]:
    """Sets the event at SIGTERM, in the main thread. A second SIGTERM has its usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, previous or signal.SIG_DFL)
        _thread.start_new_thread(stop.set, ())  # the signal can interrupt code that holds the lock of the event

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous or signal.SIG_DFL)
