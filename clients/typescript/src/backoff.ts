import { setTimeout as sleep } from "node:timers/promises";

import { linked } from "./abort.js";
import type { Connection } from "./connection.js";
import { BrokerError } from "./errors.js";

const firstDelay = 50; // ms
const longestDelay = 3000; // ms

/**
 * A Backoff spaces out attempts to reach the broker: each pause is twice as long as the last, at
 * most 3 s, with jitter, so that the clients of a restarted broker do not all call at once.
 */
export class Backoff {
  #delay = 0;

  constructor(readonly connection: Connection) {}

  /** Notes that an attempt succeeded: the next failure is a first one again. */
  worked(): void {
    this.#delay = 0;
  }

  /** Waits before the next attempt. It returns false if the signal aborts or the client is closed. */
  async pause(error: unknown, signal?: AbortSignal): Promise<boolean> {
    this.#delay = Math.min(Math.max(2 * this.#delay, firstDelay), longestDelay);
    const wanted = error instanceof BrokerError ? error.retryAfter : 0;
    const pause = Math.max((this.#delay / 2) * (1 + Math.random()), wanted);
    if (signal?.aborted || this.connection.closed.aborted) return false;
    this.connection.onRetry?.(error, pause);
    const wake = linked(signal, this.connection.closed);
    try {
      await sleep(pause, undefined, { signal: wake.signal });
      return true;
    } catch {
      return false;
    } finally {
      wake.unlink();
    }
  }
}
