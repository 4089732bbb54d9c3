"""Holds of the blocking client: a thread extends them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Optional

from ..errors import Lost
from ..holds import BaseHold, Terms
from .runner import Runner, Scope

if TYPE_CHECKING:
    from .client import Client


class Hold(BaseHold):
    """A lock or token in a `with` block."""

    _calls: Runner

    def __init__(self, client: Client, terms: Terms, **options: Any) -> None:
        super().__init__(client._calls, terms, **options)
        self._client = client
        self._keeper: Optional[Scope] = None
        #: Set when the hold is lost.
        self.lost = threading.Event()

    @property
    def client(self) -> Client:
        """A client whose calls the broker refuses (Lost) once the hold has ended."""
        return self._client.fenced(self.fence)

    def _lose(self, loss: Lost) -> None:
        super()._lose(loss)
        self.lost.set()

    def __enter__(self) -> Hold:
        try:
            self._calls.run(self._take())
        except BaseException:
            self._calls.background(self._give_back())  # a grant whose answer was not awaited
            raise
        self._keeper = self._calls.background(self._keep())
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._keeper:
            self._keeper.cancel()
        try:
            self.check()
        except Lost:
            self._calls.background(self._give_back())
            if error is None:
                raise
        else:
            self._calls.run(self._give_back())
