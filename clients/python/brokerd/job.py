"""A job: a message or task that the agent holds."""

from __future__ import annotations

import threading
from typing import Optional

from .errors import BrokerError, Lost


class Job:
    """What a claimed message and a claimed task have in common."""

    def __init__(self) -> None:
        #: Set when the worker notices that the claim has ended: stop working on it.
        self.lost = threading.Event()
        self._loss: Optional[Lost] = None

    def check(self) -> None:
        """Raises Lost if the worker has noticed that the claim has ended."""
        if self._loss is not None:
            raise self._loss

    def _lose(self, error: BrokerError) -> None:
        self._loss = as_lost(error)
        self.lost.set()


def as_lost(error: BrokerError) -> Lost:
    return error if isinstance(error, Lost) else Lost(error.text, reason=error.reason, code=error.code)
