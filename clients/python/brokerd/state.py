"""Shared state: versioned values by key, and documents that grow by entries."""

from __future__ import annotations

from datetime import datetime
from itertools import groupby
from typing import Any, Iterator, List, NamedTuple, Optional

from .errors import NotFound
from .operation import Call, Position, Steps, operation, reader
from .v1 import state_pb2 as pb
from .values import Seconds, decode, duration, encode, moment


class Entry:
    """One key at one version. `proto` is the entry of the API with every field."""

    def __init__(self, proto: pb.StateEntry, entries: Optional[List[pb.DocumentEntry]] = None) -> None:
        self.proto = proto
        #: The entries of a document.
        self.entries = entries or []

    @property
    def namespace(self) -> str:
        return self.proto.namespace

    @property
    def key(self) -> str:
        return self.proto.key

    @property
    def value(self) -> Any:
        """The value: a str, int or bool, or the decoded JSON. None for a document and a deleted key."""
        kind = self.proto.value.WhichOneof("value")
        if kind == "json_value":
            return decode(self.proto.value.json_value)
        return getattr(self.proto.value, kind) if kind else None

    @property
    def version(self) -> int:
        return self.proto.version

    @property
    def revision(self) -> int:
        return self.proto.revision

    @property
    def author(self) -> str:
        return self.proto.author

    @property
    def changed_at(self) -> datetime:
        return moment(self.proto.changed_at)

    @property
    def deleted(self) -> bool:
        return self.proto.deleted

    def __repr__(self) -> str:
        return f"<Entry {self.namespace}/{self.key} version {self.version}: {self.value!r}>"


def _value(value: Any) -> pb.StateValue:
    if isinstance(value, str):
        return pb.StateValue(string_value=value)
    if isinstance(value, bool):
        return pb.StateValue(boolean_value=value)
    if isinstance(value, int) and -2**63 <= value < 2**63:
        return pb.StateValue(integer_value=value)
    return pb.StateValue(json_value=encode(value) or "null")


class Listing(NamedTuple):
    """Keys, and the revision at which the list is true: watch after it to miss nothing."""

    entries: List[Entry]
    revision: int


class Watch(Position[List[Entry]]):
    """A position in the changes of keys."""

    service, method = "state", "WatchState"

    def __init__(self, namespace: str, prefix: str, after: Optional[int]) -> None:
        self._namespace, self._prefix, self._after = namespace, prefix, after

    def request(self) -> pb.WatchStateRequest:
        return pb.WatchStateRequest(namespace=self._namespace, key_prefix=self._prefix, after_revision=self._after)

    def read(self, frame: pb.WatchStateResponse) -> Iterator[List[Entry]]:
        for _, changes in groupby(frame.changes, lambda change: change.revision):
            yield [Entry(change) for change in changes]
        self._after = frame.revision


class StateOperations:
    """The operations of `client.state`."""

    @operation
    def get(self, key: str, *, namespace: str = "") -> Steps[Optional[Entry]]:
        """Returns a key; of a document, with all entries. None if there is none."""
        request = pb.GetStateRequest(namespace=namespace, key=key)
        entries: List[pb.DocumentEntry] = []
        while True:
            try:
                answer: pb.GetStateResponse = yield Call("state", "GetState", request)
            except NotFound as error:
                if error.reason != "KEY_NOT_FOUND":
                    raise
                return None
            entries.extend(answer.entries)
            if answer.last_entry >= answer.entry.entries:
                return Entry(answer.entry, entries)
            request.after_entry = answer.last_entry

    @operation
    def put(
        self, key: str, value: Any, *, namespace: str = "", if_revision: Optional[int] = None,
        ttl: Optional[Seconds] = None, own: Optional[bool] = None, task_id: Optional[str] = None, request_id: str = "",
    ) -> Steps[Entry]:
        """Writes a key, and returns it without its value. A value that is no str, int or bool becomes JSON.

        With if_revision, only if the key still has this revision (0 = it does not exist). Otherwise
        Conflict (STATE_CHANGED), with the present one in `facts["revision"]`.
        """
        request = pb.PutStateRequest(
            request_id=request_id, namespace=namespace, key=key, value=_value(value), compare_revision=if_revision,
            ttl=duration(ttl), own=own, task_id=task_id)
        answer: pb.PutStateResponse = yield Call("state", "PutState", request)
        return Entry(answer.entry)

    @operation
    def append(
        self, key: str, text: str, *, namespace: str = "", task_id: Optional[str] = None, request_id: str = "",
    ) -> Steps[int]:
        """Adds an entry of Markdown to a document, and returns its number."""
        request = pb.AppendStateRequest(request_id=request_id, namespace=namespace, key=key, text=text, task_id=task_id)
        answer: pb.AppendStateResponse = yield Call("state", "AppendState", request)
        return answer.number

    @operation
    def delete(self, key: str, *, namespace: str = "", if_revision: Optional[int] = None) -> Steps[bool]:
        """Removes a key, and returns whether it existed. if_revision as in put."""
        request = pb.DeleteStateRequest(namespace=namespace, key=key, compare_revision=if_revision)
        answer: pb.DeleteStateResponse = yield Call("state", "DeleteState", request)
        return answer.deleted

    @operation
    def list(self, prefix: str = "", *, namespace: str = "", values: bool = True) -> Steps[Listing]:
        """Returns the keys that begin with prefix, by namespace and name, and the revision of the list."""
        request = pb.ListStateRequest(namespace=namespace, key_prefix=prefix, values=values, page_size=1000)
        found: List[Entry] = []
        revision = 0
        while True:
            page: pb.ListStateResponse = yield Call("state", "ListState", request)
            found.extend(Entry(entry) for entry in page.entries)
            revision = revision or page.revision
            request.page_token = page.next_page_token
            if not request.page_token:
                return Listing(found, revision)

    @reader
    def watch(self, prefix: str = "", *, namespace: str = "", after: Optional[int] = None) -> Watch:
        """Yields the changes of keys, deletions included: all of one revision at a time, in order.

        It begins after the given revision, or with the changes from the first step on.

        When the connection breaks, the iterator continues after the last change. OutOfRange
        (STATE_COMPACTED) if the changes after the revision are not kept any more.
        """
        return Watch(namespace, prefix, after)
