import type { Caller, CallOptions } from "./caller.js";
import { duration, json, long, milliseconds, requestId, type Long, type Span } from "./convert.js";
import { TaskState, TaskView, WaitMode, WaitOutcome, type Task, type TaskBrief } from "./gen/brokerd/v1/task_pb.js";
import { errorText, optional } from "./messages.js";
import { TaskClaim } from "./task-claim.js";
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

/** Options of calls by the holder of a task. */
export interface HolderOptions extends CallOptions {
  /** Of the claim; default that of the TaskClaim or, for a task by its id, whichever claim the agent holds. */
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
  /** Otherwise the newest come first. */
  oldestFirst?: boolean;
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
      id: options.id ?? "",
      labels: options.labels ?? {},
      resume: options.resume ?? false,
      ...optional("wait", duration(options.wait)),
    };
    const answer = await this.#caller.call((o) => this.#caller.stubs.tasks.claimTask(request, o), options);
    return answer.task && new TaskClaim(answer);
  }

  /** Reports progress (0 to 1) or a note, or blocks and unblocks the task. */
  async update(
    task: TaskClaim | string,
    change: HolderOptions & { progress?: number; note?: string; block?: string; unblock?: true },
  ): Promise<TaskBrief> {
    const { block, unblock } = change;
    const request = {
      requestId: change.requestId ?? requestId(),
      ...names(task, change),
      ...optional("progress", change.progress),
      ...optional("note", change.note),
      ...optional("blockChange", blockChange(block, unblock)),
    };
    return (await this.#caller.call((o) => this.#caller.stubs.tasks.updateTask(request, o), change)).task!;
  }

  /** Finishes the task; returns the tasks that became ready. */
  async complete(task: TaskClaim | string, options: HolderOptions & Outcome = {}): Promise<TaskBrief[]> {
    const request = {
      requestId: options.requestId ?? requestId(),
      ...names(task, options),
      result: resultText(options.result),
      artifacts: options.artifacts ?? [],
    };
    return (await this.#caller.call((o) => this.#caller.stubs.tasks.completeTask(request, o), options)).ready;
  }

  /** Ends the attempt. The broker retries the task after a backoff, unless it was the last attempt or fatal. */
  async fail(task: TaskClaim | string, error: string, options: HolderOptions & { fatal?: boolean } = {}): Promise<TaskBrief> {
    const request = {
      requestId: options.requestId ?? requestId(),
      ...names(task, options),
      error: errorText(error),
      fatal: options.fatal ?? false,
    };
    return (await this.#caller.call((o) => this.#caller.stubs.tasks.failTask(request, o), options)).task!;
  }

  /** Returns the task with its progress; no attempt counts. */
  async release(task: TaskClaim | string, options: HolderOptions & { reason?: string } = {}): Promise<TaskBrief> {
    const request = {
      requestId: options.requestId ?? requestId(),
      ...names(task, options),
      reason: options.reason ?? "",
    };
    return (await this.#caller.call((o) => this.#caller.stubs.tasks.releaseTask(request, o), options)).task!;
  }

  /** Cancels an unfinished task; with cascade, also the tasks that depend on it. */
  async cancel(id: string, options: CallOptions & { reason?: string; cascade?: boolean } = {}): Promise<TaskBrief[]> {
    const { reason = "", cascade = false } = options;
    const request = { requestId: requestId(), id, reason, cascade };
    return (await this.#caller.call((o) => this.#caller.stubs.tasks.cancelTask(request, o), options)).tasks;
  }

  /** Returns a task. */
  async get(id: string, options?: CallOptions): Promise<Task> {
    const request = { id, view: TaskView.BASIC };
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
        oldestFirst: options.oldestFirst ?? false,
        pageSize: Math.min(limit - found.length, 1000),
        pageToken,
      };
      const page = await this.#caller.call((o) => this.#caller.stubs.tasks.listTasks(request, o), options);
      found.push(...page.tasks);
      pageToken = page.nextPageToken;
    } while (pageToken !== "" && found.length < limit);
    return found;
  }

  /** Waits until all of the tasks (or any of them) are done, or one needs attention, or timeout has ended. */
  async wait(
    ids: string | string[],
    options: CallOptions & { any?: boolean; agents?: string[]; after?: Long } = {},
  ): Promise<Waited> {
    const { signal, timeout } = options;
    const end = timeout === undefined ? Infinity : performance.now() + milliseconds(timeout);
    let afterRevision = long(options.after ?? 0);
    for (;;) {
      const request = {
        taskIds: [ids].flat(),
        agents: options.agents ?? [],
        mode: options.any ? WaitMode.ANY : WaitMode.ALL,
        wait: duration(Math.max(Math.min(end - performance.now(), longestWait), 0))!,
        afterRevision,
      };
      const answer = await this.#caller.call((o) => this.#caller.stubs.tasks.waitTasks(request, o), { signal });
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
   * continues when the broker restarts. The agent stays registered until the client is closed: call
   * close afterwards.
   */
  work(handler: TaskHandler, options?: TaskWorkOptions): Promise<void> {
    return workOnTasks(this.#caller, handler, options);
  }
}

/** Returns the fields of a request that name a task, and the claim of it. */
function names(task: TaskClaim | string, options: HolderOptions): { id: string; fence: bigint } {
  if (typeof task === "string") return { id: task, fence: long(options.fence ?? 0) };
  return { id: task.id, fence: long(options.fence ?? task.fence) };
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
