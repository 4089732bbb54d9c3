"""Runs operations as coroutines: the layer between the operations and grpc.aio."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, AsyncIterator, Set, TypeVar, Union

import grpc

from ..connection import Calls, Identity, Link, Retry, request_of
from ..operation import FOREVER, Awaiting, Call, Pause, Position, Steps

_log = logging.getLogger("brokerd")

T = TypeVar("T")


class Runner(Calls):
    """Runs the calls of one identity on a channel of grpc.aio."""

    def __init__(self, link: Link, identity: Identity, timeout: float) -> None:
        super().__init__(link, identity, timeout)
        self._tasks: Set[asyncio.Task[None]] = set()  # a loop does not keep its tasks

    async def run(self, steps: Steps[T]) -> T:
        """Returns the result of an operation."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._perform(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            steps.close()

    async def _perform(self, step: Union[Call, Pause]) -> Any:
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        method, retry = self.method(step.service, step.method), self.retry(step)
        while True:
            try:
                started = method(request_of(step), timeout=self.deadline(step))
                answer = [frame async for frame in started] if method.streams else await started
            except grpc.RpcError as error:
                await asyncio.sleep(retry.pause(error))
            else:
                retry.answered()
                return answer

    async def read(self, position: Position[T]) -> AsyncIterator[T]:
        """Yields what a stream has, and opens it again at the position when it breaks."""
        method, retry = self.method(position.service, position.method), Retry(self.link, FOREVER)
        while True:
            stream = method(position.request())
            try:
                async for frame in stream:
                    retry.answered()
                    for item in position.read(frame):
                        yield item
            except grpc.RpcError as error:
                await asyncio.sleep(retry.pause(error))
            else:
                await asyncio.sleep(retry.ended())
            finally:
                stream.cancel()

    def background(self, steps: Steps[None]) -> asyncio.Task[None]:
        """Runs steps in a task until they end or the task is cancelled."""
        task = asyncio.ensure_future(self.run(steps))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            _log.error("a task in the background has failed", exc_info=task.exception())


class Operations(Awaiting):
    """Gives operations a Runner."""

    def __init__(self, calls: Runner) -> None:
        self._calls = calls

    async def _run(self, steps: Steps[T]) -> T:
        return await self._calls.run(steps)

    def _read(self, position: Position[T]) -> AsyncIterator[T]:
        return self._calls.read(position)
