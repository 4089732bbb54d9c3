import { execFile, spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after } from "node:test";
import { setImmediate } from "node:timers/promises";
import { promisify } from "node:util";

import { Client, type ClientOptions } from "@brokerd/client";

/** The path of the brokerd program; the Go test sets it. brokerctl is beside it. */
const program = process.env["BROKERD_PROGRAM"]!;

/** A Daemon is a brokerd process with a separate data folder. The end of the test file kills it. */
export class Daemon {
  /** The folder is short: the path of a socket has a limit. */
  readonly folder = mkdtempSync("/tmp/brokerd-ts-");
  /** The line with which the process says where it listens. */
  announced = "";
  #process: ChildProcess | undefined;
  readonly #clients: Client[] = [];

  private constructor(readonly flags: string[]) {}

  /** Starts a daemon and returns it once it answers. */
  static async start(...flags: string[]): Promise<Daemon> {
    const daemon = new Daemon(flags);
    after(async () => {
      for (const client of daemon.#clients) client.close();
      await daemon.kill();
      rmSync(daemon.folder, { recursive: true, force: true });
    });
    await daemon.start();
    return daemon;
  }

  get address(): string {
    return `unix://${join(this.folder, "brokerd.sock")}`;
  }

  /** Starts the process and returns once it listens. */
  async start(): Promise<void> {
    const args = ["serve", "--data", this.folder, "--log-level", "warn", "--log-format", "console", ...this.flags];
    this.#process = spawn(program, args, { stdio: ["ignore", "pipe", "inherit"] });
    const lines = createInterface(this.#process.stdout!);
    for await (const line of lines) {
      if (!line.includes("listening on")) continue;
      this.announced = line;
      return;
    }
    throw new Error("brokerd has ended before it listened");
  }

  /** Sends SIGKILL and waits for the end. */
  async kill(): Promise<void> {
    await this.#end("SIGKILL");
  }

  /** Stops the process in good order and waits for the end. */
  async stop(): Promise<void> {
    await this.#end("SIGTERM");
  }

  /** Stops the process, and returns when none of its threads runs. */
  async freeze(): Promise<void> {
    this.#process!.kill("SIGSTOP");
    const tasks = `/proc/${this.#process!.pid}/task`;
    const stopped = (task: string) => / [Tt] /.test(readFileSync(`${tasks}/${task}/stat`, "utf8"));
    while (!readdirSync(tasks).every(stopped)) await setImmediate();
  }

  thaw(): void {
    this.#process!.kill("SIGCONT");
  }

  /** Connects; the end of the test file closes the client. */
  async connect(agent: string, options: ClientOptions = {}): Promise<Client> {
    const client = await Client.connect({ address: this.address, agent, timeout: 60_000, ...options });
    this.#clients.push(client);
    return client;
  }

  /** Connects and registers an agent. */
  async agent(name: string, role = "", options: ClientOptions = {}): Promise<Client> {
    const client = await this.connect(name, options);
    await client.register({ role, lease: "1h" });
    return client;
  }

  /** Runs brokerctl and returns its output. */
  async brokerctl(...args: string[]): Promise<string> {
    const command = join(program, "..", "brokerctl");
    const { stdout } = await promisify(execFile)(command, ["--addr", this.address, ...args]);
    return stdout;
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const process = this.#process;
    if (process === undefined || process.exitCode !== null || process.signalCode !== null) return;
    const ended = once(process, "exit");
    this.thaw();
    process.kill(signal);
    await ended;
  }
}
