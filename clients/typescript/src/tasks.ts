import type { Caller, CallOptions } from "./caller.js";
import { duration, json, long, milliseconds, requestId, type Long, type Span } from "./convert.js";
import { TaskState, TaskView, WaitMode, WaitOutcome, type Task, type TaskAttempt, type TaskBrief } from "./gen/brokerd/v1/task_pb.js";
import { errorText, optional } from "./messages.js";
import { workOnTasks, type TaskHandler, type TaskWorkOptions } from "./task-work.js";

/** NewTask describes a task. */
export interface NewTask {
  title: string;
  /** Default: the broker assigns one. */
  id?: string;
  description?: string;
  labels?: Record<string, string>;
  /** 1 to 10, 10 first; default 5. */
  priority?: number;
  /** Only agents of this role may claim it. */
  role?: string;
  /** Only this agent may claim it. */
  assignee?: string;
  capabilities?: string[];
  dependsOn?: string[];
  parent?: string;
  maxAttempts?: number;
  /** How long its holder may send no update; 0 = without limit. */
  staleAfter?: Span;
  artifacts?: string[];
}

/** A TaskClaim is a task that the agent holds. */
export interface TaskClaim {
  /** As it was when the agent claimed it. Its fence guards the changes of the holder. */
  task: Task;
  /** From 1. */
  attempt: number;
  /** The agent held the task before this call. */
  resumed: boolean;
  /** The failed attempts before. */
  history: TaskAttempt[];
}

/** Options of calls by the holder of a task. */
export interface HolderOptions extends CallOptions {
  /** Of the claim; default whichever claim the agent holds. */
  fence?: Long;
  requestId?: string;
}

/** Outcome is the result of a task. */
export interface Outcome {
  /** Text, or an object that is stored as JSON. */
  result?: string | object;
  /** Names of artifacts that hold the result. */
  artifacts?: string[];
}

type StateName = "waiting" | "ready" | "claimed" | "blocked" | "done" | "failed" | "cancelled";

/** ListTasksOptions select tasks; all that is given must match. */
export interface ListTasksOptions extends CallOptions {
  states?: StateName[];
  holder?: string;
  assignee?: string;
  role?: string;
  labels?: Record<string, string>;
  parent?: string;
  creator?: string;
  /** At most this many; default all. */
  limit?: number;
}

/** Waited says how a wait for tasks ended. */
export interface Waited {
  /** "attention": a task became failed, cancelled, blocked or unblocked. */
  outcome: "done" | "attention" | "timeout";
  tasks: TaskBrief[];
  /** Ids of the tasks that need attention. */
  attention: string[];
  revision: bigint;
}

const longestWait = 60_000; // ms in one call

/** Tasks are pieces of work with dependencies; one agent at a time holds each. */
export class Tasks {
  readonly #caller: Caller;

  constructor(caller: Caller) {
    this.#caller = caller;
  }

  /** Creates one task, or several: all or none. */
  create(task: NewTask | string, options?: CallOptions & { requestId?: string }): Promise<TaskBrief>;
  create(tasks: (NewTask | string)[], options?: CallOptions & { requestId?: string }): Promise<TaskBrief[]>;
  async create(
    given: NewTask | string | (NewTask | string)[],
    options: CallOptions & { requestId?: string } = {},
  ): Promise<TaskBrief | TaskBrief[]> {
    const tasks = [given].flat().map((task) => newTask(typeof task === "string" ? { title: task } : task));
    const request = { requestId: options.requestId ?? requestId(), tasks };
    const created = await this.#caller.call((o) => this.#caller.stubs.tasks.createTasks(request, o), options);
    return Array.isArray(given) ? created.tasks : created.tasks[0]!;
  }

  /** Claims the first task that matches, or a given one; undefined if there is none within wait. */
  async claim(
    options: CallOptions & { id?: string; labels?: Record<string, string>; wait?: Span; resume?: boolean; requestId?: string } = {},
  ): Promise<TaskClaim | undefined> {
    const request = {
      requestId: options.requestId ?? requestId(),
      taskId: options.id ?? "",
      labels: options.labels ?? {},
      resume: options.resume ?? false,
      ...optional("wait", duration(options.wait)),
    };
    const { task, attempt, resumed, history } = await this.#caller.call((o) => this.#caller.stubs.tasks.claimTask(request, o), options);
    return task && { task, attempt, resumed, history };
  }

  /** Reports progress (0 to 1) or a note, or blocks and unblocks the task. */
  async update(
    id: string,
    change: HolderOptions & { progress?: number; note?: string; block?: string; unblock?: true },
  ): Promise<TaskBrief> {
    const { block, unblock } = change;
    const request = {
      requestId: change.requestId ?? requestId(),
      taskId: id,
      fence: long(change.fence ?? 0),
      ...optional("progress", change.progress),
      ...optional("note", change.note),
      ...optional("blockChange", blockChange(block, unblock)),
    };
    return (await this.#caller.call((o) => this.#caller.stubs.tasks.updateTask(request, o), change)).task!;
  }

  /** Finishes the task; returns the tasks that became ready. */
  async complete(id: string, options: HolderOptions & Outcome = {}): Promise<TaskBrief[]> {
    const request = {
      requestId: options.requestId ?? requestId(),
      taskId: id,
      fence: long(options.fence ?? 0),
      result: resultText(options.result),
      artifacts: options.artifacts ?? [],
    };
    return (await this.#caller.call((o) => this.#caller.stubs.tasks.completeTask(request, o), options)).ready;
  }

  /** Ends the attempt. The broker retries the task after a backoff, unless it was the last attempt or fatal. */
  async fail(id: string, error: string, options: HolderOptions & { fatal?: boolean } = {}): Promise<TaskBrief> {
    const request = {
      requestId: options.requestId ?? requestId(),
      taskId: id,
      fence: long(options.fence ?? 0),
      error: errorText(error),
      fatal: options.fatal ?? false,
    };
    return (await this.#caller.call((o) => this.#caller.stubs.tasks.failTask(request, o), options)).task!;
  }

  /** Returns the task with its progress; no attempt counts. */
  async release(id: string, options: HolderOptions & { reason?: string } = {}): Promise<TaskBrief> {
    const request = {
      requestId: options.requestId ?? requestId(),
      taskId: id,
      fence: long(options.fence ?? 0),
      reason: options.reason ?? "",
    };
    return (await this.#caller.call((o) => this.#caller.stubs.tasks.releaseTask(request, o), options)).task!;
  }

  /** Returns a task. */
  async get(id: string, options?: CallOptions): Promise<Task> {
    const request = { taskId: id, view: TaskView.BASIC };
    return (await this.#caller.call((o) => this.#caller.stubs.tasks.getTask(request, o), options)).task!;
  }

  /** Lists tasks in the order of their creation, without descriptions and results. */
  async list(options: ListTasksOptions = {}): Promise<Task[]> {
    const { limit = Infinity } = options;
    const found: Task[] = [];
    let pageToken = "";
    do {
      const request = {
        states: (options.states ?? []).map((name) => TaskState[name.toUpperCase() as Uppercase<StateName>]),
        holder: options.holder ?? "",
        assignee: options.assignee ?? "",
        role: options.role ?? "",
        labels: options.labels ?? {},
        parent: options.parent ?? "",
        creator: options.creator ?? "",
        pageSize: Math.min(limit - found.length, 1000),
        pageToken,
      };
      const page = await this.#caller.call((o) => this.#caller.stubs.tasks.listTasks(request, o), options);
      found.push(...page.tasks);
      pageToken = page.nextPageToken;
    } while (pageToken !== "" && found.length < limit);
    return found;
  }

  /** Waits until all of the tasks (or any of them) are done, or one needs attention, or wait has ended. */
  async wait(
    ids: string | string[],
    options: CallOptions & { wait?: Span; any?: boolean; agents?: string[]; after?: Long } = {},
  ): Promise<Waited> {
    const end = options.wait === undefined ? Infinity : performance.now() + milliseconds(options.wait);
    let afterRevision = long(options.after ?? 0);
    for (;;) {
      const request = {
        taskIds: [ids].flat(),
        agents: options.agents ?? [],
        mode: options.any ? WaitMode.ANY : WaitMode.ALL,
        wait: duration(Math.max(Math.min(end - performance.now(), longestWait), 0))!,
        afterRevision,
      };
      const answer = await this.#caller.call((o) => this.#caller.stubs.tasks.waitTasks(request, o), options);
      const { tasks, attention, revision } = answer;
      if (answer.outcome === WaitOutcome.DONE) return { outcome: "done", tasks, attention, revision };
      if (answer.outcome === WaitOutcome.ATTENTION) return { outcome: "attention", tasks, attention, revision };
      if (performance.now() >= end) return { outcome: "timeout", tasks, attention, revision };
      afterRevision = revision;
    }
  }

  /**
   * Claims tasks and runs the handler for each, until the signal aborts or the process receives
   * SIGTERM. What the handler returns is the result of the task; a thrown error is a failed attempt,
   * Reject fails the task for good, and Release returns it. The worker keeps the claims, and
   * continues when the broker restarts.
   */
  work(handler: TaskHandler, options?: TaskWorkOptions): Promise<void> {
    return workOnTasks(this.#caller, handler, options);
  }
}

/** Returns the result of a task as the broker stores it. */
export function resultText(result: string | object | undefined): string {
  return typeof result === "string" ? result : json(result);
}

function blockChange(block: string | undefined, unblock: true | undefined) {
  if (block !== undefined) return { case: "block", value: block } as const;
  return unblock === undefined ? undefined : ({ case: "unblock", value: true } as const);
}

function newTask(task: NewTask) {
  return {
    id: task.id ?? "",
    title: task.title,
    description: task.description ?? "",
    labels: task.labels ?? {},
    priority: task.priority ?? 0,
    role: task.role ?? "",
    assignee: task.assignee ?? "",
    capabilities: task.capabilities ?? [],
    dependsOn: task.dependsOn ?? [],
    parent: task.parent ?? "",
    maxAttempts: task.maxAttempts ?? 0,
    artifacts: task.artifacts ?? [],
    ...optional("staleAfter", duration(task.staleAfter)),
  };
}
