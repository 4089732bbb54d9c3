/**
 * Thrown by a handler: the attempt failed, and the next one begins after the given time. For tasks,
 * the broker chooses the time.
 */
export class RetryAfter extends Error {
  override name = "RetryAfter";
  constructor(
    /** Milliseconds, or text such as "90s". */
    readonly delay: number | string,
    message = `retry after ${delay}`,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** Thrown by a handler: another attempt is useless. The message becomes a dead letter, the task fails. */
export class Reject extends Error {
  override name = "Reject";
}

/** Thrown by a handler: the work returns to its place unharmed; no attempt is counted. */
export class Release extends Error {
  override name = "Release";
}

/** The reason of a handler's signal when the worker stops and its drain timeout has passed. */
export class Stopped extends Error {
  override name = "Stopped";
  constructor() {
    super("the worker stops");
  }
}

/**
 * Passes an error of a handler to onError, or else writes it with its stack to standard error. Reject, Release and
 * RetryAfter are answers of the handler. what names the message or task.
 */
export function reportError<T>(work: T, what: string, error: unknown, onError?: (work: T, error: unknown) => void): void {
  if (error instanceof Reject || error instanceof Release || error instanceof RetryAfter) return;
  if (onError !== undefined) onError(work, error);
  else console.error(`brokerd: the handler has failed with ${what}:`, error);
}
