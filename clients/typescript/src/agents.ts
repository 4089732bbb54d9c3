import { Caller, type CallOptions } from "./caller.js";
import type { Registration } from "./connection.js";
import { duration, milliseconds, requestId, type Span } from "./convert.js";
import { transient } from "./errors.js";
import { AgentStatus, type Agent, type HeartbeatResponse, type Loss, type RegisterAgentResponse } from "./gen/brokerd/v1/agent_pb.js";
import { optional } from "./messages.js";
import { labelsIn, words } from "./settings-file.js";
import type { Identity } from "./transport.js";

/** The lease that the broker gives an agent that asks for none. */
const defaultLease = 90_000; // ms

/** RegisterOptions describe an agent. Role, capabilities and labels that they do not give come from .brokerd.yaml after Client.fromEnv. */
export interface RegisterOptions extends CallOptions {
  role?: string;
  capabilities?: string[];
  labels?: Record<string, string>;
  /** How long the broker considers the agent alive after its last call; default 90 s. */
  lease?: Span;
  instance?: string;
  worktree?: string;
  displayName?: string;
  description?: string;
  /** Clear what is not given. By default it stays as an earlier registration has it, except lease. */
  replace?: boolean;
  requestId?: string;
  /** Called with what the agent lost, if its lease ended while it was away. */
  onLosses?: (losses: Loss[]) => void;
}

/** HeartbeatOptions say what the agent does; an absent field stays as it is. */
export interface HeartbeatOptions extends CallOptions {
  status?: "initializing" | "active" | "idle" | "waiting" | "blocked" | "completed" | "terminated" | "degraded" | "failed" | "stopped";
  /** Why it has this status. */
  reason?: string;
  activity?: string;
  /** 0 to 1. */
  progress?: number;
  taskId?: string;
  lastTool?: string;
  lastFile?: string;
  /** Return the unread notices, and mark them as read. */
  notices?: boolean;
}

/** ListAgentsOptions select agents. */
export interface ListAgentsOptions extends CallOptions {
  role?: string;
  capabilities?: string[];
  pattern?: string;
}

export async function register(caller: Caller, options: RegisterOptions): Promise<RegisterAgentResponse> {
  const described = caller.connection.agents[caller.identity.agent] ?? {};
  const request = {
    requestId: options.requestId ?? requestId(),
    role: options.role ?? described.role ?? "",
    capabilities: options.capabilities ?? words(described.capabilities),
    labels: { ...labelsIn(described.labels), ...options.labels },
    instance: options.instance ?? "",
    worktree: options.worktree ?? "",
    displayName: options.displayName ?? "",
    description: options.description ?? "",
    replace: options.replace ?? false,
    ...optional("lease", duration(options.lease)),
  };
  return caller.call((o) => caller.stubs.agents.registerAgent(request, o), options);
}

export async function heartbeat(caller: Caller, options: HeartbeatOptions = {}): Promise<HeartbeatResponse> {
  const status = options.status?.toUpperCase() as keyof typeof AgentStatus | undefined;
  const request = {
    status: status === undefined ? AgentStatus.UNSPECIFIED : AgentStatus[status],
    notices: options.notices ?? false,
    ...optional("statusReason", options.reason),
    ...optional("activity", options.activity),
    ...optional("progress", options.progress),
    ...optional("taskId", options.taskId),
    ...optional("lastTool", options.lastTool),
    ...optional("lastFile", options.lastFile),
  };
  return caller.call((o) => caller.stubs.agents.heartbeat(request, o), options);
}

export async function listAgents(caller: Caller, options: ListAgentsOptions = {}): Promise<Agent[]> {
  const found: Agent[] = [];
  let pageToken = "";
  do {
    const { role = "", capabilities = [], pattern = "" } = options;
    const request = { role, capabilities, pattern, pageSize: 1000, pageToken };
    const page = await caller.call((o) => caller.stubs.agents.listAgents(request, o), options);
    found.push(...page.agents);
    pageToken = page.nextPageToken;
  } while (pageToken !== "");
  return found;
}

/** How long the report that a program ends may take. */
const farewell = 2_000; // ms

const keyOf = ({ session, agent }: Identity): string => `${session}/${agent}`;

/** Registered says how an agent was registered. */
export interface Registered {
  incarnation: bigint;
  /** As asked for. */
  lease: Span | undefined;
  /** When the call began, as performance.now gives it. */
  began: number;
}

/** Keeps the lease of an agent that was registered, in place of an earlier registration with the connection. */
export function keepAlive(caller: Caller, registered: Registered, onLosses: (losses: Loss[]) => void): void {
  forget(caller);
  caller.connection.registered.set(keyOf(caller.identity), new Pulse(caller, registered, onLosses));
}

/** Ends the heartbeats of an agent. */
export function forget({ connection, identity }: Caller): void {
  connection.registered.get(keyOf(identity))?.end();
  connection.registered.delete(keyOf(identity));
}

/**
 * A Pulse keeps the lease of a registered agent: a heartbeat every third of it, until it is stopped
 * or the client is closed. It does not keep the process alive.
 */
class Pulse implements Registration {
  #timer: NodeJS.Timeout | undefined;
  #stopped = false;
  readonly #lease: number;
  readonly #interval: number;
  /** When the last call that has renewed the lease began. */
  #renewed: number;
  /** The newest one that the broker has reported to this client. */
  #incarnation: bigint;

  constructor(
    readonly caller: Caller,
    { incarnation, lease, began }: Registered,
    readonly onLosses: (losses: Loss[]) => void,
  ) {
    this.#lease = milliseconds(lease ?? defaultLease);
    this.#interval = this.#lease / 3;
    this.#renewed = began;
    this.#incarnation = incarnation;
    this.#schedule(this.#interval);
    caller.connection.closed.addEventListener("abort", () => this.end(), { once: true });
  }

  end(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
  }

  async stop(): Promise<void> {
    this.end();
    try {
      const { connection, identity } = this.caller;
      const own = new Caller(connection, { ...identity, incarnation: this.#incarnation });
      await own.stubs.agents.heartbeat({ status: AgentStatus.STOPPED }, { timeoutMs: farewell });
    } catch {
      // Its lease ends by itself: the broker is away, or another program has registered the agent.
    }
  }

  #schedule(after: number): void {
    if (!this.#stopped) this.#timer = setTimeout(() => void this.#beat(), after).unref();
  }

  async #beat(): Promise<void> {
    const began = performance.now();
    try {
      const { incarnation, losses } = await this.caller.stubs.agents.heartbeat({}, { timeoutMs: Math.max(this.#interval, 1000) });
      // Otherwise its lease has not ended: another program has registered the agent.
      if (performance.now() - this.#renewed >= this.#lease) this.#incarnation = incarnation;
      this.#renewed = began;
      this.#schedule(this.#interval);
      if (losses.length > 0) this.onLosses(losses);
    } catch (error) {
      // The broker refuses the heartbeat of an agent that is no longer registered; every other call
      // of the agent says so. If the broker is away, the next heartbeat comes sooner.
      if (transient(error)) this.#schedule(Math.min(this.#interval, 1000));
    }
  }
}
