"""Runs operations with blocking calls: the layer between the operations and grpc."""

from __future__ import annotations

import threading
from typing import Any, Iterator, Optional, Set, TypeVar, Union

import grpc

from ..connection import Calls, Retry, request_of
from ..operation import FOREVER, Blocking, Call, Pause, Position, Steps

T = TypeVar("T")


class Cancelled(Exception):
    """The scope of a call was cancelled."""


class Scope:
    """Calls and pauses that another thread can cancel together."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._calls: Set[Any] = set()  # guarded by _lock

    def cancel(self) -> None:
        """Cancels the calls in progress. Further calls are not made."""
        self._cancelled.set()
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def result(self, call: Any, streams: bool) -> Any:
        """Returns the response of a call, or the list of responses of a stream."""
        with self._lock:
            self._calls.add(call)
        try:
            if self._cancelled.is_set():
                call.cancel()
            return list(call) if streams else call.result()
        except (grpc.FutureCancelledError, grpc.RpcError):
            if self._cancelled.is_set():
                raise Cancelled() from None
            raise
        finally:
            call.cancel()  # after KeyboardInterrupt; otherwise the call has ended
            with self._lock:
                self._calls.discard(call)

    def sleep(self, seconds: float) -> None:
        if self._cancelled.wait(seconds):
            raise Cancelled()


class Runner(Calls):
    """Runs the calls of one identity on a channel of grpc. It is safe for concurrent use."""

    def run(self, steps: Steps[T], scope: Optional[Scope] = None) -> T:
        """Returns the result of an operation; raises Cancelled if the scope is cancelled."""
        scope = scope or Scope()
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._perform(step, scope)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            steps.close()

    def _perform(self, step: Union[Call, Pause], scope: Scope) -> Any:
        if isinstance(step, Pause):
            return scope.sleep(step.seconds)
        method, retry = self.method(step.service, step.method), self.retry(step)
        start = method if method.streams else method.future
        while True:
            try:
                scope.sleep(0)  # raises if it is cancelled
                answer = scope.result(start(request_of(step), timeout=self.deadline(step)), method.streams)
            except grpc.RpcError as error:
                scope.sleep(retry.pause(error))
            else:
                retry.answered()
                return answer

    def read(self, position: Position[T]) -> Iterator[T]:
        """Yields what a stream has, and opens it again at the position when it breaks."""
        method, retry, scope = self.method(position.service, position.method), Retry(self.link, FOREVER), Scope()
        while True:
            stream = method(position.request())
            try:
                for frame in stream:
                    retry.answered()
                    yield from position.read(frame)
            except grpc.RpcError as error:
                scope.sleep(retry.pause(error))
            else:
                scope.sleep(retry.ended())
            finally:
                stream.cancel()

    def background(self, steps: Steps[None]) -> Scope:
        """Runs steps in a thread until they end or the returned scope is cancelled."""
        scope = Scope()
        threading.Thread(target=self._until_cancelled, args=(steps, scope), name="brokerd", daemon=True).start()
        return scope

    def _until_cancelled(self, steps: Steps[None], scope: Scope) -> None:
        try:
            self.run(steps, scope)
        except Cancelled:
            pass


class Operations(Blocking):
    """Gives operations a Runner."""

    def __init__(self, calls: Runner) -> None:
        self._calls = calls

    def _run(self, steps: Steps[T]) -> T:
        return self._calls.run(steps)

    def _read(self, position: Position[T]) -> Iterator[T]:
        return self._calls.read(position)
