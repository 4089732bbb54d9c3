"""Tasks: pieces of work with dependencies, of which one agent at a time holds each."""

from __future__ import annotations

import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Union

from .job import Job
from .messages import shortened
from .operation import Call, Steps, operation
from .v1 import task_pb2 as pb
from .values import Seconds, duration, encode, enum, listed, seconds

_LONGEST_WAIT = 3600.0  # seconds, of one call


class TaskClaim(Job):
    """A task that the agent holds. `task` is the task of the API with every field."""

    def __init__(self, claimed: pb.ClaimTaskResponse) -> None:
        super().__init__()
        self.task = claimed.task
        #: The number of this attempt, from 1.
        self.attempt = claimed.attempt
        #: The agent held it before this call.
        self.resumed = claimed.resumed
        #: Names of artifacts that hold the result: the handler of `tasks.work` may add to it.
        self.artifacts: List[str] = []
        #: The attempts that have failed, each with its error.
        self.history = list(claimed.history)

    @property
    def id(self) -> str:
        return self.task.id

    @property
    def title(self) -> str:
        return self.task.title

    @property
    def description(self) -> str:
        return self.task.description

    @property
    def labels(self) -> Mapping[str, str]:
        return dict(self.task.labels)

    @property
    def fence(self) -> int:
        """The fence of the claim: the broker refuses changes with it once the claim has ended."""
        return self.task.fence

    def __repr__(self) -> str:
        return f"<TaskClaim {self.id} attempt {self.attempt}: {self.title!r}>"


def _names(task: Union[TaskClaim, str]) -> Dict[str, Any]:
    """Returns the fields of a request that name a task, and the claim of it."""
    return {"id": task.id, "fence": task.fence} if isinstance(task, TaskClaim) else {"id": task}


def result_text(result: Any) -> str:
    """Returns the result of a task as the broker stores it."""
    return result if isinstance(result, str) else encode(result)


class TaskOperations:
    """The operations of `client.tasks`."""

    @operation
    def create(
        self, title: str, *, id: str = "", description: str = "", labels: Optional[Mapping[str, str]] = None,
        priority: int = 0, role: str = "", assignee: str = "", capabilities: Iterable[str] = (),
        depends_on: Iterable[str] = (), parent: str = "", max_attempts: int = 0, stale_after: Optional[Seconds] = None,
        artifacts: Iterable[str] = (), request_id: str = "",
    ) -> Steps[pb.TaskBrief]:
        """Creates a task. It becomes ready when the tasks in depends_on are done."""
        task = pb.NewTask(
            id=id, title=title, description=description, labels=labels or {}, priority=priority, role=role,
            assignee=assignee, capabilities=listed(capabilities), depends_on=listed(depends_on), parent=parent,
            max_attempts=max_attempts, stale_after=duration(stale_after), artifacts=listed(artifacts))
        request = pb.CreateTasksRequest(request_id=request_id, tasks=[task])
        answer: pb.CreateTasksResponse = yield Call("tasks", "CreateTasks", request)
        return answer.tasks[0]

    @operation
    def claim(
        self, task: str = "", *, labels: Optional[Mapping[str, str]] = None, wait: Seconds = 0, resume: bool = False,
    ) -> Steps[Optional[TaskClaim]]:
        """Claims a task: the given one, or the first that the agent may have. None if there is none.

        wait is how long to wait for a task, in seconds. resume returns a task that the agent already holds.
        """
        request = pb.ClaimTaskRequest(id=task, labels=labels or {}, wait=duration(wait), resume=resume)
        answer: pb.ClaimTaskResponse = yield Call("tasks", "ClaimTask", request, seconds(wait))
        return TaskClaim(answer) if answer.HasField("task") else None

    @operation
    def update(
        self, task: Union[TaskClaim, str], *, progress: Optional[float] = None, note: Optional[str] = None,
        block: Optional[str] = None, unblock: Optional[bool] = None,
    ) -> Steps[pb.TaskBrief]:
        """Reports progress (0 to 1) and a note, or blocks the task with a reason. It restarts stale_after."""
        request = pb.UpdateTaskRequest(**_names(task), progress=progress, note=note, block=block, unblock=unblock)
        answer: pb.UpdateTaskResponse = yield Call("tasks", "UpdateTask", request)
        return answer.task

    @operation
    def complete(
        self, task: Union[TaskClaim, str], result: Any = None, *, artifacts: Iterable[str] = (),
    ) -> Steps[List[pb.TaskBrief]]:
        """Completes a task, and returns the tasks that became ready. A result that is no str becomes JSON."""
        request = pb.CompleteTaskRequest(**_names(task), result=result_text(result), artifacts=listed(artifacts))
        answer: pb.CompleteTaskResponse = yield Call("tasks", "CompleteTask", request)
        return list(answer.ready)

    @operation
    def fail(self, task: Union[TaskClaim, str], error: str, *, fatal: bool = False) -> Steps[pb.TaskBrief]:
        """Ends an attempt. The broker repeats the task after a backoff, unless it was the last attempt or fatal."""
        request = pb.FailTaskRequest(**_names(task), error=shortened(error), fatal=fatal)
        answer: pb.FailTaskResponse = yield Call("tasks", "FailTask", request)
        return answer.task

    @operation
    def release(self, task: Union[TaskClaim, str], reason: str = "", *, decline: bool = False) -> Steps[pb.TaskBrief]:
        """Releases a task; no attempt counts. decline refuses a task that is assigned to the agent."""
        request = pb.ReleaseTaskRequest(**_names(task), reason=shortened(reason), decline=decline)
        answer: pb.ReleaseTaskResponse = yield Call("tasks", "ReleaseTask", request)
        return answer.task

    @operation
    def cancel(self, task: str, reason: str = "", *, cascade: bool = False) -> Steps[List[pb.TaskBrief]]:
        """Cancels an unfinished task; with cascade, also the tasks that depend on it."""
        request = pb.CancelTaskRequest(id=task, reason=shortened(reason), cascade=cascade)
        answer: pb.CancelTaskResponse = yield Call("tasks", "CancelTask", request)
        return list(answer.tasks)

    @operation
    def get(self, task: str) -> Steps[pb.Task]:
        """Returns a task."""
        answer: pb.GetTaskResponse = yield Call("tasks", "GetTask", pb.GetTaskRequest(id=task))
        return answer.task

    @operation
    def list(
        self, *, states: Iterable[str] = (), holder: str = "", assignee: str = "", role: str = "", creator: str = "",
        parent: str = "", labels: Optional[Mapping[str, str]] = None, claimable: bool = False, oldest_first: bool = False,
    ) -> Steps[List[pb.Task]]:
        """Returns the tasks that match, newest first, without description and result. A state is such as ready or done."""
        request = pb.ListTasksRequest(
            states=[enum(pb.TaskState, state) for state in listed(states)], holder=holder, assignee=assignee, role=role,
            creator=creator, parent=parent, labels=labels or {}, claimable=claimable, oldest_first=oldest_first, page_size=1000)
        found: List[pb.Task] = []
        while True:
            page: pb.ListTasksResponse = yield Call("tasks", "ListTasks", request)
            found.extend(page.tasks)
            request.page_token = page.next_page_token
            if not request.page_token:
                return found

    @operation
    def wait(
        self, *tasks: str, agents: Iterable[str] = (), any: bool = False, timeout: Optional[Seconds] = None,
    ) -> Steps[pb.WaitTasksResponse]:
        """Waits until all tasks are done and all agents have completed, or any of them.

        It returns early if a task fails, is cancelled or is blocked: `attention` names it. Without a
        timeout it waits without limit.
        """
        request = pb.WaitTasksRequest(
            task_ids=tasks, agents=listed(agents), mode=pb.WAIT_MODE_ANY if any else pb.WAIT_MODE_ALL)
        ends = None if timeout is None else time.monotonic() + seconds(timeout)
        while True:
            left = _LONGEST_WAIT if ends is None else max(0.0, min(_LONGEST_WAIT, ends - time.monotonic()))
            request.wait.CopyFrom(duration(left))  # type: ignore[arg-type]
            answer: pb.WaitTasksResponse = yield Call("tasks", "WaitTasks", request, left)
            if answer.outcome != pb.WAIT_OUTCOME_TIMEOUT or (ends is not None and time.monotonic() >= ends):
                return answer
