"""The blocking client."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Iterable, Mapping, Optional

import grpc

from ..agents import FAREWELL, AgentOperations, ends_well, stopped
from ..artifacts import ArtifactOperations
from ..base import BaseClient
from ..decisions import DecisionOperations
from ..events import EventOperations
from ..holds import LockOperations, Terms, TokenOperations
from ..messages import Claim, MessageOperations
from ..state import StateOperations
from ..tasks import TaskClaim, TaskOperations
from ..values import Seconds, seconds
from ..work import MessageSource, TaskSource
from .hold import Hold
from .runner import Operations, Runner
from .worker import Worker


class Artifacts(Operations, ArtifactOperations):
    """`client.artifacts`."""


class Decisions(Operations, DecisionOperations):
    """`client.decisions`."""


class Events(Operations, EventOperations):
    """`client.events`."""


class Holds(Operations):
    """Operations that return holds, which make calls with the client."""

    def __init__(self, client: Client) -> None:
        super().__init__(client._calls)
        self._client = client

    def _hold(self, terms: Terms) -> Hold:
        return Hold(self._client, terms)


class Locks(Holds, LockOperations):
    """`client.locks`."""


class Tokens(Holds, TokenOperations):
    """`client.tokens`."""


class State(Operations, StateOperations):
    """`client.state`."""


class Tasks(Operations, TaskOperations):
    """`client.tasks`."""

    def work(
        self, handler: Callable[[TaskClaim], Any], *, concurrency: int = 1, labels: Optional[Mapping[str, str]] = None,
        resume: bool = True, drain: Seconds = 30, stop: Optional[threading.Event] = None,
    ) -> None:
        """Works on tasks: claims each, calls handler with the TaskClaim, and settles it by what handler does.

        A returned value is the result of the completed task: a str, or a value that becomes JSON. An
        exception is a failed attempt; Reject fails the task for good, Release returns it. Everything else
        is as in `client.work`. With resume, the worker begins with the tasks that the agent already
        holds: leave it out if several workers act as the same agent.
        """
        source = TaskSource(labels or {}, self._calls.identity.agent if resume else "")
        Worker(self._calls, source, handler, concurrency, seconds(drain), stop).run()


class Client(BaseClient, Operations, MessageOperations, AgentOperations):
    """An agent of a broker, or its operator without an agent's name. It is safe for concurrent use.

    Without an address, the client finds the broker that runs on this machine. timeout bounds each
    call, in seconds beyond the time that the call asks the broker to wait: a call that the broker
    does not answer within that time raises Unreachable. While a broker restarts, calls are
    repeated for as long; none is executed twice. A broker has restarted if it has answered before, or
    has left its endpoint file or its socket; otherwise a call raises Unreachable at once.
    """

    _runner = Runner
    _open_channel = staticmethod(grpc.insecure_channel)
    _open_secure_channel = staticmethod(grpc.secure_channel)

    def work(
        self, handler: Callable[[Claim], Any], *, concurrency: int = 1, mailboxes: Iterable[str] = (),
        types: Iterable[str] = (), lowest_priority: int = 0, consumer: str = "", claim_for: Seconds = 30,
        drain: Seconds = 30, stop: Optional[threading.Event] = None,
    ) -> None:
        """Works on messages: claims each, calls handler with the Claim, and settles it by what handler does.

        Without mailboxes, they come from all that the agent may take from: its own, that of its role, those of its channels.

        It returns: the message is acknowledged, with a returned str as the reply, or any other value but
        None as the JSON payload of the reply. It raises: a failed attempt, which the broker repeats
        later; RetryAfter gives the delay, Reject makes a dead letter, Release returns the message
        without a counted attempt. Meanwhile the client extends the claim. If it is lost all the same,
        `claim.lost` is set and `claim.check()` raises Lost.

        While the broker is away, handlers continue; their outcomes are settled once when it returns. At
        SIGTERM (in the main thread) and when stop is set, work claims nothing more, waits up to drain
        seconds for the handlers, releases what they do not finish, and returns. The agent stays registered
        until the client is closed. An error that no retry heals, such as an agent that is not registered,
        ends work too.

        A worker is known to the broker by agent and consumer: two at the same time need different ones.
        """
        source = MessageSource(mailboxes, types, lowest_priority, consumer, seconds(claim_for))
        Worker(self._calls, source, handler, concurrency, seconds(drain), stop).run()

    def _bind(self, calls: Runner) -> None:
        self._calls = calls
        self.artifacts = Artifacts(calls)
        self.decisions = Decisions(calls)
        self.events = Events(calls)
        self.locks = Locks(self)
        self.state = State(calls)
        self.tasks = Tasks(calls)
        self.tokens = Tokens(self)

    def close(self) -> None:
        """Closes the connection, for all clients that share it. Calls in progress end.

        Before that, it reports the agents that these clients have registered as stopped, which takes at most 2 s.
        """
        ends = time.monotonic() + FAREWELL
        for registration in self._calls.link.withdraw():
            registration.own.run(stopped(ends - time.monotonic()))
        self._detach()

    def _detach(self) -> None:
        channel = self._calls.link.detach()
        if channel is not None:
            channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        if ends_well(error):
            self.close()
        else:
            self._detach()  # the broker notices that the agents have failed when their leases end
