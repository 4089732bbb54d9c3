"""Decisions: reviews, plans, shutdowns and custom decisions that one agent owes another."""

from __future__ import annotations

import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Union

from .messages import file_references
from .operation import Call, Steps, operation
from .v1 import decision_pb2 as pb
from .v1.message_pb2 import FileReference
from .values import Seconds, Time, duration, encode, enum, listed, seconds, timestamp

_LONGEST_WAIT = 3600.0  # seconds, of one call
_PENDING = (pb.DECISION_STATE_OPEN, pb.DECISION_STATE_ESCALATED)


def _content(
    body: str, payload: Any, files: Iterable[Union[str, FileReference]], artifacts: Iterable[str],
) -> Optional[pb.DecisionContent]:
    if not (body or payload is not None or files or artifacts):
        return None
    return pb.DecisionContent(
        body=body, payload=encode(payload), files=file_references(files), artifacts=listed(artifacts))


def _feedback(pieces: Iterable[Union[str, Mapping[str, Any], pb.Feedback]]) -> List[pb.Feedback]:
    """Reads pieces of feedback: a text, or {"text", "severity", "file", "line"}."""
    found = []
    for piece in pieces:
        if isinstance(piece, str):
            piece = pb.Feedback(text=piece)
        elif isinstance(piece, Mapping):
            piece = pb.Feedback(**{**piece, "severity": enum(pb.FeedbackSeverity, piece.get("severity", ""))})
        found.append(piece)
    return found


class DecisionOperations:
    """The operations of `client.decisions`. Names of kinds are review, plan, shutdown and custom."""

    @operation
    def open(
        self, kind: str, to: str, *, title: str = "", scope: str = "", body: str = "", payload: Any = None,
        files: Iterable[Union[str, FileReference]] = (), artifacts: Iterable[str] = (), task_id: str = "",
        verdicts: Iterable[str] = (), deadline: Optional[Time] = None, max_rounds: int = 0, pass_token: bool = False,
        request_id: str = "",
    ) -> Steps[pb.Decision]:
        """Asks an agent (critic-1) or a role (role:critic) for a decision. A custom one names its verdicts."""
        role = to.startswith("role:")
        addressee: Dict[str, Any] = {"role": to[len("role:"):]} if role else {"agent": to}
        request = pb.OpenDecisionRequest(
            request_id=request_id, kind=enum(pb.DecisionKind, kind), title=title, scope=scope, task_id=task_id,
            content=_content(body, payload, files, artifacts), verdicts=listed(verdicts), deadline=timestamp(deadline),
            max_rounds=max_rounds, pass_token=pass_token, **addressee)
        answer: pb.OpenDecisionResponse = yield Call("decisions", "OpenDecision", request)
        return answer.decision

    @operation
    def decide(
        self, decision: str, verdict: str, reason: str = "", *, until: Optional[Time] = None, round: int = 0,
        feedback: Iterable[Union[str, Mapping[str, Any], pb.Feedback]] = (), request_id: str = "",
    ) -> Steps[pb.Decision]:
        """Gives the verdict, such as approve, revise or reject. until is for the verdict defer."""
        request = pb.DecideRequest(
            request_id=request_id, id=decision, verdict=verdict, reason=reason, feedback=_feedback(feedback),
            until=timestamp(until), round=round)
        answer: pb.DecideResponse = yield Call("decisions", "Decide", request)
        return answer.decision

    @operation
    def resubmit(
        self, decision: str, *, title: str = "", body: str = "", payload: Any = None,
        files: Iterable[Union[str, FileReference]] = (), artifacts: Iterable[str] = (), pass_token: bool = False,
        request_id: str = "",
    ) -> Steps[pb.Decision]:
        """Submits the next round after the verdict revise. pass_token passes the token from this round on."""
        request = pb.ResubmitDecisionRequest(
            request_id=request_id, id=decision, title=title, content=_content(body, payload, files, artifacts),
            pass_token=pass_token)
        answer: pb.ResubmitDecisionResponse = yield Call("decisions", "ResubmitDecision", request)
        return answer.decision

    @operation
    def cancel(self, decision: str, reason: str = "") -> Steps[pb.Decision]:
        """Withdraws a decision."""
        request = pb.CancelDecisionRequest(id=decision, reason=reason)
        answer: pb.CancelDecisionResponse = yield Call("decisions", "CancelDecision", request)
        return answer.decision

    @operation
    def get(self, decision: str) -> Steps[pb.Decision]:
        """Returns a decision."""
        request = pb.GetDecisionRequest(id=decision)
        answer: pb.GetDecisionResponse = yield Call("decisions", "GetDecision", request)
        return answer.decision

    @operation
    def wait(self, decision: str, *, timeout: Optional[Seconds] = None) -> Steps[pb.Decision]:
        """Waits for the verdict of the round, and returns the decision as it is then or after timeout."""
        ends = None if timeout is None else time.monotonic() + seconds(timeout)
        while True:
            left = _LONGEST_WAIT if ends is None else max(0.0, min(_LONGEST_WAIT, ends - time.monotonic()))
            request = pb.GetDecisionRequest(id=decision, wait=duration(left))
            answer: pb.GetDecisionResponse = yield Call("decisions", "GetDecision", request, left)
            if answer.decision.state not in _PENDING or (ends is not None and time.monotonic() >= ends):
                return answer.decision

    @operation
    def list(
        self, *, states: Iterable[str] = (), kind: str = "", opener: str = "", owed_by: str = "", scope: str = "",
        task_id: str = "",
    ) -> Steps[List[pb.Decision]]:
        """Returns the decisions that match, the newest first, without content."""
        request = pb.ListDecisionsRequest(
            states=[enum(pb.DecisionState, state) for state in listed(states)], kind=enum(pb.DecisionKind, kind),
            opener=opener, owed_by=owed_by, scope=scope, task_id=task_id, page_size=1000)
        found: List[pb.Decision] = []
        while True:
            page: pb.ListDecisionsResponse = yield Call("decisions", "ListDecisions", request)
            found.extend(page.decisions)
            request.page_token = page.next_page_token
            if not request.page_token:
                return found
