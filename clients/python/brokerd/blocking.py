"""Runs operations with blocking calls: the layer between the operations and grpc."""

from __future__ import annotations

import threading
from typing import Any, Generic, Iterator, Optional, Set, TypeVar

import grpc

from .connection import Calls, Retry, complete
from .operation import Blocking, Call, Position, Steps

T = TypeVar("T")


class Scope:
    """Calls that another thread can cancel together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Set[Any] = set()  # guarded by _lock
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        """Cancels the calls in progress. Further calls are not made."""
        self.cancelled.set()
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def result(self, call: Any) -> Any:
        """Returns the result of a call; raises Cancelled if the scope is cancelled."""
        with self._lock:
            self._calls.add(call)
        try:
            if self.cancelled.is_set():
                call.cancel()
            return call.result()
        except (grpc.FutureCancelledError, grpc.RpcError):
            if self.cancelled.is_set():
                raise Cancelled() from None
            raise
        finally:
            with self._lock:
                self._calls.discard(call)

    def sleep(self, seconds: float) -> None:
        if self.cancelled.wait(seconds):
            raise Cancelled()


class Cancelled(Exception):
    """The scope of a call was cancelled."""


class Runner(Calls):
    """Runs the calls of one identity on a channel of grpc. It is safe for concurrent use."""

    def run(self, steps: Steps[T], scope: Optional[Scope] = None) -> T:
        """Returns the result of an operation."""
        try:
            call = next(steps)
            while True:
                try:
                    answer = self._perform(call, scope)
                except Exception as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(answer)
        except StopIteration as done:
            return done.value
        finally:
            steps.close()

    def _perform(self, call: Call, scope: Optional[Scope]) -> Any:
        method, request, timeout = self.method(call.service, call.method), complete(call), call.wait + self.timeout
        retry = Retry(self.link, self.timeout)
        scope = scope or Scope()
        while True:
            try:
                answer = scope.result(method.future(request, timeout=timeout))
            except grpc.RpcError as error:
                scope.sleep(retry.pause(error))
            else:
                retry.answered()
                return answer

    def read(self, position: Position[T], scope: Optional[Scope] = None) -> Iterator[T]:
        """Yields what a stream has, and opens it again at the position when it breaks."""
        method, retry, scope = self.method(position.service, position.method), Retry(self.link, None), scope or Scope()
        while True:
            stream = method(position.request(), wait_for_ready=self.link.reached)
            try:
                for frame in stream:
                    retry.answered()
                    yield from position.read(frame)
                return
            except grpc.RpcError as error:
                scope.sleep(retry.pause(error))
            finally:
                stream.cancel()


class Operations(Blocking):
    """Gives operations a Runner."""

    def __init__(self, calls: Runner) -> None:
        self._calls = calls

    def _run(self, steps: Steps[T]) -> T:
        return self._calls.run(steps)

    def _read(self, position: Position[T]) -> Iterator[T]:
        return self._calls.read(position)
