"""Holds: locks and tokens that the client keeps while a block of code runs.

A hold lives by the client's own monotonic clock. The broker ends a lock max_hold after its grant or
its last extension, and earlier if the agent's lease ends. The hold therefore counts

    ttl = min(max_hold, lease)

from the moment before each call that the broker has answered, so its end is never later than the
broker's. It extends the lock several times per ttl. If no extension succeeds until a margin before
the end, the hold is lost: before the broker can grant the lock to another agent, and also if the
broker is frozen or cannot be reached.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Callable, Iterable, Optional, Union

from .errors import BrokerError, Busy, Lost, NotFound
from .job import as_lost
from .operation import Call, Pause, Steps, grant
from .v1 import agent_pb2, lock_pb2, token_pb2
from .values import Seconds, duration, listed, seconds, span

_MOST_MARGIN = 5.0  # seconds before the end at which a hold counts as lost, at most a quarter of its ttl
_EXTEND_EVERY = 10.0  # seconds, at most a third of the ttl: a revoked lock is noticed within this time

# Reasons with which the broker says that the agent does not hold it any more, beside Lost.
_ENDED = {"AGENT_NOT_REGISTERED", "TICKET_RELEASED", "TICKET_REVOKED"}


class LockTerms:
    """What to lock, and for how long."""

    def __init__(self, paths: Iterable[str], shared: bool, wait: float, max_hold: float, reason: str) -> None:
        self.paths, self.shared, self.wait, self.max_hold, self.reason = listed(paths), shared, wait, max_hold, reason
        self.holder = _holder()
        self.what = " ".join(self.paths)

    def acquire(self) -> Call:
        return Call("locks", "AcquireLocks", lock_pb2.AcquireLocksRequest(
            paths=self.paths, mode=lock_pb2.LOCK_MODE_SHARED if self.shared else lock_pb2.LOCK_MODE_EXCLUSIVE,
            wait=duration(self.wait), max_hold=duration(self.max_hold), holder=self.holder, reason=self.reason,
        ), self.wait)

    def extend(self, fence: int, **limits: float) -> Call:
        return Call("locks", "ExtendLocks", lock_pb2.ExtendLocksRequest(fences=[fence]), **limits)

    def release(self, **limits: float) -> Call:
        return Call("locks", "ReleaseLocks", lock_pb2.ReleaseLocksRequest(holder=self.holder, all=True), **limits)


class TokenTerms:
    """Which token to hold, and for how long."""

    def __init__(self, type: str, scope: str, wait: float, max_hold: float, reason: str) -> None:
        self.type, self.scope, self.wait, self.max_hold, self.reason = type, scope, wait, max_hold, reason
        self.holder = _holder()
        self.what = f"{type}/{scope}"

    def acquire(self) -> Call:
        return Call("tokens", "AcquireToken", token_pb2.AcquireTokenRequest(
            type=self.type, scope=self.scope, wait=duration(self.wait), max_hold=duration(self.max_hold),
            holder=self.holder, reason=self.reason), self.wait)

    def extend(self, fence: int, **limits: float) -> Call:
        return Call("tokens", "ExtendToken", token_pb2.ExtendTokenRequest(
            type=self.type, scope=self.scope, holder=self.holder), **limits)

    def release(self, **limits: float) -> Call:
        return Call("tokens", "ReleaseToken", token_pb2.ReleaseTokenRequest(
            type=self.type, scope=self.scope, holder=self.holder), **limits)


Terms = Union[LockTerms, TokenTerms]


def _holder() -> str:
    """Names a separate owner: two holds of one agent exclude each other."""
    return f"hold-{uuid.uuid4()}"


class BaseHold:
    """A lock or token that is held: what both kinds of client have in common."""

    def __init__(self, calls: Any, terms: Terms, clock: Callable[[], float] = time.monotonic) -> None:
        self._calls, self._terms, self._clock = calls, terms, clock
        self._ttl = self._ends = 0.0
        self._loss: Optional[Lost] = None
        #: The number of the grant. It only grows: pass it to the systems that the lock protects.
        self.fence = 0

    def check(self) -> None:
        """Raises Lost if the hold has ended, or may end before its owner has noticed."""
        if self._loss is None and self._clock() >= self._ends:
            text = f"{self._terms.what} is lost: the broker has not extended it in time"
            self._loss = Lost(text, reason="NOT_EXTENDED")
        if self._loss is not None:
            raise self._loss

    def _lose(self, loss: Lost) -> None:
        """Notes the loss; the kinds of client add how the owner learns of it."""
        self._loss = loss

    def _granted(self, began: float) -> None:
        self._ends = began + self._ttl - min(_MOST_MARGIN, self._ttl / 4)

    def _take(self) -> Steps[None]:
        """Acquires what the terms name; Busy if it is not granted within the wait."""
        beat: agent_pb2.HeartbeatResponse = yield Call("agents", "Heartbeat", agent_pb2.HeartbeatRequest())
        self._ttl = min(self._terms.max_hold, span(beat.lease))
        began = self._clock()
        answer: lock_pb2.AcquireLocksResponse = yield self._terms.acquire()
        if answer.outcome != lock_pb2.ACQUIRE_OUTCOME_GRANTED:
            owners = ", ".join(f"{o.agent} ({o.resource})" for o in answer.obstacles)
            raise Busy(f"{self._terms.what} is held by {owners or 'another agent'}", answer.obstacles)
        self.fence = answer.fence
        if self._clock() - began > self._ttl / 4:  # it has waited, and the grant may be younger
            began = self._clock()
            yield self._terms.extend(self.fence)
        self._granted(began)

    def _keep(self) -> Steps[None]:
        """Extends the hold until it is lost."""
        every = min(_EXTEND_EVERY, self._ttl / 3)
        pause = every
        while True:
            yield Pause(max(0.0, min(pause, self._ends - self._clock())))
            began = self._clock()
            if began >= self._ends:
                break
            try:
                yield self._terms.extend(self.fence, timeout=min(self._calls.timeout, self._ends - began), patience=0)
            except (Lost, NotFound) as error:
                return self._lose(as_lost(error))
            except BrokerError as error:
                if error.reason in _ENDED:
                    return self._lose(as_lost(error))
                pause = min(1.0, self._ttl / 20)  # the grant still counts until its end
            else:
                self._granted(began)
                pause = every
        try:
            self.check()
        except Lost as loss:
            self._lose(loss)

    def _give_back(self) -> Steps[None]:
        """Releases the hold. If the broker is away, the hold ends by itself."""
        try:
            yield self._terms.release(timeout=min(self._calls.timeout, 5.0), patience=5.0)
        except BrokerError:
            pass


class LockOperations:
    """The operations of `client.locks`."""

    @grant
    def hold(
        self, paths: Union[str, Iterable[str]], *, shared: bool = False, wait: Seconds = 60, max_hold: Seconds = 120,
        reason: str = "",
    ) -> Terms:
        """Locks files, folders (src/) and globs (**/*.go) while a block runs.

            with client.locks.hold(["src/", "go.mod"], reason="rename") as hold:
                hold.check()

        Paths are relative to the session's root. Busy if the lock is not granted within wait seconds,
        and Conflict (DEADLOCK) if it never will be. `hold.check()` and the end of the block
        raise Lost once the lock has ended, before another agent can have it; in asyncio, the block is
        cancelled. `hold.client` makes calls that the broker refuses after the loss.
        """
        return LockTerms(paths, shared, seconds(wait), seconds(max_hold), reason)


class TokenOperations:
    """The operations of `client.tokens`."""

    @grant
    def hold(self, type: str, scope: str, *, wait: Seconds = 60, max_hold: Seconds = 120, reason: str = "") -> Terms:
        """Holds a token (a turn, such as deploy of staging) while a block runs; as `locks.hold`."""
        return TokenTerms(type, scope, seconds(wait), seconds(max_hold), reason)
