"""Agents: registration, heartbeats, and the other agents of the session."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Iterable, List, Mapping, Optional

from . import environment
from .connection import Registration
from .errors import BrokerError
from .operation import FOREVER, Call, Pause, Steps, operation
from .v1 import agent_pb2 as pb
from .values import Seconds, duration, enum, listed, span

_log = logging.getLogger("brokerd")

#: Seconds that the reports of the end of a program may take together.
FAREWELL = 2.0


class AgentOperations:
    """The operations on agents of a client."""

    _calls: Any

    @operation
    def register(
        self, role: str = "", *, capabilities: Iterable[str] = (), labels: Optional[Mapping[str, str]] = None,
        lease: Optional[Seconds] = None, instance: str = "", worktree: str = "", display_name: str = "",
        description: str = "", replace: bool = False,
    ) -> Steps[pb.Agent]:
        """Registers the agent of the client, or registers it again with all that it holds.

        Role, capabilities and labels that are not given come from .brokerd.yaml, if the client is that of the
        environment. Anything else that is not given stays as an earlier registration has it, except lease; replace
        clears it.

        From then on, the client sends heartbeats until it is closed or the agent deregisters: the
        agent does not fail while the program is alive. `close` reports the agent as stopped, and so does the end
        of the with block of the client, unless an error leaves it. lease is how long the broker waits for the
        next call of a program that has ended in another way (default 90 s). `losses` has what the agent has lost.
        """
        described = self._calls.link.agents.get(self._calls.identity.agent, {})
        request = pb.RegisterAgentRequest(
            role=role or described.get("role", ""),
            capabilities=listed(capabilities) or environment.words(described.get("capabilities", "")),
            labels={**environment.labels(described.get("labels", "")), **(labels or {})}, instance=instance, worktree=worktree,
            display_name=display_name, description=description, lease=duration(lease), replace=replace)
        began = time.monotonic()
        answer: pb.RegisterAgentResponse = yield Call("agents", "RegisterAgent", request)
        self._calls.losses.extend(answer.losses)
        link = self._calls.link
        link.withdraw(self._calls.identity)
        registration = Registration(self._calls, answer.agent.incarnation)
        registration.beats = self._calls.background(_heartbeats(registration, span(answer.agent.lease), began))
        link.registered[self._calls.identity.key] = registration
        return answer.agent

    @operation
    def deregister(self) -> Steps[None]:
        """Ends the agent's registration: its claims, locks and tokens are released."""
        self._calls.link.withdraw(self._calls.identity)
        yield Call("agents", "DeregisterAgent", pb.DeregisterAgentRequest())

    @operation
    def heartbeat(
        self, status: str = "", *, activity: Optional[str] = None, task_id: Optional[str] = None,
        progress: Optional[float] = None, reason: Optional[str] = None, last_tool: Optional[str] = None,
        last_file: Optional[str] = None, notices: bool = False,
    ) -> Steps[pb.HeartbeatResponse]:
        """Reports what the agent does, and returns how much mail waits, directives and losses.

        status is active, idle, waiting, blocked, completed, terminated, degraded, failed or stopped. What
        is not given stays as it is. notices returns the unread notices, and marks them as read. stopped
        says that the program ends well: the broker releases what the agent holds, and its mail stays.
        """
        if status == "stopped":
            self._calls.link.withdraw(self._calls.identity)
        request = pb.HeartbeatRequest(
            status=enum(pb.AgentStatus, status), activity=activity, task_id=task_id, progress=progress,
            status_reason=reason, last_tool=last_tool, last_file=last_file, notices=notices)
        answer: pb.HeartbeatResponse = yield Call("agents", "Heartbeat", request)
        self._calls.losses.extend(answer.losses)
        return answer

    @operation
    def agents(
        self, *, role: str = "", capabilities: Iterable[str] = (), pattern: str = "",
    ) -> Steps[List[pb.Agent]]:
        """Returns the registered agents that match, by name. A pattern is such as builder-*."""
        found: List[pb.Agent] = []
        request = pb.ListAgentsRequest(
            role=role, capabilities=listed(capabilities), pattern=pattern, page_size=1000)
        while True:
            page: pb.ListAgentsResponse = yield Call("agents", "ListAgents", request)
            found.extend(page.agents)
            request.page_token = page.next_page_token
            if not request.page_token:
                return found

    @property
    def losses(self) -> List[pb.Loss]:
        """What the agent has lost because its lease ended, as the broker has reported to this client."""
        return self._calls.losses


def ends_well(error: Optional[BaseException]) -> bool:
    """Reports whether a program that leaves a with block by this exception, if any, ends well."""
    if isinstance(error, SystemExit):
        return not error.code
    return error is None or isinstance(error, (KeyboardInterrupt, asyncio.CancelledError))


def stopped(timeout: float) -> Steps[None]:
    """Reports that the program of a registered agent ends well. If the broker is away, the lease ends by itself."""
    if timeout <= 0:
        return
    try:
        request = pb.HeartbeatRequest(status=pb.AGENT_STATUS_STOPPED)
        yield Call("agents", "Heartbeat", request, timeout=timeout, patience=0)
    except BrokerError as error:
        _log.debug("an agent was not reported as stopped: %s", error)


def _heartbeats(registration: Registration, lease: float, began: float) -> Steps[None]:
    """Renews the lease of an agent until the broker refuses that. began is the time of its last renewal."""
    calls = registration.calls
    while True:
        yield Pause(lease / 3)
        renewed, began = began, time.monotonic()
        try:
            answer: pb.HeartbeatResponse = yield Call("agents", "Heartbeat", pb.HeartbeatRequest(), patience=FOREVER)
        except BrokerError as error:
            _log.warning("the heartbeats of %s end: %s", calls.identity.agent, error)
            return
        for loss in answer.losses:
            _log.warning("%s has lost %s", calls.identity.agent, loss.name)
        calls.losses.extend(answer.losses)
        if time.monotonic() - renewed >= lease:  # otherwise its lease has not ended: another program has registered it
            registration.incarnation = answer.incarnation
        lease = span(answer.lease)
