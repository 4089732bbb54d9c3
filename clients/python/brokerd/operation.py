"""Operations are written once and run in both kinds of client.

An operation is a generator method. It yields a Call where it needs an answer of the broker, and
returns its result:

    @operation
    def acknowledge(self, claim: str) -> Steps[int]:
        answer = yield Call("messages", "AckMessages", AckMessagesRequest(ids=[claim]))
        return answer.revision

On a blocking client the method returns the result, on an asyncio client an awaitable of it. A
reader is the same for streams: it returns a Position, and the method returns an iterator, which
resumes at the position when the connection breaks.
"""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Generator, Generic, Iterable, Iterator, TypeVar, overload

from google.protobuf.message import Message

if TYPE_CHECKING:
    from typing import Awaitable

    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """One call of the API. wait is the time, in seconds, that the request permits the broker to wait."""

    service: str  # an attribute of Stubs
    method: str
    request: Message
    wait: float = 0.0


#: The generator of an operation whose result is a T. Its calls' errors are raised at the yield.
Steps = Generator[Call, Any, T]


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


class Awaiting:
    """Marks a class whose operations are coroutines."""

    async def _run(self, steps: Steps[T]) -> T:
        raise NotImplementedError

    def _read(self, position: Position[T]) -> AsyncIterator[T]:
        raise NotImplementedError


if TYPE_CHECKING:

    class operation(Generic[P, T]):
        def __init__(self, function: Callable[Concatenate[Any, P], Steps[T]]) -> None: ...
        @overload
        def __get__(self, instance: Blocking, owner: Any = None) -> Callable[P, T]: ...
        @overload
        def __get__(self, instance: Awaiting, owner: Any = None) -> Callable[P, Awaitable[T]]: ...
        @overload
        def __get__(self, instance: object, owner: Any = None) -> Callable[P, Steps[T]]: ...

    class reader(Generic[P, T]):
        def __init__(self, function: Callable[Concatenate[Any, P], Position[T]]) -> None: ...
        @overload
        def __get__(self, instance: Blocking, owner: Any = None) -> Callable[P, Iterator[T]]: ...
        @overload
        def __get__(self, instance: Awaiting, owner: Any = None) -> Callable[P, AsyncIterator[T]]: ...
        @overload
        def __get__(self, instance: object, owner: Any = None) -> Callable[P, Position[T]]: ...

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
