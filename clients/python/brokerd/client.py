"""The blocking client."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import grpc

from . import environment
from .agents import AgentOperations
from .blocking import Operations, Runner
from .connection import DEFAULT_TIMEOUT, Identity, Link, Stubs
from .messages import MessageOperations


class Client(Operations, MessageOperations, AgentOperations):
    """An agent of a broker, or its operator without an agent's name. It is safe for concurrent use.

    Without an address, the client finds the broker that runs on this machine. timeout bounds each
    call, in seconds beyond the time that the call asks the broker to wait.
    """

    def __init__(
        self, address: Optional[str] = None, *, session: str = "", agent: str = "", credential: str = "",
        incarnation: int = 0, fence: int = 0, timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        address, credential = located(address, credential)
        link = Link(address, credential, grpc.insecure_channel)
        self._begin(Runner(link, Identity(session, agent, incarnation, fence), timeout))

    @classmethod
    def from_env(cls, **overrides: Any) -> Client:
        """Returns a client for the broker, session and agent that the environment names.

        `brokerd.environment` lists the places, in their order. Arguments of the constructor win.
        """
        return cls(**environment.settings(overrides))

    def _begin(self, calls: Runner) -> None:
        super().__init__(calls)

    def _as(self, identity: Identity) -> Client:
        client = Client.__new__(Client)
        client._begin(Runner(self._calls.link, identity, self._calls.timeout))
        return client

    @property
    def address(self) -> str:
        return self._calls.link.address

    @property
    def identity(self) -> Identity:
        """Who calls, and in which session."""
        return self._calls.identity

    @property
    def stubs(self) -> Stubs:
        """The generated stub of every service, for calls that the client has no method for."""
        return self._calls.stubs

    def as_agent(self, name: str) -> Client:
        """Returns a client for another agent, in the same session and on the same connection."""
        return self._as(Identity(self.identity.session, name))

    def in_session(self, name: str) -> Client:
        """Returns a client for another session, on the same connection."""
        return self._as(Identity(name, self.identity.agent))

    def close(self) -> None:
        """Closes the connection, for all clients that share it. Calls in progress end."""
        channel = self._calls.link.detach()
        if channel is not None:
            channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def located(address: Optional[str], credential: str) -> Tuple[str, str]:
    """Returns the given address, or that of the broker on this machine with its credential."""
    if address:
        return address, credential
    found, secret = environment.local()
    return found, credential or secret
