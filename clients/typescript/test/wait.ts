/** A Gate is a promise that other code opens. */
export class Gate<T = void> {
  open!: (value: T) => void;
  readonly opened = new Promise<T>((resolve) => (this.open = resolve));
}

/** Waits until a signal aborts, and returns its reason. */
export async function aborted(signal: AbortSignal): Promise<unknown> {
  if (!signal.aborted) await new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
  return signal.reason;
}

/** Returns the first values of an iterator, and ends it. */
export async function take<T>(count: number, values: AsyncIterable<T>): Promise<T[]> {
  const taken: T[] = [];
  for await (const value of values) {
    taken.push(value);
    if (taken.length === count) break;
  }
  return taken;
}
