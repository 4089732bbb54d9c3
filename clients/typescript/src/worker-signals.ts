import { linked, type Link } from "./abort.js";

/** How long handlers may continue once a worker stops, unless the caller says otherwise. */
export const defaultDrain = 30_000; // ms

/** How long a worker waits for handlers whose signal has aborted, and for the broker to end a stream. */
export const stopGrace = 5_000; // ms

/** StopOptions say when a worker stops. */
export interface StopOptions {
  /** The worker drains when the signal aborts. */
  signal?: AbortSignal;
  /** Process signals at which the worker drains; default SIGTERM and SIGINT. A second one ends the process. */
  stopOn?: NodeJS.Signals[];
  /** How long handlers may continue while the worker drains; default 30 s. Then their signals abort. */
  drain?: number | string;
}

/** Returns a signal that aborts when a worker has to stop. Its unlink removes the process signal handlers. */
export function stopping(options: StopOptions, ...others: AbortSignal[]): Link {
  const link = linked(options.signal, ...others);
  const names = options.stopOn ?? ["SIGTERM", "SIGINT"];
  const unlisten = names.map((name) => listen(name, () => link.abort(name)));
  return {
    signal: link.signal,
    abort: link.abort,
    unlink: () => {
      unlisten.forEach((f) => f());
      link.unlink();
    },
  };
}

/**
 * The workers that a process signal stops. The process has one listener for each signal, however
 * many workers it runs: Node warns of a leak at the eleventh.
 */
const stops = new Map<NodeJS.Signals, Set<() => void>>();

/** Calls stop at the next process signal of this name, and returns a function that undoes that. */
function listen(name: NodeJS.Signals, stop: () => void): () => void {
  const waiting = stops.get(name) ?? new Set();
  if (waiting.size === 0) process.once(name, deliver);
  stops.set(name, waiting.add(stop));
  return () => {
    if (waiting.delete(stop) && waiting.size === 0) process.removeListener(name, deliver);
  };
}

/** Stops the workers that run now. The next signal has its usual effect. */
function deliver(name: NodeJS.Signals): void {
  const waiting = [...(stops.get(name) ?? [])];
  stops.get(name)?.clear();
  waiting.forEach((stop) => stop());
}

/** A Wakeup makes one loop wait until another part of the program has something for it. */
export class Wakeup {
  #pending = false;
  #resolve: (() => void) | undefined;

  /** Ends the present wait, or the next one. */
  wake(): void {
    this.#pending = true;
    this.#resolve?.();
  }

  /** Waits until wake is called, at most for the given milliseconds. */
  async wait(atMost?: number): Promise<void> {
    if (!this.#pending) {
      let timer: NodeJS.Timeout | undefined;
      await new Promise<void>((resolve) => {
        this.#resolve = resolve;
        if (atMost !== undefined) timer = setTimeout(resolve, Math.max(atMost, 0));
      });
      clearTimeout(timer);
      this.#resolve = undefined;
    }
    this.#pending = false;
  }
}
