"""What the blocking and the asyncio client have in common."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Mapping, Optional, Type, TypeVar

from . import environment
from .connection import DEFAULT_TIMEOUT, Calls, Identity, Link, Stubs
from .tls import TLS

C = TypeVar("C", bound="BaseClient")


class BaseClient:
    """What the blocking and the asyncio client have in common: the connection and the identity."""

    _runner: Type[Calls]
    _open_channel: Callable[..., Any]
    _open_secure_channel: Callable[..., Any]
    _calls: Any

    def __init__(
        self, address: Optional[str] = None, *, session: str = "", agent: str = "", credential: str = "",
        incarnation: int = 0, fence: int = 0, timeout: float = DEFAULT_TIMEOUT, tls: TLS = TLS(),
        agents: Optional[Mapping[str, Mapping[str, str]]] = None,
    ) -> None:
        local = not address
        if not address:
            address, secret = environment.local()
            credential = credential or secret
        link = Link(address, credential, tls, local, self._open_channel, self._open_secure_channel)
        link.agents = agents or {}
        self._bind(self._runner(link, Identity(session, agent, incarnation, fence), timeout))

    @classmethod
    def from_env(cls: Type[C], **overrides: Any) -> C:
        """Returns a client for the broker, session and agent that the environment names.

        `brokerd.environment` lists the places, in their order. Arguments of the constructor win.
        """
        return cls(**environment.settings(overrides))

    def _bind(self, calls: Any) -> None:
        """Sets the calls of the client and of its groups of operations."""
        raise NotImplementedError

    def _with(self: C, identity: Identity) -> C:
        client = type(self).__new__(type(self))
        client._bind(self._runner(self._calls.link, identity, self._calls.timeout))
        return client

    @property
    def address(self) -> str:
        return str(self._calls.link.address)

    @property
    def identity(self) -> Identity:
        """Who calls, and in which session."""
        return self._calls.identity  # type: ignore[no-any-return]

    @property
    def stubs(self) -> Stubs:
        """The generated stub of every service, for calls that the client has no method for."""
        return self._calls.stubs  # type: ignore[no-any-return]

    def as_agent(self: C, name: str) -> C:
        """Returns a client for another agent, in the same session and on the same connection."""
        return self._with(Identity(self.identity.session, name))

    def in_session(self: C, name: str) -> C:
        """Returns a client for another session, on the same connection."""
        return self._with(Identity(name, self.identity.agent))

    def at_incarnation(self: C, incarnation: int) -> C:
        """Returns a client whose calls the broker refuses once the agent has registered again."""
        return self._with(dataclasses.replace(self.identity, incarnation=incarnation))

    def fenced(self: C, fence: int) -> C:
        """Returns a client whose calls the broker refuses once the agent has lost the lock, token or task."""
        return self._with(dataclasses.replace(self.identity, fence=fence))
