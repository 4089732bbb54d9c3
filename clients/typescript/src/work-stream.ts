import { create } from "@bufbuild/protobuf";

import { linked, newController } from "./abort.js";
import { BrokerError, itemError, Lost, Unreachable } from "./errors.js";
import {
  ClaimRequestSchema,
  RevokeReason,
  type ClaimedMessage,
  type ClaimRequest,
  type ClaimResponse,
  type SettleResult,
} from "./gen/brokerd/v1/message_pb.js";
import { openFrame, type Settlement, type Worker } from "./work.js";
import { stopGrace } from "./worker-signals.js";

/** Works on one stream until it ends, and returns why it did; undefined if the broker ended it normally. */
export function serve(worker: Worker): Promise<unknown> {
  return new WorkStream(worker).run();
}

/** A WorkStream is one stream of claims. */
class WorkStream {
  /** Sent on this stream and not answered, in the order of the answers. */
  readonly #unanswered: Settlement[] = [];
  /** The writer sends what is left and then closes its side. */
  #closing = false;
  #ended = false;

  constructor(readonly worker: Worker) {}

  async run(): Promise<unknown> {
    const { worker } = this;
    if (worker.stop.aborted) return undefined;
    const stream = newController();
    const opening = linked(worker.stop);
    opening.signal.addEventListener("abort", () => stream.abort(opening.signal.reason));
    let closer: Promise<void> | undefined;
    try {
      const frames = worker.caller.stubs.messages.claim(this.#frames(), { signal: stream.signal });
      const answers = frames[Symbol.asyncIterator]();
      const first = await answers.next();
      opening.unlink();
      if (first.done) return undefined;
      if (first.value.frame.case !== "opened") throw new BrokerError("the broker's first frame is not opened");
      worker.backoff.worked();
      this.#adopt(first.value.frame.value.resumed);
      closer = this.#closeWhenDone(() => stream.abort());
      for (;;) {
        const { done, value } = await answers.next();
        if (done) return undefined;
        this.#receive(value);
      }
    } catch (error) {
      return error;
    } finally {
      opening.unlink();
      stream.abort();
      this.#ended = true;
      worker.outgoing.wake();
      worker.changed.wake();
      await closer;
      worker.outbox.unshift(...this.#unanswered.splice(0));
    }
  }

  /** Yields the first frame, then the settlements: all there are in one frame. */
  async *#frames(): AsyncGenerator<ClaimRequest> {
    yield openFrame(this.worker.options);
    for (;;) {
      if (this.#ended) return;
      const frame = this.#next();
      if (frame !== undefined) yield frame;
      else if (this.#closing) return;
      else await this.worker.outgoing.wait();
    }
  }

  /** Moves the outbox into a frame; undefined if it is empty. */
  #next(): ClaimRequest | undefined {
    const taken = this.worker.outbox.splice(0);
    if (taken.length === 0) return undefined;
    const of = (kind: Settlement["kind"]) => taken.filter((s) => s.kind === kind);
    const [acks, nacks, releases] = [of("ack"), of("nack"), of("release")];
    this.#unanswered.push(...acks, ...nacks, ...releases); // the answers come in this order
    return create(ClaimRequestSchema, {
      acks: acks.map((s) => s.job.claim.claimId),
      nacks: nacks.map((s) => s.nack!),
      releases: releases.map((s) => s.job.claim.claimId),
    });
  }

  /** Closes the stream when the worker stops, or when the broker has asked to leave and all is settled. */
  async #closeWhenDone(cancel: () => void): Promise<void> {
    const { worker } = this;
    while (!this.#ended && !worker.stop.aborted && !(worker.leaving && worker.jobs.size === 0)) await worker.changed.wait();
    this.#closing = true;
    worker.outgoing.wake();
    const end = performance.now() + stopGrace;
    while (!this.#ended && performance.now() < end) await worker.changed.wait(end - performance.now());
    cancel();
  }

  /**
   * Compares the worker's claims with those that the broker says it holds. Handlers of claims that
   * are still held continue, claims that are not are lost, and claims that are new to the worker begin.
   */
  #adopt(resumed: ClaimedMessage[]): void {
    const { worker } = this;
    const held = new Set(resumed.map((c) => c.claimId));
    worker.paused = worker.leaving = false;
    // A settlement may have arrived before the last stream broke. A repeated ack does no harm; the
    // broker would refuse the others.
    for (const s of worker.outbox.splice(0)) {
      if (s.kind === "ack" || held.has(s.job.claim.claimId)) worker.outbox.push(s);
      else worker.jobs.delete(s.job.claim.claimId);
    }
    for (const job of [...worker.jobs.values()]) {
      if (!held.has(job.claim.claimId)) worker.lose(job, new Lost("the claim is lost: it ended while the connection was broken"));
    }
    worker.take(resumed);
  }

  #receive({ frame }: ClaimResponse): void {
    const { worker } = this;
    switch (frame.case) {
      case "deliver":
        return worker.take(frame.value.claims);
      case "results":
        return this.#answered(frame.value.results);
      case "revoke": {
        const why = new Lost(`the claim is lost: ${revokeText(frame.value.reason)}`);
        for (const id of frame.value.claimIds) {
          const job = worker.jobs.get(id);
          if (job !== undefined) worker.lose(job, why);
        }
        return;
      }
      case "goAway":
        worker.paused = worker.leaving = true;
        return worker.returnReady();
    }
  }

  /** Closes the settlements that are answered. UNAVAILABLE is no answer: another stream sends them again. */
  #answered(results: SettleResult[]): void {
    for (const result of results) {
      const error = result.error === undefined ? undefined : itemError(result.error);
      if (error instanceof Unreachable) throw error;
      const settlement = this.#unanswered.shift();
      if (settlement !== undefined) this.worker.settled(settlement, error);
    }
  }
}

function revokeText(reason: RevokeReason): string {
  switch (reason) {
    case RevokeReason.EXPIRED:
      return "it expired, or lasted for as long as a claim may";
    case RevokeReason.TAKEN_OVER:
      return "another worker of the same consumer took it over";
    case RevokeReason.SETTLED:
      return "another call settled it";
    default:
      return "the broker revoked it";
  }
}
