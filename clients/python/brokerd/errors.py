"""The exceptions of the package: one class per kind, by what the caller can do about it.

Every refused call raises a BrokerError. `reason` is stable and made for programs (CLAIM_LOST); the
text is the broker's own, made for people, and names what to do.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, Optional, Tuple, Type, Union

import grpc

__all__ = [
    "BrokerError", "Busy", "Closed", "Conflict", "Denied", "Exhausted", "Invalid", "Lost", "NotFound",
    "OutOfRange", "Precondition", "Unreachable",
]


class BrokerError(Exception):
    """A call that the broker refused or could not answer."""

    def __init__(
        self, text: str, *, reason: str = "", code: Optional[grpc.StatusCode] = None,
        fields: Optional[Dict[str, str]] = None, facts: Optional[Dict[str, str]] = None,
        resource: str = "", retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(text)
        #: The text of the broker.
        self.text = text
        #: The stable reason, such as CLAIM_LOST; empty if the broker has not answered.
        self.reason = reason
        #: The gRPC code; None for an error that the client raises by itself.
        self.code = code
        #: The invalid fields of the request, each with what is wrong and what is allowed.
        self.fields = fields or {}
        #: Further facts for programs, such as the present `revision` of a key.
        self.facts = facts or {}
        #: The name of what does not exist.
        self.resource = resource
        #: Seconds after which a retry can succeed, where the broker says so; otherwise None.
        self.retry_after = retry_after


class NotFound(BrokerError):
    """The object does not exist in this session: `resource` is its name."""


class Conflict(BrokerError):
    """Another client was faster, or the name is taken: read again, then decide."""


class Busy(Conflict):
    """A lock or token was not granted in time: `obstacles` has the owners that are in the way."""

    def __init__(self, text: str, obstacles: Iterable[Any] = ()) -> None:
        super().__init__(text, reason="BUSY")
        self.obstacles = list(obstacles)


class Lost(BrokerError):
    """The claim, lock, token or task is not the caller's any more: stop working on it."""


class Precondition(BrokerError):
    """The state of the broker does not permit it: `reason` says why (AGENT_NOT_REGISTERED)."""


class Denied(BrokerError):
    """This caller is not permitted to do it, or is unknown."""


class Invalid(BrokerError):
    """The request can never succeed: `fields` names what to correct."""


class Exhausted(BrokerError):
    """A limit is reached. If waiting helps, `retry_after` has the seconds."""


class OutOfRange(BrokerError):
    """The position is not kept any more: `facts["oldest"]` is the oldest revision that is."""


class Unreachable(BrokerError):
    """No broker answers, or the broker cannot serve now."""


class Closed(BrokerError):
    """The client has been closed."""


_BY_CODE: Dict[grpc.StatusCode, Type[BrokerError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: Invalid,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: Conflict,
    grpc.StatusCode.ABORTED: Conflict,
    grpc.StatusCode.FAILED_PRECONDITION: Precondition,
    grpc.StatusCode.PERMISSION_DENIED: Denied,
    grpc.StatusCode.UNAUTHENTICATED: Denied,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Exhausted,
    grpc.StatusCode.OUT_OF_RANGE: OutOfRange,
    grpc.StatusCode.UNAVAILABLE: Unreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unreachable,
}

# These reasons win over the code.
_BY_REASON: Dict[str, Type[BrokerError]] = {
    reason: Lost for reason in (
        "CLAIM_LOST", "FENCE_LOST", "GRANTS_LOST", "LOCK_LOST", "STALE_INCARNATION", "TAKEN_OVER", "TASK_LOST",
        "TOKEN_LOST", "TOKEN_NOT_HELD",
    )
}

_AGENT = "brokerd-agent"  # the field of the metadata that names the agent


def from_rpc(error: Any, *addresses: str) -> BrokerError:
    """Returns the exception for a grpc.RpcError. The addresses of the broker are for the text if nothing answers."""
    code, text = error.code(), error.details() or ""
    trailers = {key: value for key, value in error.trailing_metadata() or ()}  # not dict(): grpc.aio has its own type
    reason = trailers.get("brokerd-reason", "")
    if isinstance(reason, bytes):
        reason = reason.decode()
    kind = _BY_REASON.get(reason, _BY_CODE.get(code, BrokerError))
    where, several = f"the broker at {' or '.join(addresses)}", len(addresses) > 1
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and not reason:
        text = f"{where} does not answer in time: " + (
            "its replicas are frozen, overloaded or cut off; see their logs, or restart them" if several
            else "its process is frozen or overloaded; see its log, or restart it")
    elif kind is Unreachable and not reason:
        text = f"{where} does not answer ({text}); " + (
            "start one of its replicas, or name others with BROKERD_ADDR" if several
            else "start one with `brokerctl up`, or name another with BROKERD_ADDR")
    details = _details(trailers.get("grpc-status-details-bin", b""))
    if reason == "AGENT_REQUIRED" or _AGENT in details.get("fields", ()):
        text = text.replace(f"{_AGENT}: ", "agent: ") + '; name it with agent="NAME" or BROKERD_AGENT'
    return kind(text, reason=reason, code=code, **details)


def _details(status: bytes) -> Dict[str, Any]:
    """Reads the details of a google.rpc.Status, without the package that has its types."""
    found: Dict[str, Any] = {}
    for any_ in _all(status, 3):
        name, value = _text(any_, 1).rpartition(".")[2], _first(any_, 2)
        if name == "ErrorInfo":
            found["facts"] = {_text(entry, 1): _text(entry, 2) for entry in _all(value, 3)}
        elif name == "BadRequest":
            found["fields"] = {_text(field, 1): _text(field, 2) for field in _all(value, 1)}
        elif name == "ResourceInfo":
            found["resource"] = _text(value, 2)
        elif name == "RetryInfo":
            duration = dict(_wire(_first(value, 1)))
            found["retry_after"] = float(duration.get(1, 0)) + float(duration.get(2, 0)) / 1e9
    return found


def _all(message: bytes, number: int) -> Iterator[bytes]:
    return (value for n, value in _wire(message) if n == number and isinstance(value, bytes))


def _first(message: bytes, number: int) -> bytes:
    return next(_all(message, number), b"")


def _text(message: bytes, number: int) -> str:
    return _first(message, number).decode()


def _wire(message: bytes) -> Iterator[Tuple[int, Union[int, bytes]]]:
    """Yields the fields of an encoded protobuf message that has only varints, texts and messages."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value, at = _varint(message, at)
        if key & 7 == 2:  # value is a length
            yield key >> 3, message[at:at + value]
            at += value
        else:
            yield key >> 3, value


def _varint(message: bytes, at: int) -> Tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
