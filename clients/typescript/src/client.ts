import * as agents from "./agents.js";
import { Artifacts } from "./artifacts.js";
import { Caller, type CallOptions, type Stubs } from "./caller.js";
import { Connection, type RetryNotice } from "./connection.js";
import { long, milliseconds, requestId, type Long, type Span } from "./convert.js";
import { Decisions } from "./decisions.js";
import { Events } from "./events.js";
import { localBroker, surroundings } from "./find-broker.js";
import { follow, type FollowOptions } from "./follow.js";
import type { Agent, HeartbeatResponse, Loss } from "./gen/brokerd/v1/agent_pb.js";
import { Locks, Tokens } from "./holds.js";
import * as messages from "./messages.js";
import type { AgentSettings } from "./settings-file.js";
import { State } from "./state.js";
import { Tasks } from "./tasks.js";
import type { TLS } from "./tls.js";
import type { Identity } from "./transport.js";
import { work, type Handler, type WorkOptions } from "./work.js";

/** ClientOptions say where the broker is and who calls. */
export interface ClientOptions {
  /**
   * unix:///path/of/socket, tls://host:port, or host:port, which means TLS if the option tls is given;
   * default the local broker, found by its endpoint file. Replicas of one broker have several addresses, with commas
   * between them: the client connects to the first that answers, and to the next when it does not answer any more.
   */
  address?: string;
  /** Proves the caller; TCP always needs one. */
  credential?: string;
  /** How to speak TLS. */
  tls?: TLS;
  /** Default "default". */
  session?: string;
  /** The agent that calls; default "system", which only operators may act as. */
  agent?: string;
  /** The broker refuses calls once the agent has registered again since this incarnation. */
  incarnation?: Long;
  /** The broker refuses calls once the agent has lost the lock, token or task with this fence. */
  fence?: Long;
  /**
   * How long a call may take, in addition to the time that it asks the broker to wait, and for how
   * long the client repeats it while the broker restarts; default 10 s.
   */
  timeout?: Span;
  /** Called before the client connects again, with the error and the pause in milliseconds. */
  onRetry?: RetryNotice;
  /** What register takes of an agent, by name, where its options say nothing; fromEnv reads it from .brokerd.yaml. */
  agents?: Record<string, AgentSettings>;
}

/**
 * A Client is a connection to a broker together with the identity of its calls. asAgent, inSession
 * and fenced return further clients on the same connection.
 *
 * An open connection without calls does not keep the process alive.
 */
export class Client implements AsyncDisposable {
  /** The generated client of every service, with the identity of this client. */
  readonly stubs: Stubs;
  readonly identity: Readonly<Identity>;
  readonly artifacts: Artifacts;
  readonly decisions: Decisions;
  readonly events: Events;
  readonly locks: Locks;
  readonly state: State;
  readonly tasks: Tasks;
  readonly tokens: Tokens;
  /** What the agent has lost because its lease ended, as the broker has reported to this client. */
  readonly losses: Loss[] = [];
  readonly #caller: Caller;

  private constructor(caller: Caller) {
    this.#caller = caller;
    this.identity = caller.identity;
    this.stubs = caller.stubs;
    this.artifacts = new Artifacts(caller);
    this.decisions = new Decisions(caller);
    this.events = new Events(caller);
    this.locks = new Locks(caller, (fence) => this.fenced(fence));
    this.state = new State(caller);
    this.tasks = new Tasks(caller);
    this.tokens = new Tokens(caller, (fence) => this.fenced(fence));
  }

  /**
   * Connects to a broker. A broker that restarts has left its endpoint file or its socket: connect
   * waits for it, for timeout. Otherwise it throws Unreachable at once if no broker listens.
   */
  static async connect(options: ClientOptions = {}): Promise<Client> {
    const { address, ...found } = options.address === undefined ? localBroker() : { address: options.address };
    const { credential, tls, onRetry, agents } = options;
    const timeout = options.timeout === undefined ? undefined : milliseconds(options.timeout);
    const announced = options.address === undefined;
    const connection = new Connection(address, { ...found, announced, ...given({ credential, tls, onRetry, timeout, agents }) });
    await connection.open();
    const { session = "", agent = "", incarnation = 0, fence = 0 } = options;
    return new Client(new Caller(connection, { session, agent, incarnation: long(incarnation), fence: long(fence) }));
  }

  /**
   * Connects as the environment and .brokerd.yaml say, as brokerctl does. Options take precedence
   * over the environment, and the environment over the file.
   */
  static async fromEnv(options: ClientOptions = {}): Promise<Client> {
    return Client.connect(surroundings(given(options)));
  }

  /** The address of the broker. */
  get address(): string {
    return this.#caller.connection.address;
  }

  /** Returns a client for another agent of the session, on the same connection. */
  asAgent(agent: string): Client {
    return this.#with({ agent, incarnation: 0n, fence: 0n });
  }

  /** Returns a client for another session, with the same name of the agent and on the same connection. */
  inSession(session: string): Client {
    return this.#with({ session, incarnation: 0n, fence: 0n });
  }

  /** Returns a client whose calls the broker refuses once the agent has registered again. */
  atIncarnation(incarnation: Long): Client {
    return this.#with({ incarnation: long(incarnation) });
  }

  /** Returns a client whose calls the broker refuses once the agent has lost this fence. */
  fenced(fence: Long): Client {
    return this.#with({ fence: long(fence) });
  }

  #with(changes: Partial<Identity>): Client {
    return new Client(new Caller(this.#caller.connection, { ...this.identity, ...changes }));
  }

  /**
   * Closes the connection for all clients that share it. Calls, streams and workers end. It reports the agents that
   * these clients have registered as stopped, which takes at most 2 s, and resolves when the connection is closed.
   */
  close(): Promise<void> {
    return this.#caller.connection.close();
  }

  /**
   * The end of an await using block: close. It reports the agents as stopped also if an error leaves the block, because
   * JavaScript does not say why a block ends. A program that counts as failed reports heartbeat({ status: "failed",
   * reason }) before that: the agent keeps this status when it stops.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /**
   * Registers the agent and then keeps its lease with heartbeats, until it deregisters or the client is closed.
   * close reports it as stopped. Registering again at each start is right: the agent keeps all that it holds.
   * losses has what it has lost.
   */
  async register(options: agents.RegisterOptions = {}): Promise<Agent> {
    const began = performance.now();
    const { agent, losses } = await agents.register(this.#caller, options);
    const lost = (some: Loss[]) => {
      this.losses.push(...some);
      options.onLosses?.(some);
    };
    agents.keepAlive(this.#caller, { incarnation: agent!.incarnation, lease: options.lease, began }, lost);
    if (losses.length > 0) lost(losses);
    return agent!;
  }

  /**
   * Reports what the agent does, and renews its lease. The status stopped says that the program ends well: the broker
   * releases what the agent holds, and its mail stays.
   */
  async heartbeat(options?: agents.HeartbeatOptions): Promise<HeartbeatResponse> {
    if (options?.status === "stopped") agents.forget(this.#caller);
    const answer = await agents.heartbeat(this.#caller, options);
    this.losses.push(...answer.losses);
    return answer;
  }

  /** Ends the agent's registration. The broker releases all that the agent holds. */
  async deregister(options?: CallOptions): Promise<void> {
    agents.forget(this.#caller);
    const request = { requestId: requestId() };
    await this.#caller.call((o) => this.stubs.agents.deregisterAgent(request, o), options);
  }

  /** Lists the registered agents by name. */
  agents(options?: agents.ListAgentsOptions): Promise<Agent[]> {
    return agents.listAgents(this.#caller, options);
  }

  /**
   * Sends a message to "builder-1", "role:builder", "channel:general", "builder-*" or "everyone". A
   * text of one short line becomes the subject, any other text the body, and an object the payload.
   */
  send(to: string, text: messages.Reply = "", options?: messages.MessageOptions): Promise<messages.Receipt> {
    return messages.send(this.#caller, to, text, options);
  }

  /**
   * Sends a message and waits for the reply; undefined if none comes within timeout (30 s), or at once if none can come: the
   * message has become a dead letter, has expired, was cancelled, or was acknowledged without a reply.
   */
  ask(to: string, text: messages.Reply, options?: messages.MessageOptions): Promise<messages.Message | undefined> {
    return messages.ask(this.#caller, to, text, options);
  }

  /** Answers a message. With ack, the default for a Claim, the call also finishes the claim, in one transaction. */
  reply(
    to: messages.Message | string,
    text: messages.Reply,
    options: messages.MessageOptions & { ack?: boolean } = {},
  ): Promise<messages.Receipt> {
    const { ack = to instanceof messages.Claim } = options;
    return messages.reply(this.#caller, idOf(to), text, { ...options, ack });
  }

  /** Lists the unfinished mail of the agent in order of arrival. A client without an agent's name reads the mailbox that all operators share. */
  inbox(options?: messages.InboxOptions): Promise<messages.Message[]> {
    return messages.inbox(this.#caller, options);
  }

  /** Claims one message; undefined if there is none. After a restart, it returns a claim that the agent still holds. */
  claim(options?: messages.ClaimOptions): Promise<messages.Claim | undefined> {
    return messages.claim(this.#caller, options);
  }

  /** Finishes messages: claims, or unclaimed mail of the agent by id or revision. */
  async ack(...items: (messages.Message | string)[]): Promise<void> {
    await messages.ack(this.#caller, items.map(idOf));
  }

  /** Reports a failed attempt on a claim. */
  async nack(item: messages.Claim | string, error: string, options?: messages.NackOptions): Promise<void> {
    await messages.nack(this.#caller, idOf(item), error, options);
  }

  /** Makes a claim last for the given time from now on; default as long as before. */
  async extend(item: messages.Claim | string, span?: Span, options?: CallOptions): Promise<void> {
    await messages.extend(this.#caller, idOf(item), span, options);
  }

  /** Returns claimed messages to their place; no attempt is counted. */
  async release(...items: (messages.Claim | string)[]): Promise<void> {
    await messages.release(this.#caller, items.map(idOf));
  }

  /**
   * Yields the messages of the agent's own mailbox in order of arrival: the unfinished ones, then new
   * ones. It claims nothing. When the stream breaks, it reconnects and resumes: no message is missed
   * or yielded twice.
   */
  follow(options?: FollowOptions): AsyncGenerator<messages.Message, void, undefined> {
    return follow(this.#caller, options);
  }

  /** Subscribes the agent to a channel: what is sent to it from now on arrives in the agent's mailbox. */
  subscribe(channel: string, options?: CallOptions): Promise<void> {
    return messages.subscribe(this.#caller, channel, options);
  }

  /** Ends the subscription. Mail that has arrived stays. */
  unsubscribe(channel: string, options?: CallOptions): Promise<void> {
    return messages.unsubscribe(this.#caller, channel, options);
  }

  /**
   * Takes messages and runs the handler on each, until the signal aborts, the process receives
   * SIGTERM or SIGINT, or the client is closed. The broker extends the claims while the connection
   * lives. When it breaks, handlers continue; the worker reconnects and takes its claims over.
   *
   * A worker that stops takes nothing more, waits for its handlers, settles what they did, and
   * resolves. The agent stays registered until the client is closed: call close afterwards. It throws
   * an error that another attempt does not heal, such as that of an agent that is not registered.
   */
  work(handler: Handler, options?: WorkOptions): Promise<void> {
    return work(this.#caller, handler, options);
  }
}

/** Returns the id of a claim or of the agent's copy of a message. */
function idOf(item: messages.Message | string): string {
  if (typeof item === "string") return item;
  return item instanceof messages.Claim ? item.claimId : item.id;
}

/** Returns the properties that are set: an option that is undefined does not hide the environment. */
function given<T extends object>(options: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as never;
}
