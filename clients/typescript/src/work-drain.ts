import { newController } from "./abort.js";
import { milliseconds, requestId } from "./convert.js";
import { BrokerError, Lost, transient } from "./errors.js";
import type { Settlement, Worker } from "./work.js";
import { Stopped } from "./verdicts.js";
import { stopGrace } from "./worker-signals.js";

const defaultClaimFor = 30_000; // ms, the broker's

/**
 * Settles what the handlers of a worker do after its stream is closed, with unary calls: on a stream
 * the broker would deliver more work. What no handler has begun returns at once.
 */
export async function drain(worker: Worker): Promise<void> {
  worker.returnReady();
  const timeout = newController();
  const hurry = setTimeout(() => worker.abortHandlers(new Stopped()), worker.drainTimeout);
  const end = setTimeout(() => {
    timeout.abort();
    worker.changed.wake();
  }, worker.drainTimeout + stopGrace);
  const extension = setInterval(() => void extendAll(worker), milliseconds(worker.options.claimFor ?? defaultClaimFor) / 3);
  try {
    for (;;) {
      await settleAll(worker, timeout.signal);
      if (worker.running === 0 && worker.outbox.length === 0) return;
      if (timeout.signal.aborted) {
        throw new BrokerError(`stop working: ${worker.running} handlers did not return in time; their claims expire`);
      }
      await worker.changed.wait();
    }
  } catch (error) {
    worker.abortHandlers(new Stopped());
    throw error;
  } finally {
    clearTimeout(hurry);
    clearTimeout(end);
    clearInterval(extension);
  }
}

/** Settles what is in the outbox: each kind in one call, or one by one if that call is refused. */
async function settleAll(worker: Worker, signal: AbortSignal): Promise<void> {
  const taken = worker.outbox.splice(0);
  for (const kind of ["ack", "nack", "release"] as const) {
    const some = taken.filter((s) => s.kind === kind);
    if (some.length === 0) continue;
    const refused = await settle(worker, kind, some, signal);
    if (refused === undefined || some.length === 1) {
      for (const s of some) worker.settled(s, refused);
    } else {
      for (const s of some) worker.settled(s, await settle(worker, kind, [s], signal));
    }
  }
}

/** Settles claims in one call, all or none. It returns the broker's refusal, and throws if it cannot be reached. */
async function settle(worker: Worker, kind: Settlement["kind"], some: Settlement[], signal: AbortSignal): Promise<unknown> {
  const { messages } = worker.caller.stubs;
  const id = requestId();
  const ids = some.map((s) => s.job.claim.claimId);
  try {
    await worker.caller.persist(async () => {
      if (kind === "ack") await messages.ackMessages({ requestId: id, ids });
      else if (kind === "nack") await messages.nackMessages({ requestId: id, nacks: some.map((s) => s.nack!) });
      else await messages.releaseClaims({ requestId: id, ids });
    }, signal);
    return undefined;
  } catch (error) {
    if (transient(error) || worker.caller.connection.closed.aborted) throw error;
    return error;
  }
}

/** Extends the claims of the handlers that still run; a claim that the broker does not extend is lost. */
async function extendAll(worker: Worker): Promise<void> {
  for (const job of [...worker.jobs.values()]) {
    if (!job.running || job.lost !== undefined) continue;
    try {
      await worker.caller.stubs.messages.extendClaims({ extensions: [{ claimId: job.claim.claimId }] });
    } catch (error) {
      if (error instanceof Lost) worker.lose(job, error);
    }
  }
}
