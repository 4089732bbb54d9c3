import { create } from "@bufbuild/protobuf";

import { newController } from "./abort.js";
import { Backoff } from "./backoff.js";
import type { Caller } from "./caller.js";
import { duration, milliseconds, type Span } from "./convert.js";
import { BrokerError, interrupted, Invalid, Lost, transient } from "./errors.js";
import { ClaimRequestSchema, NackSchema, type ClaimedMessage, type ClaimRequest, type Nack } from "./gen/brokerd/v1/message_pb.js";
import { Claim, errorText, optional, type Reply } from "./messages.js";
import { Reject, Release, reportError, RetryAfter, Stopped } from "./verdicts.js";
import { drain } from "./work-drain.js";
import { serve } from "./work-stream.js";
import { defaultDrain, stopGrace, stopping, Wakeup, type StopOptions } from "./worker-signals.js";

const maxInFlight = 1000; // the broker's limit

/** WorkOptions say what to take and how to work on it. */
export interface WorkOptions extends StopOptions {
  /** How many handlers run at the same time; default 1. */
  concurrency?: number;
  /** How many messages are claimed beyond those being handled, to save a round trip; default 0. */
  prefetch?: number;
  /**
   * Tells workers under one agent name apart. A second worker of the same agent and consumer takes
   * over the claims of the first one, which ends with Lost (TAKEN_OVER).
   */
  consumer?: string;
  /** The agent's own name, role:NAME, channel:NAME; default all that the agent may take from. */
  mailboxes?: string[];
  types?: string[];
  lowestPriority?: number;
  /** How long a claim outlives a broken connection; default 30 s. */
  claimFor?: Span;
  /** The longest the broker extends a claim while the worker is connected; default 30 min. */
  maxTotal?: Span;
  /** Called with a claim that could not be settled because it was lost: another agent may handle the message again. */
  onLost?: (claim: Claim, error: unknown) => void;
  /** Called with what a handler has thrown, except Reject, Release and RetryAfter; default: it goes to standard error, with its stack. */
  onError?: (claim: Claim, error: unknown) => void;
}

/** A WorkClaim is a claim in the hands of a handler. */
export class WorkClaim extends Claim {
  constructor(
    caller: Caller,
    claimed: ClaimedMessage,
    /** Aborts with Lost when the claim is lost, and with Stopped when the worker must stop. */
    readonly signal: AbortSignal,
  ) {
    super(caller, claimed);
  }
}

/**
 * A Handler works on one message. What it returns is sent as the reply and finishes the message;
 * undefined finishes it without a reply. A thrown error is a failed attempt, which the broker repeats
 * later; RetryAfter gives the time, Reject makes the message a dead letter, and Release returns it
 * without a counted attempt.
 */
export type Handler = (claim: WorkClaim) => Promise<Reply | void> | Reply | void;

/** A Job is a claim in the worker's hands. */
export interface Job {
  claim: WorkClaim;
  controller: AbortController;
  running: boolean;
  lost: unknown;
}

/** A Settlement is what becomes of a claim. */
export interface Settlement {
  job: Job;
  kind: "ack" | "nack" | "release";
  nack?: Nack;
}

/** Takes messages and gives each to a handler; see Client.work. */
export async function work(caller: Caller, handler: Handler, options: WorkOptions = {}): Promise<void> {
  const { concurrency = 1, prefetch = 0 } = options;
  if (!(concurrency >= 1 && prefetch >= 0 && concurrency + prefetch <= maxInFlight)) {
    throw new Invalid(`work: concurrency and prefetch make ${concurrency + prefetch} messages at the same time; 1 to ${maxInFlight} are allowed`);
  }
  const stop = stopping(options, caller.connection.closed);
  try {
    await new Worker(caller, handler, options, stop.signal).run();
  } finally {
    stop.unlink();
  }
}

/** A Worker is one call of work. */
export class Worker {
  /** By claim id, until their settlement is answered. */
  readonly jobs = new Map<string, Job>();
  /** Not begun, in the order of their arrival. */
  ready: Job[] = [];
  running = 0;
  /** No further handler begins. */
  paused = false;
  /** The broker has asked to leave this stream. */
  leaving = false;
  /** Not yet sent. */
  outbox: Settlement[] = [];
  /** Wakes the writer of the stream, and the loop that waits for the handlers. */
  readonly outgoing = new Wakeup();
  readonly changed = new Wakeup();
  readonly backoff: Backoff;
  readonly drainTimeout: number;

  constructor(
    readonly caller: Caller,
    readonly handler: Handler,
    readonly options: WorkOptions,
    /** Once it has aborted, the worker takes nothing more. */
    readonly stop: AbortSignal,
  ) {
    this.backoff = new Backoff(caller.connection);
    this.drainTimeout = milliseconds(options.drain ?? defaultDrain);
    stop.addEventListener("abort", () => this.changed.wake(), { once: true });
  }

  /** Serves one stream after the other, then drains. If the client is closed, it ends at once. */
  async run(): Promise<void> {
    for (;;) {
      const error = await serve(this);
      if (this.caller.connection.closed.aborted) return this.#abandon(this.caller.connection.closed.reason);
      if (this.stop.aborted) return drain(this);
      if (!transient(error)) {
        await this.#abandon(error);
        throw error;
      }
      await this.backoff.pause(error, this.stop);
    }
  }

  /** Adds claims to those that are ready, and begins what it can. */
  take(claims: ClaimedMessage[]): void {
    for (const claimed of claims) {
      if (this.jobs.has(claimed.claimId)) continue;
      const controller = newController();
      const claim = new WorkClaim(this.caller, claimed, controller.signal);
      const job: Job = { claim, controller, running: false, lost: undefined };
      this.jobs.set(claim.claimId, job);
      this.ready.push(job);
    }
    if (this.leaving) this.returnReady();
    else this.#begin();
  }

  /** Returns what no handler has begun. */
  returnReady(): void {
    for (const job of this.ready) this.post({ job, kind: "release" });
    this.ready = [];
    this.changed.wake();
  }

  /** Notes that a claim is lost, and aborts its handler. */
  lose(job: Job, why: unknown): void {
    if (job.lost !== undefined) return;
    job.lost = why;
    if (job.running) {
      job.controller.abort(why);
    } else if (this.ready.includes(job)) {
      this.ready = this.ready.filter((other) => other !== job);
      this.jobs.delete(job.claim.claimId);
    }
  }

  post(settlement: Settlement): void {
    this.outbox.push(settlement);
    this.outgoing.wake();
  }

  /** Forgets claims whose settlement is answered; error says why one was refused. */
  settled(settlement: Settlement, error?: unknown): void {
    this.jobs.delete(settlement.job.claim.claimId);
    if (error !== undefined) this.options.onLost?.(settlement.job.claim, error);
    this.changed.wake();
  }

  /** Aborts the signals of all handlers that run. */
  abortHandlers(why: unknown): void {
    for (const job of this.jobs.values()) if (job.running) job.controller.abort(why);
  }

  /** Ends after an error that another attempt does not heal: nothing more would be accepted. */
  async #abandon(cause: unknown): Promise<void> {
    this.paused = true;
    this.abortHandlers(cause instanceof Lost ? cause : new Lost("the claim is lost: the worker has ended", {}, undefined, { cause }));
    const end = performance.now() + Math.min(this.drainTimeout, stopGrace);
    while (this.running > 0 && performance.now() < end) await this.changed.wait(end - performance.now());
  }

  #begin(): void {
    const { concurrency = 1 } = this.options;
    while (!this.paused && !this.stop.aborted && this.running < concurrency && this.ready.length > 0) {
      const job = this.ready.shift()!;
      job.running = true;
      this.running++;
      void this.#handle(job);
    }
  }

  /** Runs the handler on one claim and posts the settlement. It never rejects. */
  async #handle(job: Job): Promise<void> {
    let settlement: Settlement | undefined;
    try {
      const answer = await this.handler(job.claim);
      settlement = answer === undefined || answer === null ? { job, kind: "ack" } : await this.#answer(job, answer);
    } catch (error) {
      if (job.lost === undefined) {
        settlement = failed(job, error);
        if (settlement.kind === "nack") reportError(job.claim, `message ${job.claim.revision}`, error, this.options.onError);
      }
    }
    job.running = false;
    this.running--;
    if (settlement === undefined) this.jobs.delete(job.claim.claimId);
    else this.post(settlement);
    this.#begin();
    this.changed.wake();
  }

  /** Sends what a handler has returned; the same transaction finishes the message. */
  async #answer(job: Job, answer: Reply): Promise<Settlement> {
    for (const backoff = new Backoff(this.caller.connection); ; ) {
      try {
        await job.claim.reply(answer);
        return { job, kind: "ack" }; // the repeated ack frees the place on the stream
      } catch (error) {
        if (interrupted(error) && (await backoff.pause(error))) continue;
        if (error instanceof BrokerError && error.reason === "NOBODY_WAITS") return { job, kind: "ack" };
        if (error instanceof Lost) {
          this.options.onLost?.(job.claim, error);
          job.lost ??= error;
        }
        throw error;
      }
    }
  }
}

/** Returns the settlement for an error that a handler has thrown. */
function failed(job: Job, error: unknown): Settlement {
  const stopped = job.controller.signal.reason instanceof Stopped;
  if (error instanceof Release || stopped) return { job, kind: "release" };
  const nack = create(NackSchema, {
    claimId: job.claim.claimId,
    error: errorText(error),
    fatal: error instanceof Reject,
    ...optional("delay", error instanceof RetryAfter ? duration(error.delay) : undefined),
  });
  return { job, kind: "nack", nack };
}

/** Returns the first frame of a stream. */
export function openFrame(options: WorkOptions): ClaimRequest {
  return create(ClaimRequestSchema, {
    open: {
      consumer: options.consumer ?? "",
      mailboxes: options.mailboxes ?? [],
      types: options.types ?? [],
      lowestPriority: options.lowestPriority ?? 0,
      maxInFlight: (options.concurrency ?? 1) + (options.prefetch ?? 0),
      ...optional("claimFor", duration(options.claimFor)),
      ...optional("maxTotal", duration(options.maxTotal)),
    },
  });
}
