"""Agents: registration, heartbeats, and the other agents of the session."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Iterable, List, Mapping, Optional

from . import environment
from .errors import BrokerError
from .operation import FOREVER, Call, Pause, Steps, operation
from .v1 import agent_pb2 as pb
from .values import Seconds, duration, enum, listed, span

if TYPE_CHECKING:
    from .connection import Calls

_log = logging.getLogger("brokerd")


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
        agent does not fail while the program is alive. lease is how long the broker waits for the next
        call of a program that has ended (default 90 s). `losses` has what the agent has lost.
        """
        described = self._calls.link.agents.get(self._calls.identity.agent, {})
        request = pb.RegisterAgentRequest(
            role=role or described.get("role", ""),
            capabilities=listed(capabilities) or environment.words(described.get("capabilities", "")),
            labels={**environment.labels(described.get("labels", "")), **(labels or {})}, instance=instance, worktree=worktree,
            display_name=display_name, description=description, lease=duration(lease), replace=replace)
        answer: pb.RegisterAgentResponse = yield Call("agents", "RegisterAgent", request)
        self._calls.losses.extend(answer.losses)
        self._stop_heartbeats()
        beats = _heartbeats(self._calls, span(answer.agent.lease))
        self._calls.link.background[self._calls.identity] = self._calls.background(beats)
        return answer.agent

    @operation
    def deregister(self) -> Steps[None]:
        """Ends the agent's registration: its claims, locks and tokens are released."""
        self._stop_heartbeats()
        yield Call("agents", "DeregisterAgent", pb.DeregisterAgentRequest())

    @operation
    def heartbeat(
        self, status: str = "", *, activity: Optional[str] = None, task_id: Optional[str] = None,
        progress: Optional[float] = None, reason: Optional[str] = None, last_tool: Optional[str] = None,
        last_file: Optional[str] = None, notices: bool = False,
    ) -> Steps[pb.HeartbeatResponse]:
        """Reports what the agent does, and returns how much mail waits, directives and losses.

        status is active, idle, waiting, blocked, completed, terminated, degraded or failed. What is not
        given stays as it is. notices returns the unread notices, and marks them as read.
        """
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

    def _stop_heartbeats(self) -> None:
        beats = self._calls.link.background.pop(self._calls.identity, None)
        if beats:
            beats.cancel()


def _heartbeats(calls: Calls, lease: float) -> Steps[None]:
    """Renews the lease of an agent until the broker refuses that."""
    while True:
        yield Pause(lease / 3)
        try:
            answer: pb.HeartbeatResponse = yield Call("agents", "Heartbeat", pb.HeartbeatRequest(), patience=FOREVER)
        except BrokerError as error:
            _log.warning("the heartbeats of %s end: %s", calls.identity.agent, error)
            return
        for loss in answer.losses:
            _log.warning("%s has lost %s", calls.identity.agent, loss.name)
        calls.losses.extend(answer.losses)
        lease = span(answer.lease)
