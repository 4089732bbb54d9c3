"""Operations are written once and run in both kinds of client.

An operation is a generator method. It yields a Call where it needs an answer of the broker, or a
Pause, and returns its result:

    @operation
    def acknowledge(self, claim: str) -> Steps[int]:
        answer = yield Call("messages", "AckMessages", AckMessagesRequest(ids=[claim]))
        return answer.revision

On a blocking client the method returns the result, on an asyncio client an awaitable of it. A
reader is the same for streams: it returns a Position, and the method returns an iterator, which
resumes at the position when the connection breaks. A grant returns the terms of a hold, and the
method returns the hold, which is a context manager.
"""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING, Any, AsyncIterator, Callable, Generator, Generic, Iterable, Iterator, Optional, Tuple, TypeVar,
    Union, overload,
)

from google.protobuf.message import Message

if TYPE_CHECKING:
    from typing import Awaitable

    from typing_extensions import Concatenate, ParamSpec

    from . import aio, blocking
    from .holds import Terms

    P = ParamSpec("P")

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """One call of the API. Its answer is the response, or a list of responses of a stream."""

    service: str  # an attribute of Stubs
    method: str
    request: Union[Message, Tuple[Message, ...]]  # several for a stream of requests
    wait: float = 0.0  # seconds that the request permits the broker to wait
    timeout: Optional[float] = None  # seconds of one attempt beyond wait; None = the client's timeout
    patience: Optional[float] = None  # seconds to repeat the call without an answer; None = the client's timeout


@dataclass(frozen=True)
class Pause:
    """Waits for some seconds."""

    seconds: float


#: The patience of work in the background: until the broker returns.
FOREVER = float("inf")

#: The generator of an operation whose result is a T. Its calls' errors are raised at the yield.
Steps = Generator[Union[Call, Pause], Any, T]


class Position(Generic[T]):
    """Where a reader of a stream is: everything before it has been yielded."""

    service: str
    method: str

    def request(self) -> Message:
        """Returns the request that resumes here."""
        raise NotImplementedError

    def read(self, frame: Any) -> Iterable[T]:
        """Yields the new items of a frame. Each one that is taken moves the position."""
        raise NotImplementedError


class Blocking:
    """Marks a class whose operations block."""

    def _run(self, steps: Steps[T]) -> T:
        raise NotImplementedError

    def _read(self, position: Position[T]) -> Iterator[T]:
        raise NotImplementedError

    def _hold(self, terms: Terms) -> blocking.hold.Hold:
        raise NotImplementedError


class Awaiting:
    """Marks a class whose operations are coroutines."""

    async def _run(self, steps: Steps[T]) -> T:
        raise NotImplementedError

    def _read(self, position: Position[T]) -> AsyncIterator[T]:
        raise NotImplementedError

    def _hold(self, terms: Terms) -> aio.hold.Hold:
        raise NotImplementedError


if TYPE_CHECKING:

    class operation(Generic[P, T]):
        def __init__(self, function: Callable[Concatenate[Any, P], Steps[T]]) -> None: ...
        @overload
        def __get__(self, instance: Blocking, owner: Any = None) -> Callable[P, T]: ...
        @overload
        def __get__(self, instance: Awaiting, owner: Any = None) -> Callable[P, Awaitable[T]]: ...
        def __get__(self, instance: Any, owner: Any = None) -> Any: ...

    class reader(Generic[P, T]):
        def __init__(self, function: Callable[Concatenate[Any, P], Position[T]]) -> None: ...
        @overload
        def __get__(self, instance: Blocking, owner: Any = None) -> Callable[P, Iterator[T]]: ...
        @overload
        def __get__(self, instance: Awaiting, owner: Any = None) -> Callable[P, AsyncIterator[T]]: ...
        def __get__(self, instance: Any, owner: Any = None) -> Any: ...

    class grant(Generic[P]):
        def __init__(self, function: Callable[Concatenate[Any, P], Terms]) -> None: ...
        @overload
        def __get__(self, instance: Blocking, owner: Any = None) -> Callable[P, blocking.hold.Hold]: ...
        @overload
        def __get__(self, instance: Awaiting, owner: Any = None) -> Callable[P, aio.hold.Hold]: ...
        def __get__(self, instance: Any, owner: Any = None) -> Any: ...

else:

    class _Method:
        """Binds a function to an instance, and runs what the function returns as the instance does."""

        run: str  # the method of the instance that runs it

        def __init__(self, function):
            self.steps = function
            functools.update_wrapper(self, function)

        def __get__(self, instance, owner=None):
            if instance is None:
                return self.steps
            function = types.MethodType(self.steps, instance)

            @functools.wraps(function)
            def bound(*args, **kwargs):
                return getattr(instance, self.run)(function(*args, **kwargs))

            return bound

    class operation(_Method):
        run = "_run"

    class reader(_Method):
        run = "_read"

    class grant(_Method):
        run = "_hold"
