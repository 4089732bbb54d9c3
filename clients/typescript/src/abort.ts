import { setMaxListeners } from "node:events";

/**
 * Returns a controller whose signal any number of calls may use at once. Node warns of a leak at the
 * eleventh listener otherwise.
 */
export function newController(): AbortController {
  const controller = new AbortController();
  setMaxListeners(0, controller.signal);
  return controller;
}

/** A Link is a controller that aborts with any of some signals, until it is unlinked from them. */
export interface Link {
  signal: AbortSignal;
  abort(reason?: unknown): void;
  unlink(): void;
}

/**
 * Returns a controller that aborts with any of the signals. AbortSignal.any would keep a reference
 * for as long as a signal lives, which adds up on signals that live as long as the program.
 */
export function linked(...signals: (AbortSignal | undefined)[]): Link {
  const controller = newController();
  const undo: (() => void)[] = [];
  for (const signal of signals) {
    if (signal === undefined) continue;
    const abort = () => controller.abort(signal.reason);
    if (signal.aborted) abort();
    signal.addEventListener("abort", abort, { once: true });
    undo.push(() => signal.removeEventListener("abort", abort));
  }
  return {
    signal: controller.signal,
    abort: (reason) => controller.abort(reason),
    unlink: () => undo.forEach((f) => f()),
  };
}
