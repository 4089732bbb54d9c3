import { Code, createClient, type CallOptions as StubOptions, type Client as Stub } from "@connectrpc/connect";

import { Backoff } from "./backoff.js";
import { milliseconds, type Span } from "./convert.js";
import { BrokerError, interrupted, transient } from "./errors.js";
import type { Connection } from "./connection.js";
import * as proto from "./proto.js";
import { IdentifiedTransport, type Identity } from "./transport.js";

/** Options of every call. */
export interface CallOptions {
  /** Aborts the call, which then throws the signal's reason. */
  signal?: AbortSignal | undefined;
  /** The time for the call, repetitions included; default that of the client, for each attempt, in addition to its own wait. */
  timeout?: Span | undefined;
}

/** Stubs has the generated client of every service, with the identity of the client. */
export interface Stubs {
  readonly admin: Stub<typeof proto.AdminService>;
  readonly agents: Stub<typeof proto.AgentService>;
  readonly artifacts: Stub<typeof proto.ArtifactService>;
  readonly blockers: Stub<typeof proto.BlockerService>;
  readonly catalog: Stub<typeof proto.CatalogService>;
  readonly channels: Stub<typeof proto.ChannelService>;
  readonly credentials: Stub<typeof proto.CredentialService>;
  readonly decisions: Stub<typeof proto.DecisionService>;
  readonly events: Stub<typeof proto.EventService>;
  readonly handoffs: Stub<typeof proto.HandoffService>;
  readonly locks: Stub<typeof proto.LockService>;
  readonly messages: Stub<typeof proto.MessageService>;
  readonly sessions: Stub<typeof proto.SessionService>;
  readonly state: Stub<typeof proto.StateService>;
  readonly tasks: Stub<typeof proto.TaskService>;
  readonly tokens: Stub<typeof proto.TokenService>;
  readonly votes: Stub<typeof proto.VoteService>;
}

/** A Caller makes calls in the name of an identity, over a connection. */
export class Caller {
  readonly stubs: Stubs;

  constructor(
    readonly connection: Connection,
    readonly identity: Identity,
  ) {
    const transport = new IdentifiedTransport(connection, identity);
    this.stubs = {
      admin: createClient(proto.AdminService, transport),
      agents: createClient(proto.AgentService, transport),
      artifacts: createClient(proto.ArtifactService, transport),
      blockers: createClient(proto.BlockerService, transport),
      catalog: createClient(proto.CatalogService, transport),
      channels: createClient(proto.ChannelService, transport),
      credentials: createClient(proto.CredentialService, transport),
      decisions: createClient(proto.DecisionService, transport),
      events: createClient(proto.EventService, transport),
      handoffs: createClient(proto.HandoffService, transport),
      locks: createClient(proto.LockService, transport),
      messages: createClient(proto.MessageService, transport),
      sessions: createClient(proto.SessionService, transport),
      state: createClient(proto.StateService, transport),
      tasks: createClient(proto.TaskService, transport),
      tokens: createClient(proto.TokenService, transport),
      votes: createClient(proto.VoteService, transport),
    };
  }

  /**
   * Makes a call, and repeats it for the timeout of the client while the broker restarts. A change must carry a
   * request id, so that the broker executes it once.
   */
  async call<T>(make: (options: StubOptions) => Promise<T>, options: CallOptions = {}): Promise<T> {
    const { signal } = options;
    const timeout = options.timeout === undefined ? undefined : milliseconds(options.timeout);
    const end = timeout === undefined ? Infinity : performance.now() + timeout;
    const backoff = new Backoff(this.connection);
    const patience = this.connection.timeout;
    let failingSince: number | undefined;
    for (;;) {
      const began = performance.now();
      try {
        const left = timeout === undefined ? {} : { timeoutMs: Math.max(1, end - began) };
        return await make(signal === undefined ? left : { ...left, signal });
      } catch (error) {
        const now = performance.now();
        const late = error instanceof BrokerError && error.code === Code.DeadlineExceeded;
        if (failingSince === undefined || (now - began > patience && !late)) failingSince = now;
        const ended = late && this.connection.addresses.length === 1; // of several replicas, another one may answer
        if (!interrupted(error) || ended || now >= Math.min(end, failingSince + patience)) throw error;
        if (!(await backoff.pause(error, signal))) {
          signal?.throwIfAborted();
          this.connection.closed.throwIfAborted();
        }
      }
    }
  }

  /** Makes a call again and again while the broker cannot be reached, until the signal aborts. */
  async persist<T>(make: () => Promise<T>, signal: AbortSignal): Promise<T> {
    const backoff = new Backoff(this.connection);
    for (;;) {
      try {
        return await make();
      } catch (error) {
        if (!transient(error) || !(await backoff.pause(error, signal))) throw error;
      }
    }
  }
}
