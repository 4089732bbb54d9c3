"""Work on messages and tasks: what a worker of either kind of client asks the broker.

A worker has slots, one per concurrent handler. A slot claims, runs the handler, settles, and begins
again. Each slot is a consumer with its own name, and a claim call first returns what its consumer
already holds. So if the worker or the daemon is killed at any moment, the next claim call continues
with the claim whose answer was lost. A slot repeats each call until the broker answers. Its request
id makes the broker execute it once.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, Mapping, Optional

from .errors import BrokerError, Conflict, Invalid, Lost, NotFound, Precondition
from .messages import Claim, message, shortened
from .operation import FOREVER, Call, Pause, Steps
from .tasks import TaskClaim, result_text
from .v1 import message_pb2, task_pb2
from .values import duration, encode, listed, span

log = logging.getLogger("brokerd")

#: Seconds that a worker takes to return what it does not finish.
GRACE = 5.0

_CLAIM_WAIT = 60.0  # seconds of one claim call
_CHECK_EVERY = 10.0  # seconds: a task that was taken away is noticed within this time

class Reject(Exception):
    """Raised by a handler if a retry is useless: the message becomes a dead letter, the task fails for good."""


class Release(Exception):
    """Raised by a handler that returns the message or task: no attempt counts."""


class RetryAfter(Exception):
    """Raised by a handler whose message is to be delivered again after some seconds: the attempt counts.

    For tasks, the broker chooses the delay.
    """

    def __init__(self, delay: float, text: str = "") -> None:
        super().__init__(text or f"retry after {delay} s")
        self.delay = delay


@dataclass
class Outcome:
    """What a handler made of a job: its result, or its error."""

    result: Any = None
    error: Optional[BaseException] = None


def _text(error: BaseException) -> str:
    return shortened(str(error) or type(error).__name__)


def _log_failure(job: Any, error: BaseException) -> None:
    """Logs an error of a handler with its traceback. Reject and RetryAfter are answers of the handler."""
    if not isinstance(error, (Reject, RetryAfter)):
        log.error("the handler has failed with %r: %s", job, _text(error), exc_info=error)


class MessageSource:
    """Claims messages and settles them."""

    def __init__(
        self, mailboxes: Any, types: Any, lowest_priority: int, consumer: str, claim_for: float,
    ) -> None:
        self._mailboxes, self._types, self._lowest = listed(mailboxes), listed(types), lowest_priority
        self._consumer, self._claim_for = consumer, claim_for

    def begin(self) -> Steps[None]:
        """Does nothing: a claim call first returns the messages that its consumer already holds."""
        yield from ()

    def next(self, slot: int, wait: float = _CLAIM_WAIT) -> Steps[Optional[Claim]]:
        """Claims the next message of a slot; None if there was none for a while."""
        consumer = self._consumer if slot == 0 else f"{self._consumer or 'slot'}-{slot}"
        request = message_pb2.ClaimMessagesRequest(
            consumer=consumer, mailboxes=self._mailboxes, types=self._types, lowest_priority=self._lowest, max=1,
            wait=duration(wait), claim_for=duration(self._claim_for))
        call = Call("messages", "ClaimMessages", request, wait, patience=FOREVER)
        answer: message_pb2.ClaimMessagesResponse = yield call
        return Claim(answer.claims[0]) if answer.claims else None

    def undo(self, slot: int) -> Steps[None]:
        """Releases what a cancelled call of next has claimed. The message keeps its place."""
        job = yield from self.next(slot, wait=0)
        if job:
            yield from self.release(job)

    def keep(self, job: Claim, lose: Callable[[BrokerError], None]) -> Steps[None]:
        """Extends a claim until it is lost."""
        extension = message_pb2.Extension(claim_id=job.claim_id, claim_for=duration(self._claim_for))
        while True:
            yield Pause(self._claim_for / 3)
            try:
                request = message_pb2.ExtendClaimsRequest(extensions=[extension])
                yield Call("messages", "ExtendClaims", request, patience=FOREVER)
            except BrokerError as error:
                return lose(error)

    def settle(self, job: Claim, outcome: Outcome) -> Steps[None]:
        """Acknowledges a message, with a result as the reply, or gives it up with the error."""
        error: Optional[BaseException] = outcome.error
        if error is None:
            try:
                yield self._finish(job, outcome.result)
                return
            except Precondition as refused:
                if refused.reason != "NOBODY_WAITS":  # the sender cannot receive a reply
                    error = refused
            except Lost:
                raise
            except (BrokerError, TypeError, ValueError) as refused:  # no reply that can be sent
                error = refused
            if error is None:
                yield self._finish(job, None)
                return
        if isinstance(error, Release):
            yield from self.release(job)
            return
        _log_failure(job, error)
        nack = message_pb2.Nack(
            claim_id=job.claim_id, error=_text(error), fatal=isinstance(error, Reject),
            delay=duration(error.delay) if isinstance(error, RetryAfter) else None)
        yield Call("messages", "NackMessages", message_pb2.NackMessagesRequest(nacks=[nack]), patience=FOREVER)

    def release(self, job: Claim, **limits: float) -> Steps[None]:
        yield Call("messages", "ReleaseClaims", message_pb2.ReleaseClaimsRequest(ids=[job.claim_id]), **limits)

    def _finish(self, job: Claim, result: Any) -> Call:
        if result is None:
            return Call("messages", "AckMessages", message_pb2.AckMessagesRequest(ids=[job.claim_id]), patience=FOREVER)
        reply = message(None, result, {}) if isinstance(result, str) else message_pb2.Message(payload=encode(result))
        request = message_pb2.ReplyRequest(id=job.claim_id, ack=True, message=reply)
        return Call("messages", "Reply", request, patience=FOREVER)


class TaskSource:
    """Claims tasks and settles them."""

    def __init__(self, labels: Mapping[str, str], resumed: str) -> None:
        self._labels = labels
        self._resumed = resumed  # the agent whose tasks the worker resumes; empty = none
        self._held: Deque[str] = deque()  # ids of tasks that the agent holds from an earlier run
        self._asked: Dict[int, task_pb2.ClaimTaskRequest] = {}  # by slot: the request without an answer

    def begin(self) -> Steps[None]:
        """Finds the tasks that the agent already holds. The slots begin with them."""
        if not self._resumed:
            return
        request = task_pb2.ListTasksRequest(
            holder=self._resumed, states=[task_pb2.TASK_STATE_CLAIMED], oldest_first=True, page_size=1000)
        answer: task_pb2.ListTasksResponse = yield Call("tasks", "ListTasks", request)
        self._held.extend(task.id for task in answer.tasks)

    def next(self, slot: int) -> Steps[Optional[TaskClaim]]:
        """Claims the next task of a slot; None if there was none for a while."""
        try:
            request, wait = task_pb2.ClaimTaskRequest(id=self._held.popleft()), 0.0
        except IndexError:
            request, wait = task_pb2.ClaimTaskRequest(labels=self._labels, wait=duration(_CLAIM_WAIT)), _CLAIM_WAIT
        self._asked[slot] = request
        try:
            answer: task_pb2.ClaimTaskResponse = yield Call("tasks", "ClaimTask", request, wait, patience=FOREVER)
        except (Precondition, NotFound):
            del self._asked[slot]
            if wait:
                raise
            return None  # the held task has changed since it was listed
        del self._asked[slot]
        return TaskClaim(answer) if answer.HasField("task") else None

    def undo(self, slot: int) -> Steps[None]:
        """Releases what a cancelled call of next has claimed."""
        asked = self._asked.pop(slot, None)
        if asked is None:
            return
        probe = task_pb2.ClaimTaskRequest()
        probe.CopyFrom(asked)
        probe.ClearField("wait")
        try:
            answer: task_pb2.ClaimTaskResponse = yield Call("tasks", "ClaimTask", probe)
        except Conflict:  # the call has claimed a task under this request id, and its answer was lost
            answer = yield Call("tasks", "ClaimTask", asked)
        if answer.HasField("task") and not answer.resumed:
            yield from self.release(TaskClaim(answer))

    def keep(self, job: TaskClaim, lose: Callable[[BrokerError], None]) -> Steps[None]:
        """Restarts stale_after of a task until it is lost."""
        stale = span(job.task.stale_after)
        while True:
            yield Pause(min(_CHECK_EVERY, stale / 3) if stale else _CHECK_EVERY)
            try:
                request = task_pb2.UpdateTaskRequest(id=job.id, fence=job.fence)
                yield Call("tasks", "UpdateTask", request, patience=FOREVER)
            except BrokerError as error:
                return lose(error)

    def settle(self, job: TaskClaim, outcome: Outcome) -> Steps[None]:
        """Completes a task with the result, or ends the attempt with the error."""
        error = outcome.error
        if error is None:
            try:
                request = task_pb2.CompleteTaskRequest(
                    id=job.id, fence=job.fence, result=result_text(outcome.result), artifacts=job.artifacts)
                yield Call("tasks", "CompleteTask", request, patience=FOREVER)
                return
            except (Invalid, TypeError, ValueError) as refused:  # no result that can be kept
                error = refused
        if isinstance(error, Release):
            yield from self.release(job, str(error))
            return
        _log_failure(job, error)
        fail = task_pb2.FailTaskRequest(
            id=job.id, fence=job.fence, error=_text(error), fatal=isinstance(error, Reject))
        yield Call("tasks", "FailTask", fail, patience=FOREVER)

    def release(self, job: TaskClaim, reason: str = "", **limits: float) -> Steps[None]:
        request = task_pb2.ReleaseTaskRequest(id=job.id, fence=job.fence, reason=shortened(reason))
        yield Call("tasks", "ReleaseTask", request, **limits)
