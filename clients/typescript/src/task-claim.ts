import type { ClaimTaskResponse, Task, TaskAttempt } from "./gen/brokerd/v1/task_pb.js";

/** A TaskClaim is a task that the agent holds. */
export class TaskClaim {
  /** As it was when the agent claimed it, with every field. */
  readonly task: Task;
  /** The number of this attempt, from 1. */
  readonly attempt: number;
  /** The agent held the task before this call. */
  readonly resumed: boolean;
  /** The attempts that have failed, each with its error. */
  readonly history: TaskAttempt[];

  constructor(claimed: ClaimTaskResponse) {
    this.task = claimed.task!;
    this.attempt = claimed.attempt;
    this.resumed = claimed.resumed;
    this.history = claimed.history;
  }

  get id(): string {
    return this.task.id;
  }

  get title(): string {
    return this.task.title;
  }

  get description(): string {
    return this.task.description;
  }

  get labels(): Record<string, string> {
    return this.task.labels;
  }

  /** The fence of the claim: the broker refuses changes with it once the claim has ended. */
  get fence(): bigint {
    return this.task.fence;
  }
}
