"""Events: the log of every change, and what agents publish there."""

from __future__ import annotations

from typing import Iterable, Iterator, List, Mapping, Optional

from .operation import Call, Position, Steps, operation, reader
from .v1 import event_pb2 as pb
from .values import Time, encode, enum, listed, timestamp


class Log(Position[pb.Event]):
    """A position in the log."""

    service, method = "events", "SubscribeEvents"

    def __init__(self, filter: pb.EventFilter, after: Optional[int]) -> None:
        self._filter, self._after = filter, after

    def request(self) -> pb.SubscribeEventsRequest:
        return pb.SubscribeEventsRequest(filter=self._filter, after_revision=self._after)

    def read(self, frame: pb.SubscribeEventsResponse) -> Iterator[pb.Event]:
        yield from frame.events
        self._after = frame.revision


def _filter(
    types: Iterable[str], sources: Iterable[str], task_id: str, lowest_severity: str, since: Optional[Time],
) -> pb.EventFilter:
    return pb.EventFilter(
        types=listed(types), sources=listed(sources), task_id=task_id,
        lowest_severity=enum(pb.Severity, lowest_severity), since=timestamp(since))


class EventOperations:
    """The operations of `client.events`."""

    @operation
    def publish(
        self, type: str, summary: str = "", *, details: Optional[Mapping[str, object]] = None, severity: str = "",
        related: Iterable[str] = (), task_id: str = "", blocker: bool = False, request_id: str = "",
    ) -> Steps[int]:
        """Appends an event, such as build.finished, and returns its revision. severity is debug to critical.

        blocker also raises or resolves a blocker, with the types BlockerEncountered and BlockerResolved."""
        request = pb.PublishEventRequest(
            request_id=request_id, type=type, summary=summary, details=encode(details),
            severity=enum(pb.Severity, severity), related=listed(related), task_id=task_id, blocker=blocker)
        answer: pb.PublishEventResponse = yield Call("events", "PublishEvent", request)
        return answer.revision

    @operation
    def list(
        self, *, after: int = 0, limit: int = 100, types: Iterable[str] = (), sources: Iterable[str] = (),
        task_id: str = "", lowest_severity: str = "", since: Optional[Time] = None, newest_first: bool = False,
    ) -> Steps[List[pb.Event]]:
        """Returns events after a revision, at most limit. A type may be a prefix such as message.*"""
        request = pb.ListEventsRequest(
            filter=_filter(types, sources, task_id, lowest_severity, since), after_revision=after,
            page_size=min(limit, 1000), newest_first=newest_first)
        found: List[pb.Event] = []
        while len(found) < limit:
            page: pb.ListEventsResponse = yield Call("events", "ListEvents", request)
            found.extend(page.events)
            request.page_token = page.next_page_token
            if not request.page_token:
                break
        return found[:limit]

    @reader
    def follow(
        self, *, after: Optional[int] = None, types: Iterable[str] = (), sources: Iterable[str] = (), task_id: str = "",
        lowest_severity: str = "", since: Optional[Time] = None,
    ) -> Log:
        """Yields events without end: after a revision (0 = the oldest that is kept), or from the first step on.

        When the connection breaks, the iterator continues after the last event: it loses and repeats
        none. OutOfRange (EVENTS_REMOVED) if the events after the revision are not kept any more.
        """
        return Log(_filter(types, sources, task_id, lowest_severity, since), after)
