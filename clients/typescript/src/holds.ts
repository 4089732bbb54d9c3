import { randomUUID } from "node:crypto";

import { durationMs, timestampMs, type Duration } from "@bufbuild/protobuf/wkt";

import { newController } from "./abort.js";
import { Backoff } from "./backoff.js";
import type { Caller, CallOptions } from "./caller.js";
import type { Client } from "./client.js";
import { duration, milliseconds, requestId, type Span } from "./convert.js";
import { BrokerError, Closed, Conflict, interrupted, Lost, NotFound, transient } from "./errors.js";
import { AcquireOutcome, LockMode, type Obstacle } from "./gen/brokerd/v1/lock_pb.js";
import { optional } from "./messages.js";

const defaultMaxHold = 120_000; // ms: how long a grant outlives a process that is killed
const defaultWait = 60_000; // ms
const longestSlice = 20_000; // ms of waiting in one call
const callTimeout = 10_000; // ms
const longestInterval = 15_000; // ms between extensions: they detect that an operator has taken the grant

/** Returns a client for calls that depend on a fence. */
type Fenced = (fence: bigint) => Client;

/** HoldOptions say how to acquire and keep a lock or token. */
export interface HoldOptions extends CallOptions {
  /** How long to wait for the turn; default 60 s, 0 = do not wait. */
  wait?: Span;
  /** Shown to those who wait. */
  reason?: string;
  /** How long the grant outlives a broken connection; default 2 min. The hold extends it in time. */
  maxHold?: Span;
  /** Which worker of the agent asks; default a new name, so that each hold excludes all others. */
  holder?: string;
}

/** Busy says which owners are in the way of a lock or token that was not granted in time. */
export class Busy extends Conflict {
  constructor(
    message: string,
    readonly obstacles: Obstacle[],
  ) {
    super(message, { reason: "BUSY" });
  }
}

/**
 * A Hold is a lock or token that this process holds. It extends the grant in the background until
 * it is released; `await using` releases it at the end of the block.
 */
export class Hold implements AsyncDisposable {
  /** Makes calls that the broker refuses once the hold is lost. */
  readonly client: Client;
  readonly #grant: Grant;
  readonly #lost = newController();
  /** In milliseconds of the process's monotonic clock: before it, no other agent can hold the grant. */
  #end: number;
  #released: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #alarm: NodeJS.Timeout | undefined;
  readonly #onClose = () => this.#lose(new Lost(`${this.#grant.what} is lost: the client is closed`));

  constructor(grant: Grant, fenced: Fenced) {
    this.#grant = grant;
    this.client = fenced(grant.fence);
    this.#end = grant.end;
    grant.caller.connection.closed.addEventListener("abort", this.#onClose, { once: true });
    this.#schedule(performance.now() + this.#interval);
    this.#watch();
  }

  get #interval(): number {
    return Math.min(this.#grant.lasts / 3, longestInterval);
  }

  /** The number of the grant. It only grows: pass it to the systems that the lock protects. */
  get fence(): bigint {
    return this.#grant.fence;
  }

  /** Aborts with Lost when the hold is lost: in time if it expires, within 15 s if an operator takes it. */
  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  /**
   * Throws Lost if the hold is lost. It asks the process's own clock, not the broker, so it throws in
   * time too if the broker is frozen or unreachable, or if this process was suspended.
   */
  check(): void {
    if (performance.now() >= this.#end) this.#lose(new Lost(`${this.#grant.what} is lost: it was not extended in time`));
    this.signal.throwIfAborted();
  }

  /** Releases the grant. If the broker is unreachable, the grant expires. A second release has no effect. */
  release(): Promise<void> {
    return (this.#released ??= this.#release());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  async #release(): Promise<void> {
    const lost = this.signal.aborted;
    this.#lose(new Lost(`${this.#grant.what} was released`));
    if (this.#grant.caller.connection.closed.aborted) return;
    try {
      await this.#grant.release(lost ? 1000 : callTimeout / 2);
    } catch (error) {
      if (!lost && !endsGrant(error) && !transient(error) && !(error instanceof Closed)) throw error;
    }
  }

  #lose(why: Lost): void {
    clearTimeout(this.#timer);
    clearTimeout(this.#alarm);
    this.#grant.caller.connection.closed.removeEventListener("abort", this.#onClose);
    this.#end = -Infinity;
    if (!this.signal.aborted) this.#lost.abort(why);
  }

  /** Checks the clock at the end of the grant. */
  #watch(): void {
    clearTimeout(this.#alarm);
    this.#alarm = setTimeout(() => {
      try {
        this.check();
        this.#watch();
      } catch {
        // The signal has aborted.
      }
    }, Math.max(this.#end - performance.now(), 1)).unref();
  }

  #schedule(at: number): void {
    if (this.signal.aborted) return;
    this.#timer = setTimeout(() => void this.#extend(), Math.max(at - performance.now(), 0)).unref();
  }

  /** Extends the grant. It never rejects. */
  async #extend(): Promise<void> {
    const { lasts } = this.#grant;
    const began = performance.now();
    try {
      await this.#grant.extend(Math.max(1, Math.min(this.#end - began, callTimeout)));
      if (this.signal.aborted) return;
      this.#end = Math.min(began + safe(lasts), this.#grant.latest);
      this.#watch();
      this.#schedule(began + this.#interval);
    } catch (error) {
      if (endsGrant(error)) this.#lose(error instanceof Lost ? error : new Lost((error as Error).message, {}, undefined, { cause: error }));
      else this.#schedule(performance.now() + Math.min(1000, lasts / 20));
    }
  }
}

/** A Grant is what a Hold keeps. Times are in milliseconds, on the process's monotonic clock. */
interface Grant {
  caller: Caller;
  /** Such as: the lock on src/. */
  what: string;
  fence: bigint;
  /** How long the grant lasts from an extension: the hold time, or the agent's lease if that is shorter. */
  lasts: number;
  end: number;
  /** Beyond it, no extension helps. */
  latest: number;
  extend(timeout: number): Promise<void>;
  release(timeout: number): Promise<unknown>;
}

/** Returns the hold of a grant. It extends a grant that is not new first, because its call has waited. */
async function held(grant: Grant & Acquired, fenced: Fenced): Promise<Hold> {
  const began = performance.now();
  if (!grant.alreadyHeld && began - grant.since < grant.lasts / 4) return new Hold(grant, fenced);
  await grant.extend(callTimeout);
  return new Hold({ ...grant, end: Math.min(began + safe(grant.lasts), grant.latest) }, fenced);
}

/** Returns how long a grant counts as held: a little less than it lasts, so that a check is in time. */
function safe(lasts: number): number {
  return lasts - Math.min(lasts / 10, 2000);
}

function endsGrant(error: unknown): boolean {
  return error instanceof Lost || error instanceof NotFound || (error instanceof BrokerError && error.reason === "AGENT_NOT_REGISTERED");
}

/** Locks are advisory locks on files, folders and globs. */
export class Locks {
  readonly #caller: Caller;
  readonly #fenced: Fenced;

  constructor(caller: Caller, fenced: Fenced) {
    this.#caller = caller;
    this.#fenced = fenced;
  }

  /**
   * Locks paths, all under one fence: a file (src/a.ts), a folder (src/) or a glob (**\/*.md). It
   * throws Busy, with the owners in the way, if the turn does not come within wait.
   */
  async hold(paths: string | string[], options: HoldOptions & { shared?: boolean } = {}): Promise<Hold> {
    const list = typeof paths === "string" ? [paths] : paths;
    const stub = this.#caller.stubs.locks;
    const what = `the lock on ${list.join(", ")}`;
    const mode = options.shared ? LockMode.SHARED : LockMode.EXCLUSIVE;
    const holder = options.holder ?? newHolder();
    const grant = await acquire(this.#caller, what, { ...options, holder }, {
      acquire: (request, o) => stub.acquireLocks({ ...request, paths: list, mode }, o),
      // A name that the caller has chosen may hold other locks.
      giveUp: (tickets) => stub.releaseLocks(options.holder === undefined ? { all: true, holder } : { tickets }, { timeoutMs: callTimeout }),
    });
    const fences = [grant.fence];
    return held({
      ...grant,
      latest: Infinity,
      extend: async (timeoutMs) => void (await stub.extendLocks({ fences, maxHold: grant.maxHold }, { timeoutMs })),
      release: (timeout) => this.#caller.call((o) => stub.releaseLocks({ fences }, o), { timeout }),
    }, this.#fenced);
  }
}

/** Tokens are turns: one agent at a time holds a token, such as ("deploy", "staging"). */
export class Tokens {
  readonly #caller: Caller;
  readonly #fenced: Fenced;

  constructor(caller: Caller, fenced: Fenced) {
    this.#caller = caller;
    this.#fenced = fenced;
  }

  /** Acquires a token when it is the caller's turn. It throws Busy if the turn does not come within wait. */
  async hold(type: string, scope: string, options: HoldOptions = {}): Promise<Hold> {
    const stub = this.#caller.stubs.tokens;
    const token = { type, scope, holder: options.holder ?? newHolder() };
    const what = `the token ${type}/${scope}`;
    const grant = await acquire(this.#caller, what, { ...options, holder: token.holder }, {
      acquire: (request, o) => stub.acquireToken({ ...request, type, scope }, o),
      giveUp: () => stub.releaseToken(token, { timeoutMs: callTimeout }),
    });
    const { longestHold, grantedAt } = (await this.#caller.call((o) => stub.getToken(token, o), options)).token!;
    // Only the broker knows the age of a grant from before this call.
    const age = grant.alreadyHeld ? Date.now() - timestampMs(grantedAt!) : performance.now() - grant.since;
    return held({
      ...grant,
      latest: performance.now() - age + safe(Number(longestHold?.seconds ?? 0n) * 1000),
      extend: async (timeoutMs) => void (await stub.extendToken({ ...token, maxHold: grant.maxHold }, { timeoutMs })),
      release: (timeout) => this.#caller.call((o) => stub.releaseToken(token, o), { timeout }),
    }, this.#fenced);
  }
}

function newHolder(): string {
  return `hold-${randomUUID()}`;
}

/** The fields that a request for a lock and one for a token have in common. */
interface AcquireRequest {
  requestId: string;
  wait: Duration;
  maxHold: Duration;
  holder: string;
  reason: string;
}

/** The calls of a lock or token. */
interface AcquireCalls {
  acquire(
    request: AcquireRequest,
    options: { signal?: AbortSignal; timeoutMs: number },
  ): Promise<{ outcome: AcquireOutcome; fence: bigint; alreadyHeld: boolean; ticket: bigint; obstacles: Obstacle[] }>;
  /** Releases the tickets, or a grant whose answer was lost. */
  giveUp(tickets: bigint[]): Promise<unknown>;
}

/** An Acquired is the part of a grant that its call returns. */
interface Acquired extends Pick<Grant, "caller" | "what" | "fence" | "lasts" | "end"> {
  maxHold: Duration;
  /** The grant is not older, unless the owner has already held it. */
  since: number;
  alreadyHeld: boolean;
}

/**
 * Acquires a grant. It waits in short calls: the grant is then not older than two of them, and a
 * broker that restarts or freezes meanwhile delays only one. The ticket keeps the place in the queue.
 */
async function acquire(caller: Caller, what: string, options: HoldOptions & { holder: string }, calls: AcquireCalls): Promise<Acquired> {
  const { signal, holder, reason = "" } = options;
  const hold = milliseconds(options.maxHold ?? defaultMaxHold);
  const maxHold = duration(hold)!;
  // A grant ends with the lease of its agent.
  const { lease } = await caller.call((o) => caller.stubs.agents.heartbeat({}, o), options);
  const lasts = Math.min(hold, lease === undefined ? Infinity : durationMs(lease));
  const until = performance.now() + milliseconds(options.wait ?? defaultWait);
  const slice = Math.min(longestSlice, lasts / 4);
  const id = requestId();
  const backoff = new Backoff(caller.connection);
  const tickets: bigint[] = [];
  try {
    for (let since = performance.now(); ; ) {
      const began = performance.now();
      const left = Math.min(slice, Math.max(until - began, 0));
      try {
        const request = { requestId: id, wait: duration(left)!, maxHold, holder, reason };
        const answer = await calls.acquire(request, { timeoutMs: left + callTimeout, ...optional("signal", signal) });
        const { fence, alreadyHeld } = answer;
        if (answer.outcome === AcquireOutcome.GRANTED) {
          return { caller, what, fence, lasts, maxHold, alreadyHeld, since, end: since + safe(lasts) };
        }
        if (answer.ticket > 0n) tickets.splice(0, 1, answer.ticket);
        if (performance.now() >= until) throw new Busy(`${what} is held by ${owners(answer.obstacles)}`, answer.obstacles);
        since = began;
        backoff.worked();
      } catch (error) {
        signal?.throwIfAborted();
        if (!interrupted(error) || performance.now() >= until || !(await backoff.pause(error, signal))) throw error;
      }
    }
  } catch (error) {
    await calls.giveUp(tickets).catch(() => undefined); // otherwise the ticket lapses by itself
    throw error;
  }
}

function owners(obstacles: Obstacle[]): string {
  return obstacles.map((o) => o.agent).filter((name, i, all) => all.indexOf(name) === i).join(", ") || "another agent";
}
