import type { DescMessage, DescMethodStreaming, DescMethodUnary, MessageInitShape } from "@bufbuild/protobuf";
import { durationMs, type Duration } from "@bufbuild/protobuf/wkt";
import { Code, type ContextValues, type StreamResponse, type Transport, type UnaryResponse } from "@connectrpc/connect";

import type { Connection } from "./connection.js";

type HeadersInit = ConstructorParameters<typeof Headers>[0];

/** Identity is the caller and the session. It accompanies every call as metadata. */
export interface Identity {
  /** Empty = "default". */
  session: string;
  /** Empty = "system", which only operators may act as. */
  agent: string;
  /** 0 = the newest. */
  incarnation: bigint;
  /** Of a lock, token or task that the agent must hold for the call to be carried out; 0 = none. */
  fence: bigint;
}

/**
 * An IdentifiedTransport adds an identity to every call of a connection, gives each unary call a
 * deadline, and throws the errors of this package. Streams have no deadline: pings detect that the
 * broker does not answer.
 */
export class IdentifiedTransport implements Transport {
  readonly #headers: [string, string][];

  constructor(
    readonly connection: Connection,
    identity: Identity,
  ) {
    const named: [string, string][] = [
      ["brokerd-session", identity.session],
      ["brokerd-agent", identity.agent],
      ["brokerd-incarnation", identity.incarnation === 0n ? "" : `${identity.incarnation}`],
      ["brokerd-fence", identity.fence === 0n ? "" : `${identity.fence}`],
    ];
    this.#headers = [...connection.headers, ...named.filter(([, value]) => value !== "")];
  }

  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    header: HeadersInit | undefined,
    input: MessageInitShape<I>,
    contextValues?: ContextValues,
  ): Promise<UnaryResponse<I, O>> {
    this.connection.closed.throwIfAborted();
    const { transport, number, timeout } = this.connection;
    const longest = timeout + wait(input);
    const deadline = Math.ceil(timeoutMs ?? longest); // gRPC has whole milliseconds
    try {
      return await transport.unary(method, signal, deadline, this.#marked(header), input, contextValues);
    } catch (error) {
      throw this.#explain(error, signal, number, deadline >= longest);
    }
  }

  async stream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodStreaming<I, O>,
    signal: AbortSignal | undefined,
    timeoutMs: number | undefined,
    header: HeadersInit | undefined,
    input: AsyncIterable<MessageInitShape<I>>,
    contextValues?: ContextValues,
  ): Promise<StreamResponse<I, O>> {
    this.connection.closed.throwIfAborted();
    const { transport, number } = this.connection;
    try {
      const response = await transport.stream(method, signal, timeoutMs, this.#marked(header), input, contextValues);
      return { ...response, message: this.#explained(response.message, signal, number) };
    } catch (error) {
      throw this.#explain(error, signal, number, false);
    }
  }

  #marked(header: HeadersInit | undefined): Headers {
    const headers = new Headers(header);
    for (const [name, value] of this.#headers) headers.set(name, value);
    return headers;
  }

  async *#explained<T>(messages: AsyncIterable<T>, signal: AbortSignal | undefined, number: number): AsyncGenerator<T> {
    try {
      yield* messages;
    } catch (error) {
      throw this.#explain(error, signal, number, false);
    }
  }

  /**
   * Returns the reason of the signal for a call that the caller aborted, and its error otherwise. If the replica has no
   * leader, or has let the client's own deadline pass (late), the next attempt goes to another one. number is that of
   * the connection.
   */
  #explain(error: unknown, signal: AbortSignal | undefined, number: number, late: boolean): unknown {
    if (this.connection.closed.aborted) return this.connection.closed.reason;
    if (signal?.aborted) return signal.reason;
    const failure = this.connection.explain(error);
    const silent = late && failure.code === Code.DeadlineExceeded && failure.reason === "";
    if (silent || failure.reason === "NO_LEADER") this.connection.leave(number);
    return failure;
  }
}

/** Returns the milliseconds for which a request asks the broker to wait. */
function wait(input: object): number {
  const asked = "wait" in input ? (input.wait as Partial<Duration> | undefined) : undefined;
  return asked === undefined ? 0 : durationMs({ seconds: 0n, nanos: 0, ...asked } as Duration);
}
