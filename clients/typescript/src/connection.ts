import { existsSync } from "node:fs";
import { connect as connectSocket, type Socket } from "node:net";
import { connect as connectTLS, TLSSocket } from "node:tls";

import { Code, ConnectError, type Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";

import { newController } from "./abort.js";
import { Backoff } from "./backoff.js";
import { callError, Closed, interrupted, Invalid, Unreachable, type BrokerError } from "./errors.js";
import type { AgentSettings } from "./settings-file.js";
import { speaksTLS, tlsOptions, tlsProblem, type TLS } from "./tls.js";

const keepalive = 30_000; // ms without data until the client pings
const replicaKeepalive = 10_000; // the same, where another replica can answer in place of one that is frozen or cut off
const keepaliveTimeout = 10_000; // ms until a connection whose ping has no answer is given up
const replicaConnectTimeout = 5_000; // ms to connect to one of several replicas: one that is cut off does not refuse
const streamWindow = 1 << 20; // bytes
const maxReceive = 8 << 20; // bytes; the broker keeps its answers under 4 MiB

/** How many milliseconds a call may take, and is repeated, unless the caller says otherwise. */
const defaultTimeout = 10_000;

/** Called with the error and the pause in milliseconds before the client connects again. */
export type RetryNotice = (error: unknown, pause: number) => void;

/** ConnectionOptions say how to reach a broker. */
export interface ConnectionOptions {
  credential?: string;
  tls?: TLS;
  /** The broker has left its endpoint file. */
  announced?: boolean;
  onRetry?: RetryNotice;
  /** In milliseconds. */
  timeout?: number;
  /** What .brokerd.yaml says of agents, by name. */
  agents?: Record<string, AgentSettings>;
}

/** A Registration is an agent that a client has registered. */
export interface Registration {
  /** Ends its heartbeats, and reports that its program ends well. */
  stop(): Promise<void>;
  /** Ends its heartbeats. */
  end(): void;
}

/** A Connection is what all clients of one connection share. It connects when it is used. */
export class Connection {
  readonly address: string;
  /** One for each replica, if there are several. */
  readonly addresses: readonly string[];
  readonly transport: Transport;
  /** Metadata of every call. */
  readonly headers: readonly [string, string][];
  readonly onRetry: RetryNotice | undefined;
  /** How many milliseconds a call may take beyond its own wait. A call is repeated for as long. */
  readonly timeout: number;
  /** What .brokerd.yaml says of agents, by name. */
  readonly agents: Readonly<Record<string, AgentSettings>>;
  /** Reports whether a broker that does not answer has left an endpoint file or a socket: it will return. */
  readonly #expected: () => boolean;
  readonly #sessions: Http2SessionManager;
  /** How many connections have been opened: each leads to the next address. */
  #opened = 0;
  /** What is wrong with TLS, and where, since the last attempt to connect. */
  #problem: string | undefined;
  readonly #closing = newController();
  #ended: Promise<void> | undefined;
  /** The agents that clients of this connection have registered, by session and name. */
  readonly registered = new Map<string, Registration>();

  constructor(address: string, options: ConnectionOptions = {}) {
    const { credential = "", tls = {}, announced = false, onRetry, timeout = defaultTimeout, agents = {} } = options;
    // After a comma in the path of a socket, nothing begins that could be an address.
    const places = address.split(/,(?=\s*(?:unix:|tls:\/\/|[^,/]+:\d+\s*(?:,|$)))/).map((one) => parseAddress(one.trim(), tls));
    const secure = places.some((where) => "host" in where && where.secure);
    if (secure) tlsOptions(tls, "", 0); // throws now and not when it connects
    const open = (): Socket => {
      const where = places[this.#opened++ % places.length]!;
      const socket = this.#open(where, tls);
      if (places.length > 1) limitConnecting(socket, where.address);
      return socket;
    };
    this.address = address;
    this.addresses = places.map((where) => where.address);
    this.headers = credential === "" ? [] : [["authorization", `Bearer ${credential}`]];
    this.onRetry = onRetry;
    this.timeout = timeout;
    this.agents = agents;
    this.#expected = () => announced || places.some((where) => "path" in where && existsSync(where.path)) || places.length > 1;
    const named = places.find((where) => "host" in where);
    const baseUrl = named === undefined ? "http://localhost" : `${secure ? "https" : "http"}://${named.authority}`;
    const pings = { pingIntervalMs: places.length > 1 ? replicaKeepalive : keepalive, pingTimeoutMs: keepaliveTimeout };
    this.#sessions = new Http2SessionManager(baseUrl, pings, {
      createConnection: open,
      settings: { enablePush: false, initialWindowSize: streamWindow },
      maxSessionMemory: 64, // MB; several streams may hold a window of unread data
    });
    this.transport = createGrpcTransport({
      baseUrl,
      sessionManager: this.#sessions,
      readMaxBytes: maxReceive,
      acceptCompression: [],
    });
  }

  /** Aborts when the connection is closed. */
  get closed(): AbortSignal {
    return this.#closing.signal;
  }

  /** Connects now, or as soon as a broker that restarts listens. It throws Unreachable if there is none. */
  async open(): Promise<void> {
    const end = performance.now() + this.timeout;
    const backoff = new Backoff(this);
    while ((await this.#sessions.connect()) === "error") {
      const error = this.explain(this.#sessions.error());
      const late = !this.#expected() || performance.now() >= end;
      if (late || !interrupted(error) || !(await backoff.pause(error))) throw error;
    }
  }

  /** Returns the error of a call, with what is wrong with TLS if that is why the broker has not answered. */
  explain(error: unknown): BrokerError {
    const failure = callError(error, this.addresses);
    if (this.#problem === undefined || !(failure instanceof Unreachable)) return failure;
    return new Unreachable(this.#problem, {}, undefined, { cause: failure });
  }

  /** The number of the connection that a call uses if it begins now. */
  get number(): number {
    const state = this.#sessions.state();
    return state === "closed" || state === "error" ? this.#opened + 1 : this.#opened;
  }

  /** Ends a connection whose replica does not serve, unless another has replaced it. The next one leads to the next address. */
  leave(number: number): void {
    if (this.addresses.length === 1 || number !== this.#opened) return;
    this.#sessions.abort(new ConnectError("the client has left a replica that does not serve", Code.Unavailable));
  }

  #open(where: Place, tls: TLS): Socket {
    if ("path" in where) return connectSocket(where.path);
    if (!where.secure) return this.#watched(connectSocket(where.port, where.host), where);
    this.#problem = undefined;
    const socket = connectTLS(tlsOptions(tls, where.host, where.port));
    return socket.once("error", (error) => {
      const problem = tlsProblem(error, tls.serverName ?? where.host);
      if (problem !== undefined) this.#problem = `the broker at ${where.address} ${problem}`;
    });
  }

  /** Checks if the broker speaks TLS when a socket without TLS has closed without an answer. */
  #watched(socket: Socket, where: { address: string; host: string; port: number }): Socket {
    return socket.once("close", () => {
      if (socket.bytesRead > 0) {
        this.#problem = undefined;
        return;
      }
      void speaksTLS(where.host, where.port).then((yes) => {
        if (yes) this.#problem = `the broker at ${where.address} speaks TLS: write its address as tls://${where.address}`;
      });
    });
  }

  /** Reports the registered agents as stopped, and ends all calls and streams. A second close waits for the first. */
  close(): Promise<void> {
    return (this.#ended ??= this.#close());
  }

  async #close(): Promise<void> {
    const reports = [...this.registered.values()].map((registration) => registration.stop()); // further calls are refused
    this.registered.clear();
    this.#closing.abort(new Closed());
    if (reports.length > 0) await Promise.all(reports);
    this.#sessions.abort(new ConnectError("the client is closed", Code.Canceled));
  }
}

/** A Place is where a broker listens: a Unix socket's path, or a host and port. */
type Place = { address: string } & ({ path: string } | { host: string; port: number; secure: boolean; authority: string });

/** Returns where an address leads. */
function parseAddress(address: string, tls: TLS): Place {
  if (address.startsWith("unix:")) {
    const path = address.slice("unix:".length).replace(/^\/\//, "");
    if (path === "") throw new Invalid(`address ${JSON.stringify(address)} names no socket: write unix:///path/of/socket`);
    return { address, path };
  }
  const [, scheme, host, port] = /^(tls:\/\/)?(\[[^\]]+\]|[^:/]+):(\d{1,5})$/.exec(address) ?? [];
  if (host === undefined) {
    throw new Invalid(`address ${JSON.stringify(address)} is none of unix:///path/of/socket, tls://host:port and host:port`);
  }
  const bare = host.replace(/^\[(.*)\]$/, "$1");
  const secure = scheme !== undefined || Object.keys(tls).length > 0;
  if (!secure && !loopback(bare)) {
    throw new Invalid(`address ${JSON.stringify(address)} is not on this machine, which needs TLS: write tls://${address}`);
  }
  return { address, host: bare, port: Number(port), secure, authority: `${host}:${port}` };
}

/** Ends a socket that has not connected in time. */
function limitConnecting(socket: Socket, address: string): void {
  const timer = setTimeout(() => {
    socket.destroy(new Error(`${address} has not accepted the connection within ${replicaConnectTimeout / 1000} s`));
  }, replicaConnectTimeout);
  for (const event of [socket instanceof TLSSocket ? "secureConnect" : "connect", "close"]) {
    socket.once(event, () => clearTimeout(timer));
  }
}

function loopback(host: string): boolean {
  return host === "localhost" || host === "::1" || /^127\.\d+\.\d+\.\d+$/.test(host);
}
