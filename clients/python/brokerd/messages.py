"""Messages: what agents send to each other, claim, answer and acknowledge."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, TypedDict, Union

from .job import Job
from .operation import Call, Position, Steps, operation, reader
from .v1 import channel_pb2
from .v1 import message_pb2 as pb
from .values import Seconds, Time, decode, duration, encode, listed, moment, seconds, timestamp

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: The answer to a send: id, revision, recipients and warnings.
Receipt = pb.SendResult

_LONGEST_SUBJECT = 200  # bytes of a text that becomes the subject
_LONGEST_ERROR = 4096  # bytes


class Message:
    """A message as its recipient sees it. `proto` is the message of the API with every field."""

    def __init__(self, proto: pb.Message, delivery: Optional[pb.Delivery] = None) -> None:
        self.proto = proto
        #: The recipient's copy: its state, attempts and holder. None where the call returns none.
        self.delivery = delivery

    @property
    def id(self) -> str:
        return self.proto.id

    @property
    def revision(self) -> int:
        return self.proto.revision

    @property
    def sender(self) -> str:
        return self.proto.sender

    @property
    def type(self) -> str:
        return self.proto.type

    @property
    def type_as_sent(self) -> str:
        """The type as the sender wrote it, such as TaskAssignment; empty if type is the same."""
        return self.proto.type_as_sent

    @property
    def subject(self) -> str:
        return self.proto.subject

    @property
    def body(self) -> str:
        return self.proto.body

    @property
    def text(self) -> str:
        """The body, or else the subject."""
        return self.proto.body or self.proto.subject

    @property
    def payload(self) -> Any:
        """The decoded JSON payload; None without one."""
        return decode(self.proto.payload)

    @property
    def labels(self) -> Dict[str, str]:
        return dict(self.proto.labels)

    @property
    def task_id(self) -> str:
        return self.proto.task_id

    @property
    def thread_id(self) -> str:
        return self.proto.thread_id

    @property
    def created_at(self) -> datetime:
        return moment(self.proto.created_at)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.revision} {self.type} from {self.sender}: {self.text[:60]!r}>"


class Claim(Message, Job):
    """A message that the agent holds. `id` is that of the message, `claim_id` that of the claim."""

    def __init__(self, claimed: pb.ClaimedMessage) -> None:
        Message.__init__(self, claimed.message)
        Job.__init__(self)
        self.claim_id = claimed.claim_id
        #: The number of this attempt, from 1, and of the last one.
        self.attempt, self.max_attempts = claimed.attempt, claimed.max_attempts
        #: Where it came from: the agent's name, role:NAME or channel:NAME.
        self.mailbox = claimed.mailbox
        #: The agent held it before this call.
        self.resumed = claimed.resumed


def target(to: str) -> pb.Target:
    """Reads a receiver: builder-1, role:builder, channel:general, builder-*, everyone."""
    kind, colon, name = to.partition(":")
    if to in ("everyone", "all", "ALL", "*"):
        return pb.Target(everyone=True)
    if colon and kind == "role":
        return pb.Target(role=name)
    if colon and kind == "channel":
        return pb.Target(channel=name)
    if "*" in to or "?" in to:
        return pb.Target(pattern=to)
    return pb.Target(agent=to)


class MessageOptions(TypedDict, total=False):
    """The options of a message. Times are datetimes, or seconds from now."""

    type: str  # such as task_assignment; default "message"
    subject: str  # one line
    body: str
    payload: Any  # a value that becomes JSON
    priority: int  # 1 to 10, 10 first; default 5
    channel: str  # a label beside another receiver
    task_id: str
    thread_id: str  # default: the thread of in_reply_to, else the message's own
    correlation_id: str
    in_reply_to: str  # id or revision of the message that this one answers
    labels: Mapping[str, str]
    files: Iterable[Union[str, pb.FileReference]]
    artifacts: Iterable[str]
    ttl: Seconds  # how long a recipient has to finish it
    not_before: Time
    ordering_key: str
    max_attempts: int
    requires_response: bool
    response_deadline: Time
    resend_after: Seconds
    reach: int  # REACH_ALL: a copy for every agent of a role; REACH_ONE: for one of a channel


def file_references(files: Iterable[Union[str, pb.FileReference]]) -> List[pb.FileReference]:
    return [pb.FileReference(path=file) if isinstance(file, str) else file for file in files]


_CONVERSIONS: Dict[str, Callable[[Any], Any]] = {
    "payload": encode, "files": file_references, "ttl": duration, "resend_after": duration, "not_before": timestamp,
    "response_deadline": timestamp,
}


def message(to: Optional[str], text: str, options: MessageOptions) -> pb.Message:
    """Builds a message. A text of one short line becomes the subject, and any other text the body."""
    fields: Dict[str, Any] = dict(options)
    unknown = fields.keys() - MessageOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"a message has no option {', '.join(sorted(unknown))}")
    for name in fields.keys() & _CONVERSIONS.keys():
        fields[name] = _CONVERSIONS[name](fields[name])
    if text:
        short = "subject" not in fields and "\n" not in text and len(text.encode()) <= _LONGEST_SUBJECT
        fields["subject" if short else "body"] = text
    return pb.Message(target=None if to is None else target(to), **fields)


def _id(item: Union[Message, str]) -> str:
    """Returns the id of a claim or of the agent's copy of a message."""
    return item.claim_id if isinstance(item, Claim) else item.id if isinstance(item, Message) else item


class Inbox(Position[Message]):
    """A position in the mailbox of an agent."""

    service, method = "messages", "Receive"

    def __init__(self, after: int, filter: pb.MessageFilter) -> None:
        self._after, self._filter = after, filter

    def request(self) -> pb.ReceiveRequest:
        return pb.ReceiveRequest(after_revision=self._after, follow=True, filter=self._filter)

    def read(self, frame: pb.ReceiveResponse) -> Iterator[Message]:
        for item in frame.items:
            yield Message(item.message, item.delivery)
        self._after = max(self._after, frame.revision)


class MessageOperations:
    """The operations on messages of a client."""

    @operation
    def send(
        self, to: str, text: str = "", *, request_id: str = "", **options: Unpack[MessageOptions],
    ) -> Steps[Receipt]:
        """Sends a message, and returns its receipt once the message is on disk.

        to is an agent (builder-1), a role (role:builder), a channel (channel:general), a pattern
        (builder-*) or everyone. The options are those of MessageOptions: type, subject, body, payload
        (a value that becomes JSON), priority, task_id, thread_id, labels and more. A repeated send with
        the same request_id (a UUID) is executed once.
        """
        request = pb.SendMessagesRequest(request_id=request_id, messages=[message(to, text, options)])
        answer: pb.SendMessagesResponse = yield Call("messages", "SendMessages", request)
        return answer.results[0]

    @operation
    def claim(
        self, *, wait: Seconds = 0, claim_for: Optional[Seconds] = None, types: Iterable[str] = (),
        mailboxes: Iterable[str] = (), consumer: str = "", lowest_priority: int = 0,
    ) -> Steps[Optional[Claim]]:
        """Claims the next message: one that the agent already holds, or a new one. None if there is none.

        wait is how long to wait for a message, in seconds. The claim lasts claim_for (default 30 s);
        `extend` gives it more time.
        """
        request = pb.ClaimMessagesRequest(
            consumer=consumer, mailboxes=listed(mailboxes), types=listed(types), lowest_priority=lowest_priority, max=1,
            wait=duration(wait), claim_for=duration(claim_for))
        answer: pb.ClaimMessagesResponse = yield Call("messages", "ClaimMessages", request, seconds(wait))
        return Claim(answer.claims[0]) if answer.claims else None

    @operation
    def ask(
        self, to: str, text: str = "", *, timeout: Seconds = 30, request_id: str = "",
        **options: Unpack[MessageOptions],
    ) -> Steps[Optional[Message]]:
        """Sends a question and returns its reply; None if there is none within timeout, or at once if none can come.

        None can come when the question has become a dead letter, has expired, was cancelled, or was acknowledged
        without a reply: `stubs.messages.Ask` says which. A later reply is ordinary mail. Precondition (NO_RESPONDERS): no agent is meant.
        """
        request = pb.AskRequest(request_id=request_id, message=message(to, text, options), wait=duration(timeout))
        answer: pb.AskResponse = yield Call("messages", "Ask", request, seconds(timeout))
        return Message(answer.reply) if answer.HasField("reply") else None

    @operation
    def reply(
        self, to: Union[Message, str], text: str = "", *, ack: Optional[bool] = None, request_id: str = "",
        **options: Unpack[MessageOptions],
    ) -> Steps[Receipt]:
        """Answers a message. With ack, the default for a Claim, it finishes the claim in the same transaction."""
        request = pb.ReplyRequest(
            request_id=request_id, id=_id(to), message=message(None, text, options),
            ack=isinstance(to, Claim) if ack is None else ack)
        answer: pb.ReplyResponse = yield Call("messages", "Reply", request)
        return answer.result

    @operation
    def inbox(
        self, *, limit: int = 100, mark_read: bool = False, include_queues: bool = False, types: Iterable[str] = (),
        thread_id: str = "", task_id: str = "",
    ) -> Steps[List[Message]]:
        """Returns the unfinished mail of the agent, oldest first; include_queues adds its role's and channels'.

        A client without an agent's name reads the mailbox that all operators share.
        """
        request = pb.ListMessagesRequest(
            box=pb.MESSAGE_BOX_INBOX,
            filter=pb.MessageFilter(types=listed(types), thread_id=thread_id, task_id=task_id),
            page_size=min(limit, 1000), mark_read=mark_read, include_queues=include_queues)
        found: List[Message] = []
        while len(found) < limit:
            page: pb.ListMessagesResponse = yield Call("messages", "ListMessages", request)
            found.extend(Message(item.message, item.delivery) for item in page.items)
            request.page_token = page.next_page_token
            if not request.page_token:
                break
        return found[:limit]

    @reader
    def follow(
        self, *, after: int = 0, types: Iterable[str] = (), senders: Iterable[str] = (), thread_id: str = "",
        task_id: str = "",
    ) -> Inbox:
        """Yields the agent's mail in order of arrival: the unfinished mail, then what comes. It claims nothing.

        When the connection breaks, the iterator continues after the last message: it loses and repeats
        none. after is the `delivery.arrival` of the last message of an earlier iteration.
        """
        return Inbox(after, pb.MessageFilter(
            types=listed(types), senders=listed(senders), thread_id=thread_id, task_id=task_id))

    @operation
    def ack(self, *items: Union[Message, str]) -> Steps[List[str]]:
        """Finishes claims and unclaimed mail; without an argument, the only open claim. Returns their ids."""
        request = pb.AckMessagesRequest(ids=[_id(item) for item in items])
        answer: pb.AckMessagesResponse = yield Call("messages", "AckMessages", request)
        return list(answer.acked)

    @operation
    def nack(
        self, claim: Union[Claim, str] = "", error: str = "", *, delay: Optional[Seconds] = None, fatal: bool = False,
    ) -> Steps[None]:
        """Gives a claim up as failed. The broker delivers the message again after delay (default: a growing one).

        With fatal, and after the last attempt, the message becomes a dead letter.
        """
        nack = pb.Nack(claim_id=_id(claim), error=shortened(error), delay=duration(delay), fatal=fatal)
        yield Call("messages", "NackMessages", pb.NackMessagesRequest(nacks=[nack]))

    @operation
    def extend(self, claim: Union[Claim, str] = "", claim_for: Optional[Seconds] = None) -> Steps[None]:
        """Makes a claim last for claim_for from now on, or as long as before."""
        extension = pb.Extension(claim_id=_id(claim), claim_for=duration(claim_for))
        yield Call("messages", "ExtendClaims", pb.ExtendClaimsRequest(extensions=[extension]))

    @operation
    def release(self, *claims: Union[Claim, str]) -> Steps[None]:
        """Returns claims to their mailbox; no attempt counts. Without an argument, the only open claim."""
        yield Call("messages", "ReleaseClaims", pb.ReleaseClaimsRequest(ids=[_id(claim) for claim in claims]))

    @operation
    def subscribe(self, channel: str) -> Steps[None]:
        """Subscribes the agent to a channel: what is sent to it from now on arrives in the agent's mailbox."""
        yield Call("channels", "SubscribeChannel", channel_pb2.SubscribeChannelRequest(channel=channel))

    @operation
    def unsubscribe(self, channel: str) -> Steps[None]:
        """Ends the subscription. Mail that has arrived stays."""
        yield Call("channels", "UnsubscribeChannel", channel_pb2.UnsubscribeChannelRequest(channel=channel))


def shortened(error: str) -> str:
    """Makes the text of an error fit for the broker, which keeps 4 KiB."""
    text = error.replace("\x00", "").encode("utf-8", "replace")
    if len(text) > _LONGEST_ERROR:
        text = text[:_LONGEST_ERROR - 3] + "…".encode()
    return text.decode("utf-8", "ignore")
