import { linked } from "./abort.js";
import { Backoff } from "./backoff.js";
import type { Caller } from "./caller.js";
import { long, type Long } from "./convert.js";
import { transient } from "./errors.js";
import type { ReceiveResponse } from "./gen/brokerd/v1/message_pb.js";
import { received, type Message } from "./messages.js";

/** What a read of a stream needs: a signal that ends it, and a function that notes that it works. */
export interface Reading {
  signal: AbortSignal;
  worked: () => void;
}

/**
 * Calls read again and again and yields its items: after each stream that breaks, with growing
 * pauses. It ends when the signal aborts, when the client is closed, or when read returns true, and
 * throws an error that another attempt does not heal.
 */
export async function* resumed<T>(
  caller: Caller,
  signal: AbortSignal | undefined,
  read: (reading: Reading) => AsyncGenerator<T, boolean>,
): AsyncGenerator<T, void, undefined> {
  const { connection } = caller;
  const backoff = new Backoff(connection);
  const ending = linked(signal, connection.closed);
  try {
    while (!ending.signal.aborted) {
      let broken: unknown;
      const stream = linked(ending.signal);
      try {
        if (yield* read({ signal: stream.signal, worked: () => backoff.worked() })) return;
      } catch (error) {
        broken = error;
      } finally {
        stream.unlink();
        stream.abort(); // the broker learns that no one reads the stream
      }
      if (ending.signal.aborted) return;
      if (!transient(broken)) throw broken;
      if (!(await backoff.pause(broken, signal))) return;
    }
  } finally {
    ending.unlink();
  }
}

/** FollowOptions say what of the agent's mailbox to read, and from where. */
export interface FollowOptions {
  /** Resume after this revision, such as delivery.arrival of the last message; default everything unfinished. */
  after?: Long;
  types?: string[];
  channels?: string[];
  senders?: string[];
  threadId?: string;
  taskId?: string;
  correlationId?: string;
  lowestPriority?: number;
  /**
   * Finish each message before it is written to the stream: it is delivered at most once. Messages
   * that are on their way when the stream breaks are not shown again.
   */
  autoAck?: boolean;
  /** Ends the iteration, without an error. */
  signal?: AbortSignal;
  /** Called with the revision up to which everything has been yielded: a position to resume after. */
  onProgress?: (revision: bigint) => void;
}

/** Reads the agent's mailbox in order of arrival: the unfinished messages, then new ones. */
export function follow(caller: Caller, options: FollowOptions = {}): AsyncGenerator<Message, void, undefined> {
  let last = long(options.after ?? 0);
  return resumed(caller, options.signal, async function* ({ signal, worked }) {
    const request = {
      afterRevision: last,
      follow: true,
      autoAck: options.autoAck ?? false,
      filter: {
        types: options.types ?? [],
        channels: options.channels ?? [],
        senders: options.senders ?? [],
        threadId: options.threadId ?? "",
        taskId: options.taskId ?? "",
        correlationId: options.correlationId ?? "",
        lowestPriority: options.lowestPriority ?? 0,
      },
    };
    const pages: AsyncIterable<ReceiveResponse> = caller.stubs.messages.receive(request, { signal });
    for await (const page of pages) {
      worked();
      yield* received(page.items);
      if (page.revision > last) last = page.revision;
      options.onProgress?.(last);
    }
    return false;
  });
}
