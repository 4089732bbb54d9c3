"""Holds of the asyncio client: a task extends them, and cancels the block when they are lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Optional, Type

from ..errors import Lost
from ..holds import BaseHold, Terms
from .runner import Runner

if TYPE_CHECKING:
    from .client import Client


class Hold(BaseHold):
    """A lock or token in an `async with` block."""

    _calls: Runner

    def __init__(self, client: Client, terms: Terms, **options: Any) -> None:
        super().__init__(client._calls, terms, **options)
        self._client = client
        self._keeper: Optional[asyncio.Task[None]] = None
        self._owner: Any = None  # the task that runs the block
        self._cancelled = False  # by this hold

    @property
    def client(self) -> Client:
        """A client whose calls the broker refuses (Lost) once the hold has ended."""
        return self._client.fenced(self.fence)

    def _lose(self, loss: Lost) -> None:
        super()._lose(loss)
        self._cancelled = True
        self._owner.cancel()

    async def __aenter__(self) -> Hold:
        self._owner = asyncio.current_task()
        try:
            await self._calls.run(self._take())
        except BaseException:
            self._calls.background(self._give_back())  # a grant whose answer was not awaited
            raise
        self._keeper = self._calls.background(self._keep())
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: object,
    ) -> None:
        if self._keeper:
            self._keeper.cancel()
        if self._cancelled:
            await self._take_back(error)
        try:
            self.check()
        except Lost as lost:
            self._calls.background(self._give_back())
            if error is None or (self._cancelled and isinstance(error, asyncio.CancelledError)):
                raise lost from None
        else:
            await self._calls.run(self._give_back())

    async def _take_back(self, error: Optional[BaseException]) -> None:
        """Removes the cancellation of this hold from its task: the block ends with Lost instead."""
        if not isinstance(error, asyncio.CancelledError):  # the block ended before the cancellation reached it
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                pass
        if hasattr(self._owner, "uncancel"):  # Python 3.11
            self._owner.uncancel()
