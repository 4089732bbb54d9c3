import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";

import { newController } from "./abort.js";
import type { Caller, CallOptions } from "./caller.js";
import { duration, milliseconds, requestId } from "./convert.js";
import { BrokerError, Invalid, Lost, transient } from "./errors.js";
import { Events } from "./events.js";
import { type ClaimTaskRequestSchema, TaskState, type ClaimTaskResponse } from "./gen/brokerd/v1/task_pb.js";
import { errorText, optional } from "./messages.js";
import { TaskClaim } from "./task-claim.js";
import { resultText, type Outcome } from "./tasks.js";
import { Reject, Release, reportError, Stopped } from "./verdicts.js";
import { defaultDrain, stopGrace, stopping, type StopOptions } from "./worker-signals.js";

const claimWait = "10m"; // of one call

/** The events that can end a claim without its worker. */
const lossEvents = ["task.released", "task.attempt_failed", "task.failed", "task.cancelled"];

/** TaskWorkOptions select tasks and bound the work on them. */
export interface TaskWorkOptions extends StopOptions {
  /** Labels that a task must have. */
  labels?: Record<string, string>;
  /** How many handlers run at the same time; default 1. */
  concurrency?: number;
  /**
   * Begin with the tasks that the agent already holds; default true. Set it to false if several
   * workers act as the same agent.
   */
  resume?: boolean;
  /** Called with a task whose outcome the broker has refused, because the claim had ended. */
  onLost?: (work: TaskWork, error: unknown) => void;
  /** Called with what a handler has thrown, except Reject and Release; default: it goes to standard error, with its stack. */
  onError?: (work: TaskWork, error: unknown) => void;
}

/** A handler of tasks. What it returns is the result: a text, an object (JSON), or nothing. */
export type TaskHandler = (work: TaskWork) => Promise<string | object | void> | string | object | void;

/** A TaskWork is a task in the hands of a handler. */
export class TaskWork extends TaskClaim {
  /** Names of artifacts that hold the result; the handler may add to it. */
  readonly artifacts: string[] = [];
  readonly #caller: Caller;

  constructor(
    caller: Caller,
    answer: ClaimTaskResponse,
    /** Aborts with Lost when the claim is lost, and with Stopped when the worker must stop. */
    readonly signal: AbortSignal,
  ) {
    super(answer);
    this.#caller = caller;
  }

  /** Reports the progress, 0 to 1, and a note. It throws Lost if the claim has ended. */
  async report(progress: number, note?: string, options?: CallOptions): Promise<void> {
    const request = { requestId: requestId(), id: this.task.id, fence: this.task.fence, progress, ...optional("note", note) };
    await this.#caller.call((o) => this.#caller.stubs.tasks.updateTask(request, o), options);
  }
}

/** Works on tasks; see Tasks.work. */
export async function workOnTasks(caller: Caller, handler: TaskHandler, options: TaskWorkOptions = {}): Promise<void> {
  const { concurrency = 1 } = options;
  if (!(concurrency >= 1 && concurrency <= 1000)) throw new Invalid(`work on tasks: concurrency is ${concurrency}; 1 to 1000 are allowed`);
  const stop = stopping(options, caller.connection.closed);
  try {
    await new TaskWorker(caller, handler, options, stop).run();
  } finally {
    stop.unlink();
  }
}

/** A TaskJob is a claim with its running handler. */
interface TaskJob {
  work: TaskWork;
  controller: AbortController;
}

/** Held are the tasks to resume, and the revision at which the agent held them. */
interface Held {
  ids: string[];
  revision: bigint;
}

/** A TaskWorker is one call of workOnTasks. */
class TaskWorker {
  readonly #jobs = new Map<string, TaskJob>();
  /** Aborts when the worker returns: calls that settle tasks end. */
  readonly #ending = newController();
  #failed: unknown;

  constructor(
    readonly caller: Caller,
    readonly handler: TaskHandler,
    readonly options: TaskWorkOptions,
    readonly stop: { signal: AbortSignal; abort(reason?: unknown): void },
  ) {}

  async run(): Promise<void> {
    let held: Held;
    try {
      held = await this.#held();
    } catch (error) {
      if (this.stop.signal.aborted) return; // it was stopped before it claimed a task
      throw error;
    }
    const { concurrency = 1 } = this.options;
    const watching = this.#watch(held.revision);
    const slots = Promise.all(Array.from({ length: concurrency }, () => this.#slot(held.ids)));
    const drained = this.#drained();
    try {
      await Promise.race([slots, drained.promise]);
    } finally {
      drained.clear();
      this.#ending.abort();
      await watching;
    }
    if (this.#failed !== undefined) throw this.#failed;
    if (this.#jobs.size > 0) throw new BrokerError(`stop working: ${this.#jobs.size} tasks were not settled in time`);
  }

  /** Returns a promise that resolves when the worker has stopped and its handlers had all the time they may have. */
  #drained(): { promise: Promise<void>; clear: () => void } {
    const timeout = milliseconds(this.options.drain ?? defaultDrain);
    let hurry: NodeJS.Timeout | undefined;
    let end: NodeJS.Timeout | undefined;
    const promise = new Promise<void>((resolve) => {
      const begin = () => {
        if (this.caller.connection.closed.aborted) {
          this.#abort(new Lost("the claim is lost: the client is closed"));
          resolve();
        }
        hurry = setTimeout(() => this.#abort(new Stopped()), timeout);
        end = setTimeout(resolve, timeout + stopGrace);
      };
      if (this.stop.signal.aborted) begin();
      else this.stop.signal.addEventListener("abort", begin, { once: true });
    });
    return {
      promise,
      clear: () => {
        clearTimeout(hurry);
        clearTimeout(end);
      },
    };
  }

  #abort(why: unknown): void {
    for (const { controller } of this.#jobs.values()) controller.abort(why);
  }

  /** Returns the tasks to resume, and the revision after which watch begins. */
  async #held(): Promise<Held> {
    const { tasks } = this.caller.stubs;
    const { agent } = this.caller.identity;
    const { resume = true } = this.options;
    const ids: string[] = [];
    let pageToken = "";
    let revision: bigint | undefined;
    do {
      const request = { holder: agent, states: [TaskState.CLAIMED], oldestFirst: true, pageSize: 1000, pageToken };
      const page = await this.caller.persist(() => tasks.listTasks(request), this.stop.signal);
      revision ??= page.revision;
      ids.push(...page.tasks.map((task) => task.id));
      pageToken = page.nextPageToken;
    } while (resume && pageToken !== "");
    return { ids: resume ? ids : [], revision };
  }

  /** Handles one task after the other. */
  async #slot(held: string[]): Promise<void> {
    for (let id = held.shift(); id !== undefined && !this.stop.signal.aborted; id = held.shift()) {
      await this.#take({ requestId: requestId(), id });
    }
    while (!this.stop.signal.aborted) {
      await this.#take({ requestId: requestId(), labels: this.options.labels ?? {}, wait: duration(claimWait)! });
    }
  }

  /** Claims a task, handles it and settles it. The request id makes a repeated call return the same claim. */
  async #take(request: MessageInitShape<typeof ClaimTaskRequestSchema>): Promise<void> {
    const { signal } = this.stop;
    const { tasks } = this.caller.stubs;
    try {
      const answer = await this.caller.persist(() => tasks.claimTask(request, { signal }), signal);
      if (answer.task !== undefined) await this.#handle(answer);
    } catch (error) {
      if (signal.aborted) await this.#undo(request);
      else if (request.id !== undefined && error instanceof BrokerError && error.reason.startsWith("TASK_")) return; // it has changed
      else this.#fail(error);
    }
  }

  /**
   * Releases the task of a claim whose answer was lost because the worker stopped. A request that
   * differs only in its wait is refused if the claim was made, and does not wait otherwise.
   */
  async #undo(request: MessageInitShape<typeof ClaimTaskRequestSchema>): Promise<void> {
    const { tasks } = this.caller.stubs;
    const timeoutMs = stopGrace;
    try {
      const { wait: _, ...probe } = request;
      const answer = await tasks.claimTask(probe, { timeoutMs }).catch((error: unknown) => {
        if (error instanceof BrokerError && error.reason === "REQUEST_ID_REUSED") return tasks.claimTask(request, { timeoutMs });
        throw error;
      });
      if (answer.task !== undefined && !answer.resumed) {
        await tasks.releaseTask({ requestId: requestId(), id: answer.task.id, fence: answer.task.fence }, { timeoutMs });
      }
    } catch {
      // The broker is away: the claim ends with the agent's lease.
    }
  }

  /** Runs the handler on one claim, keeps the claim meanwhile, and settles it. */
  async #handle(answer: ClaimTaskResponse): Promise<void> {
    const controller = newController();
    const work = new TaskWork(this.caller, answer, controller.signal);
    const { id } = work.task;
    this.#jobs.set(id, { work, controller });
    const keeper = this.#keep(work);
    let outcome: Outcome | undefined;
    let error: unknown;
    try {
      const result = await this.handler(work);
      outcome = { artifacts: work.artifacts, ...optional("result", result ?? undefined) };
    } catch (thrown) {
      error = thrown;
    }
    clearInterval(keeper);
    const why: unknown = controller.signal.reason;
    if (outcome !== undefined) await this.#settle(work, outcome);
    else if (why instanceof Stopped) await this.#settle(work, undefined, new Release("the worker stops"));
    else if (!(why instanceof Lost)) {
      reportError(work, `task ${id}`, error, this.options.onError);
      await this.#settle(work, undefined, error);
    }
    this.#jobs.delete(id);
  }

  /** Restarts the stale_after of a task until its handler ends. The stream of watch keeps the lease. */
  #keep(work: TaskWork): NodeJS.Timeout | undefined {
    const { id, fence, staleAfter } = work.task;
    if (staleAfter === undefined || durationMs(staleAfter) <= 0) return undefined;
    const update = async () => {
      try {
        await this.caller.stubs.tasks.updateTask({ id, fence });
      } catch (error) {
        if (!transient(error)) this.#lose(id, error);
      }
    };
    return setInterval(() => void update(), Math.min(durationMs(staleAfter) / 3, 2 ** 31 - 1));
  }

  /** Follows the events that end claims, and aborts the handlers of lost claims at once. It never rejects. */
  async #watch(after: bigint): Promise<void> {
    const { signal } = this.#ending;
    try {
      for await (const event of new Events(this.caller).follow({ after, types: lossEvents, signal })) {
        const job = this.#jobs.get(event.taskId);
        if (job === undefined) continue;
        const { task } = await this.caller.persist(() => this.caller.stubs.tasks.getTask({ id: event.taskId }), signal);
        if (task?.fence !== job.work.task.fence) this.#lose(event.taskId, new Lost(`the task is lost: ${event.summary}`));
      }
    } catch (error) {
      if (!signal.aborted && !this.caller.connection.closed.aborted) this.#fail(error);
    }
  }

  #lose(id: string, why: unknown): void {
    this.#jobs.get(id)?.controller.abort(why instanceof Lost ? why : new Lost(errorText(why), {}, undefined, { cause: why }));
  }

  /** Reports an outcome, or what the handler has thrown, until the broker accepts or refuses it. */
  async #settle(work: TaskWork, outcome: Outcome | undefined, thrown?: unknown): Promise<void> {
    const { tasks } = this.caller.stubs;
    const common = { requestId: requestId(), id: work.task.id, fence: work.task.fence };
    try {
      await this.caller.persist(async () => {
        if (outcome !== undefined) {
          await tasks.completeTask({ ...common, result: resultText(outcome.result), artifacts: outcome.artifacts ?? [] });
        } else if (thrown instanceof Release) {
          await tasks.releaseTask({ ...common, reason: errorText(thrown) });
        } else {
          await tasks.failTask({ ...common, error: errorText(thrown), fatal: thrown instanceof Reject });
        }
      }, this.#ending.signal);
    } catch (error) {
      if (!this.#ending.signal.aborted) this.options.onLost?.(work, error);
    }
  }

  /** Ends the worker with an error that another attempt does not heal. */
  #fail(error: unknown): void {
    if (this.#failed !== undefined || this.stop.signal.aborted) return;
    this.#failed = error;
    this.#abort(new Lost("the claim is lost: the worker has ended", {}, undefined, { cause: error }));
    this.stop.abort(error);
  }
}
