"""Agents: registration, heartbeats, and who else is there."""

from __future__ import annotations

from typing import Iterable, List, Mapping, Optional

from .operation import Call, Steps, operation
from .v1 import agent_pb2 as pb
from .values import Seconds, duration, listed


class AgentOperations:
    """The operations on agents of a client."""

    @operation
    def register(
        self, role: str = "", *, capabilities: Iterable[str] = (), labels: Optional[Mapping[str, str]] = None,
        lease: Optional[Seconds] = None, instance: str = "", worktree: str = "", display_name: str = "",
        description: str = "",
    ) -> Steps[pb.Agent]:
        """Registers the agent of the client, or registers it again with all that it holds."""
        request = pb.RegisterAgentRequest(
            role=role, capabilities=listed(capabilities), labels=labels or {}, instance=instance, worktree=worktree,
            display_name=display_name, description=description, lease=None if lease is None else duration(lease))
        answer: pb.RegisterAgentResponse = yield Call("agents", "RegisterAgent", request)
        return answer.agent

    @operation
    def deregister(self) -> Steps[None]:
        """Ends the agent's registration: its claims, locks and tokens are released."""
        yield Call("agents", "DeregisterAgent", pb.DeregisterAgentRequest())

    @operation
    def agents(self, *, role: str = "") -> Steps[List[pb.Agent]]:
        """Returns the registered agents by name; with role, those of the role."""
        found: List[pb.Agent] = []
        request = pb.ListAgentsRequest(role=role, page_size=1000)
        while True:
            page: pb.ListAgentsResponse = yield Call("agents", "ListAgents", request)
            found.extend(page.agents)
            if not page.next_page_token:
                return found
            request = pb.ListAgentsRequest(role=role, page_size=1000, page_token=page.next_page_token)
