"""The connection to a broker, and the identity that every call carries: for both kinds of client."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import random
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import grpc

from . import errors, tls as tls_
from .operation import FOREVER, Call, Steps
from .v1 import (
    admin_pb2_grpc, agent_pb2, agent_pb2_grpc, artifact_pb2_grpc, blocker_pb2_grpc, catalog_pb2_grpc, channel_pb2_grpc,
    credential_pb2_grpc, decision_pb2_grpc, event_pb2_grpc, handoff_pb2_grpc, lock_pb2_grpc, message_pb2_grpc, session_pb2_grpc,
    state_pb2_grpc, task_pb2_grpc, token_pb2_grpc, vote_pb2_grpc,
)

#: Seconds that a call may take beyond the time that its request permits the broker to wait. A
#: client whose broker restarts repeats a call for the same time.
DEFAULT_TIMEOUT = 10.0

# Errors after which the same call can succeed: for a call that the user waits for, and in the background.
_TRANSIENT = {grpc.StatusCode.UNAVAILABLE}
_PATIENT = _TRANSIENT | {
    grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNKNOWN,
}
_FINAL = {"DATABASE_DAMAGED", "DISK_FULL"}

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two attempts

_CHANNEL_OPTIONS: List[Tuple[str, Any]] = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # Retry repeats calls, under the same request id
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", int(_LONGEST_PAUSE * 1000)),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),  # a stream on which the client sends nothing is checked too
    ("grpc.max_receive_message_length", 8 << 20),
    ("grpc.max_send_message_length", 8 << 20),
    ("grpc.use_local_subchannel_pool", 1),  # clients of other brokers at the same address do not delay this one
]
# With several addresses, another replica can answer where one is frozen or cut off.
_REPLICA_OPTIONS: List[Tuple[str, Any]] = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # limits an attempt to connect, in spite of its name
]


@dataclass(frozen=True)
class Identity:
    """Who calls, and in which session. It goes with every call as metadata."""

    session: str = ""  # empty = "default"
    agent: str = ""  # empty = the operator
    incarnation: int = 0  # 0 = the newest
    fence: int = 0  # of a lock, token or task that the calls depend on; 0 = none

    @property
    def key(self) -> Tuple[str, str]:
        """The session and the name of the agent."""
        return self.session, self.agent

    def metadata(self, credential: str) -> List[Tuple[str, str]]:
        pairs = [
            ("brokerd-session", self.session),
            ("brokerd-agent", self.agent),
            ("brokerd-incarnation", str(self.incarnation or "")),
            ("brokerd-fence", str(self.fence or "")),
            ("authorization", f"Bearer {credential}" if credential else ""),
        ]
        return [(key, value) for key, value in pairs if value]


@dataclass(frozen=True)
class Place:
    """Where a broker listens."""

    address: str
    target: str  # for gRPC
    host: str  # empty for a socket
    port: int
    tls: Optional[tls_.TLS]  # None = the connection does not speak it


class Link:
    """A connection that clients share. It connects at the first call.

    Several addresses, with commas between them, are those of replicas. After a failure the link takes the next one.

    A connection of gRPC does not survive os.fork: the child connects again. The heartbeats, workers
    and holds stay with the parent.
    """

    def __init__(
        self, address: str, credential: str, tls: tls_.TLS, announced: bool, open_plain: Callable[..., Any],
        open_secure: Callable[..., Any],
    ) -> None:
        self._places = [_parse(one, tls) for one in _split(address)]
        self.turn = 0  # how often the link has taken the next place; guarded by _lock
        self.address, self.credential = address, credential
        self.addresses = [place.address for place in self._places]
        self.reached = False  # a call has been answered
        self._announced = announced  # by the endpoint file, which a broker that was killed leaves behind
        self.closed = False
        self.agents: Mapping[str, Mapping[str, str]] = {}  # what .brokerd.yaml says of agents, by name
        #: The agents that clients of this connection have registered, by session and name.
        self.registered: Dict[Tuple[str, str], Registration] = {}
        if any(place.tls for place in self._places):
            tls.credentials()  # raises Invalid now and not at the first call
        options = [*_CHANNEL_OPTIONS, *(_REPLICA_OPTIONS if len(self._places) > 1 else [("grpc.keepalive_time_ms", 30_000)])]
        self._open: Callable[[Place], Any] = lambda place: (
            open_secure(place.target, tls.credentials(), options=[*options, *tls.options()]) if place.tls
            else open_plain(place.target, options=options))
        self._lock = threading.Lock()
        self._channel: Any = None  # guarded by _lock, as is _process
        self._process = 0

    def expected(self) -> bool:
        """Reports whether a broker that does not answer has replicas, or has left an endpoint file or a socket: it returns."""
        path = self.address[len("unix:"):] if self.address.startswith("unix:") else ""
        return self._announced or len(self._places) > 1 or (
            bool(path) and os.path.exists(path[2:] if path.startswith("//") else path))

    @property
    def _place(self) -> Place:
        return self._places[self.turn % len(self._places)]

    def turn_from(self, turn: int) -> None:
        """Takes the next place, unless another call has done so since the link had taken this turn."""
        with self._lock:
            if turn == self.turn and len(self._places) > 1:
                self.turn, self._channel = turn + 1, None  # gRPC closes a channel that nothing uses any more

    def explain(self, failure: errors.BrokerError) -> errors.BrokerError:
        """Returns the error of a call, with the reason if client and broker cannot agree on TLS."""
        place = self._place
        if failure.code is grpc.StatusCode.UNAVAILABLE and not failure.reason and place.host:
            problem = tls_.problem(place.host, place.port, place.tls)
            if problem:
                return errors.Unreachable(f"the broker at {place.address} {problem}", code=failure.code)
        return failure

    @property
    def channel(self) -> Any:
        with self._lock:
            if self.closed:
                raise errors.Closed("the client is closed")
            if self._channel is None or self._process != os.getpid():
                self._channel, self._process = self._open(self._place), os.getpid()
            return self._channel

    def withdraw(self, identity: Optional[Identity] = None) -> List[Registration]:
        """Ends the heartbeats of one agent, or of all, that this process has registered, and returns the registrations."""
        ended = []
        for key in [identity.key] if identity else list(self.registered):
            registration = self.registered.pop(key, None)
            if registration and registration.process == os.getpid():
                registration.beats.cancel()
                ended.append(registration)
        return ended

    def detach(self) -> Any:
        """Closes the link and returns its channel, for the caller to close; None if it has none."""
        self.withdraw()
        with self._lock:
            self.closed = True
            channel, self._channel = self._channel, None
            return channel if self._process == os.getpid() else None


@dataclass
class Registration:
    """An agent that a client has registered."""

    calls: Any  # that have registered it
    incarnation: int  # the newest that the broker has reported to this client
    beats: Any = None  # its heartbeats: an object with cancel()
    process: int = field(default_factory=os.getpid)  # that has registered it

    @property
    def own(self) -> Any:
        """Calls that the broker refuses once another program has registered the agent."""
        return self.calls.at_incarnation(self.incarnation)


def _split(address: str) -> List[str]:
    """Splits addresses at their commas. After one in the path of a socket, nothing begins that could be an address."""
    parts: List[str] = []
    for part in address.split(","):
        one = part.strip()
        begins = one.startswith(("unix:", "tls://")) or ":" in one and "/" not in one
        if begins or not parts:
            parts.append(one)
        else:
            parts[-1] += "," + part
    return parts


def _parse(address: str, tls: tls_.TLS) -> Place:
    """Returns where an address leads, with the settings for TLS if the connection speaks it."""
    if address.startswith("unix:"):
        return Place(address, address, "", 0, None)
    secure = address.startswith("tls://")
    target = address[len("tls://"):] if secure else address
    host, colon, port = target.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise errors.Invalid(f"address {address!r} is none of unix:///path/of/socket, tls://host:port and host:port")
    host = host.strip("[]")
    if secure or tls != tls_.TLS():
        return Place(address, target, host, int(port), tls)
    if not _loopback(host):
        raise errors.Invalid(f"address {address!r} is not on this machine, which needs TLS: write tls://{address}")
    return Place(address, target, host, int(port), None)


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Identified:
    """A channel for generated stubs whose calls carry an identity and have a deadline."""

    def __init__(self, link: Link, identity: Identity, timeout: float) -> None:
        self._link, self._metadata, self._timeout = link, identity.metadata(link.credential), timeout

    def unary_unary(self, path: str, **serializers: Any) -> Any:
        return _Method(self, "unary_unary", path, serializers, {"timeout": self._timeout})

    def unary_stream(self, path: str, **serializers: Any) -> Any:
        return _Method(self, "unary_stream", path, serializers, {})

    def stream_unary(self, path: str, **serializers: Any) -> Any:
        return _Method(self, "stream_unary", path, serializers, {})

    def stream_stream(self, path: str, **serializers: Any) -> Any:
        return _Method(self, "stream_stream", path, serializers, {})


class _Method:
    def __init__(
        self, channel: Identified, arity: str, path: str, serializers: Dict[str, Any], defaults: Dict[str, Any],
    ) -> None:
        self._channel, self._arity, self._path = channel, arity, path
        self._serializers, self._defaults = serializers, defaults

    @property
    def streams(self) -> bool:
        """Reports whether a call has several responses."""
        return self._arity.endswith("stream")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._method()(*args, **self._complete(kwargs))

    def future(self, *args: Any, **kwargs: Any) -> Any:
        return self._method().future(*args, **self._complete(kwargs))

    def _method(self) -> Any:
        return getattr(self._channel._link.channel, self._arity)(self._path, **self._serializers)

    def _complete(self, kwargs: Dict[str, Any]) -> Dict[str, Any]:
        metadata = [*self._channel._metadata, *(kwargs.pop("metadata", None) or ())]
        return {**self._defaults, **kwargs, "metadata": metadata}


class Stubs:
    """The generated stub of every service. Their calls carry the identity of the client.

    A unary call has the client's timeout unless it gives another one. It raises grpc.RpcError and is
    not repeated.
    """

    def __init__(self, channel: Any) -> None:
        self.admin = admin_pb2_grpc.AdminServiceStub(channel)
        self.agents = agent_pb2_grpc.AgentServiceStub(channel)
        self.artifacts = artifact_pb2_grpc.ArtifactServiceStub(channel)
        self.blockers = blocker_pb2_grpc.BlockerServiceStub(channel)
        self.catalog = catalog_pb2_grpc.CatalogServiceStub(channel)
        self.channels = channel_pb2_grpc.ChannelServiceStub(channel)
        self.credentials = credential_pb2_grpc.CredentialServiceStub(channel)
        self.decisions = decision_pb2_grpc.DecisionServiceStub(channel)
        self.events = event_pb2_grpc.EventServiceStub(channel)
        self.handoffs = handoff_pb2_grpc.HandoffServiceStub(channel)
        self.locks = lock_pb2_grpc.LockServiceStub(channel)
        self.messages = message_pb2_grpc.MessageServiceStub(channel)
        self.sessions = session_pb2_grpc.SessionServiceStub(channel)
        self.state = state_pb2_grpc.StateServiceStub(channel)
        self.tasks = task_pb2_grpc.TaskServiceStub(channel)
        self.tokens = token_pb2_grpc.TokenServiceStub(channel)
        self.votes = vote_pb2_grpc.VoteServiceStub(channel)


class Calls:
    """The calls of one identity on one link: what both kinds of client have in common."""

    def __init__(self, link: Link, identity: Identity, timeout: float) -> None:
        self.link, self.identity, self.timeout = link, identity, timeout
        self.stubs = Stubs(Identified(link, identity, timeout))
        self.losses: List[agent_pb2.Loss] = []  # that registrations and heartbeats have reported

    def background(self, steps: Steps[None]) -> Any:
        """Runs steps beside the caller until they end, or until cancel() of the returned object."""
        raise NotImplementedError

    def at_incarnation(self, incarnation: int) -> Calls:
        """Returns calls that the broker refuses once the agent has registered again."""
        return type(self)(self.link, dataclasses.replace(self.identity, incarnation=incarnation), self.timeout)

    def method(self, service: str, name: str) -> Any:
        return getattr(getattr(self.stubs, service), name)

    def deadline(self, call: Call) -> float:
        """Returns the seconds that one attempt at a call may take."""
        return call.wait + (self.timeout if call.timeout is None else call.timeout)

    def retry(self, call: Call) -> Retry:
        return Retry(self.link, self.timeout if call.patience is None else call.patience)


class Retry:
    """The attempts at one call or one stream: they are repeated while the broker restarts, and at the next of its replicas."""

    def __init__(self, link: Link, patience: float) -> None:
        self._link, self._patience = link, patience  # seconds without an answer
        self._pause = 0.0
        self._turn = link.turn  # of the link when the attempt began
        self._gives_up: Optional[float] = None

    def answered(self) -> None:
        """Notes that the broker has answered: the next failure is the first one again."""
        self._link.reached, self._pause, self._gives_up = True, 0.0, None

    def pause(self, error: grpc.RpcError) -> float:
        """Returns the seconds before the next attempt after error, or raises it as a BrokerError."""
        failure = errors.from_rpc(error, *self._link.addresses)
        # The deadline of an attempt is later than any answer: a replica without one is frozen or cut off.
        silent = failure.code is grpc.StatusCode.DEADLINE_EXCEEDED and not failure.reason and len(self._link.addresses) > 1
        repeatable = silent or failure.code in (_PATIENT if self._patience == FOREVER else _TRANSIENT)
        if self._link.closed or not repeatable or (
                failure.reason in _FINAL or isinstance(failure, errors.Exhausted) and failure.retry_after is None):
            raise self._link.explain(failure) from None
        if silent or failure.code is grpc.StatusCode.UNAVAILABLE:
            self._link.turn_from(self._turn)
        self._turn = self._link.turn
        now = time.monotonic()
        if self._gives_up is None:
            expected = min(self._patience, DEFAULT_TIMEOUT) if self._link.expected() else 0.0
            self._gives_up = now + (self._patience if self._link.reached else expected)
        if now >= self._gives_up:
            raise self._link.explain(failure) from None
        return max(self.ended(), failure.retry_after or 0.0)

    def ended(self) -> float:
        """Returns the seconds before the next attempt after a stream that the broker has ended in good order."""
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        return random.uniform(self._pause / 2, self._pause)


def request_of(call: Call) -> Any:
    """Returns what the stub is called with, under a request id: a repeated call is executed once."""
    if isinstance(call.request, tuple):
        return iter(call.request)
    request: Any = call.request
    if "request_id" in request.DESCRIPTOR.fields_by_name and not request.request_id:
        request.request_id = request_id()
    return request


def request_id() -> str:
    """Returns a UUID of version 7: the broker's index of request ids grows at its end with them."""
    stamp = int(time.time() * 1000) << 80
    return str(uuid.UUID(int=stamp | 7 << 76 | random.getrandbits(12) << 64 | 2 << 62 | random.getrandbits(62)))
