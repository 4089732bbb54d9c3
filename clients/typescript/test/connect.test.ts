import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { copyFileSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createServer as createHTTP2Server } from "node:http2";
import { createServer, type AddressInfo } from "node:net";
import { join } from "node:path";
import { after, afterEach, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { Client, Denied, Invalid, Unreachable } from "@brokerd/client";

import { Daemon } from "./daemon.js";
import { sumOf, trust } from "./trust.js";

const variables = ["ADDR", "SESSION", "AGENT", "INCARNATION", "FENCE", "CREDENTIAL_FILE", "DATA", "TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_SERVER_NAME"];
const folder = mkdtempSync("/tmp/brokerd-ts-cwd-");
const home = process.cwd();

function environment(values: Record<string, string> = {}): void {
  for (const name of variables) delete process.env[`BROKERD_${name}`];
  delete process.env["XDG_STATE_HOME"];
  process.env["XDG_CONFIG_HOME"] = join(folder, "config");
  delete process.env["CLAUDE_CODE_SESSION_ID"];
  Object.assign(process.env, values);
}

afterEach(() => {
  environment();
  process.chdir(home);
});
after(() => rmSync(folder, { recursive: true }));

test("fromEnv finds the broker by the environment, by .brokerd.yaml and by the endpoint file", async () => {
  const daemon = await Daemon.start();
  process.chdir(folder);
  const found = async (options = {}) => {
    await using client = await Client.fromEnv(options);
    const { session, agent, incarnation, fence } = client.identity;
    return [client.address, session, agent, incarnation, fence];
  };

  environment({ BROKERD_DATA: daemon.folder });
  assert.deepEqual(await found(), [daemon.address, "", "", 0n, 0n]);
  environment({ XDG_STATE_HOME: join(daemon.folder, "..") });
  await assert.rejects(found(), (error) => error instanceof Unreachable && /no endpoint file/.test(error.text));
  environment({
    BROKERD_ADDR: daemon.address,
    BROKERD_SESSION: "website",
    BROKERD_AGENT: "builder-1",
    BROKERD_INCARNATION: "3",
    BROKERD_FENCE: "4711",
  });
  assert.deepEqual(await found(), [daemon.address, "website", "builder-1", 3n, 4711n]);
  assert.deepEqual(await found({ agent: "lead", session: undefined }), [daemon.address, "website", "lead", 0n, 0n], "the numbers are those of builder-1");
  environment({ BROKERD_ADDR: daemon.address, BROKERD_FENCE: "-1" });
  await assert.rejects(found(), (error) => error instanceof Invalid && /BROKERD_FENCE/.test(error.text));

  environment({ BROKERD_DATA: daemon.folder });
  process.env["BROKERD_ADDR"] = daemon.address;
  await promisify(execFile)(join(process.env["BROKERD_PROGRAM"]!, "..", "brokerctl"), ["init", "--agent", "critic-1", "--role", "critic", "--session", "default"], { cwd: folder });
  environment({ BROKERD_DATA: daemon.folder });
  assert.deepEqual(await found(), [daemon.address, "default", "critic-1", 0n, 0n], "what brokerctl init has written");
  process.env["BROKERD_AGENT"] = "lead";
  assert.deepEqual(await found(), [daemon.address, "default", "lead", 0n, 0n], "the environment takes precedence");

  const file = join(folder, ".brokerd.yaml");
  writeFileSync(file, `# a comment\naddr: ${daemon.address} # another\nsession: "web"\nagents:\n    a:\n        role: builder\n    'b': {role: critic, hook_session: "s1"}\n`);
  environment();
  await assert.rejects(found({ agent: "c" }), (error) => error instanceof Invalid && /run `brokerctl trust`/.test(error.text));
  assert.equal(sumOf({ addr: "tls://broker.example:7421", credential_file: "geheim/schlüssel" }),
    "9f3f4d2232e00b526b3632cfa9da1779ff72a995c77aa23b4a76aa7402f0621a", "the sum of brokerctl");
  trust(file, { addr: daemon.address });
  await assert.rejects(found(), (error) => error instanceof Invalid && /has several agents \(a, b\)/.test(error.text));
  assert.deepEqual(await found({ agent: "c" }), [daemon.address, "web", "c", 0n, 0n]);
  process.env["CLAUDE_CODE_SESSION_ID"] = "s1";
  assert.deepEqual(await found(), [daemon.address, "web", "b", 0n, 0n]);
  writeFileSync(file, "addr: x\nadress: y\n");
  await assert.rejects(found(), (error) => error instanceof Invalid && /line 2: unknown key "adress"/.test(error.text));
  rmSync(file);
});

test("register takes what .brokerd.yaml says of the agent", async () => {
  const daemon = await Daemon.start();
  process.chdir(folder);
  const file = join(folder, ".brokerd.yaml");
  writeFileSync(file, 'agents:\n  builder-1: {role: builder, capabilities: "go, sql", labels: "team=web, area=ui"}\n');
  environment({ BROKERD_ADDR: daemon.address });
  await using client = await Client.fromEnv();
  rmSync(file);
  const first = await client.register();
  assert.deepEqual([first.role, first.capabilities, first.labels], ["builder", ["go", "sql"], { team: "web", area: "ui" }]);
  const second = await client.register({ role: "critic", labels: { area: "api" } });
  assert.deepEqual([second.role, second.capabilities, second.labels], ["critic", ["go", "sql"], { team: "web", area: "api" }]);
});

test("a client calls over TCP with a credential", async () => {
  const daemon = await Daemon.start("--listen", "127.0.0.1:0");
  const address = /127\.0\.0\.1:\d+/.exec(daemon.announced)![0];
  process.chdir(folder);
  copyFileSync(join(daemon.folder, "operator.credential"), join(folder, "secret"));
  environment({ BROKERD_ADDR: address, BROKERD_AGENT: "lead", BROKERD_CREDENTIAL_FILE: join(folder, "secret") });
  await using client = await Client.fromEnv();
  await client.register({ role: "lead" });
  assert.deepEqual((await client.agents()).map((a) => a.name), ["lead"]);

  environment({ BROKERD_DATA: daemon.folder });
  writeFileSync(join(folder, ".brokerd.yaml"), `addr: ${address}\ncredential_file: secret\nagents:\n  lead: {}\n`);
  trust(join(folder, ".brokerd.yaml"), { addr: address, credential_file: "secret" });
  await using second = await Client.fromEnv();
  assert.equal((await second.heartbeat({ activity: "reading" })).incarnation, 1n);
  rmSync(join(folder, "secret"));
  symlinkSync(join(daemon.folder, "operator.credential"), join(folder, "secret"));
  await assert.rejects(Client.fromEnv(), (error) =>
    error instanceof Invalid && /a symbolic link leads credential_file out of the folder/.test(error.text));
  writeFileSync(join(folder, ".brokerd.yaml"), `addr: ${address}\n`);
  trust(join(folder, ".brokerd.yaml"), { addr: address });
  process.env["BROKERD_CREDENTIAL_FILE"] = join(folder, "secret");
  await assert.rejects(Client.fromEnv(), (error) => error instanceof Invalid && /is not for/.test(error.text));
  rmSync(join(folder, ".brokerd.yaml"));

  await using stranger = await Client.connect({ address, agent: "lead" });
  await assert.rejects(stranger.inbox(), (error) => error instanceof Denied && error.reason === "CREDENTIAL_REQUIRED");
  await assert.rejects(Client.connect({ address: "192.0.2.1:7421", credential: "secret" }), Invalid);
  await assert.rejects(Client.connect({ address: "nonsense" }), Invalid);
});

test("a broker that is not there is reported at once, and a frozen one by the deadline", async () => {
  const daemon = await Daemon.start();
  const client = await daemon.agent("lead");
  await daemon.freeze();
  try {
    await assert.rejects(client.inbox({ timeout: 300 }), (error) => error instanceof Unreachable && /not answered in time/.test(error.text));
    await assert.rejects(client.inbox({ signal: AbortSignal.timeout(100) }), { name: "TimeoutError" });
  } finally {
    daemon.thaw();
  }
  await daemon.stop();
  await assert.rejects(Client.connect({ address: daemon.address }), (error) => error instanceof Unreachable && /no broker is running/.test(error.text));
});

test("a client that starts while the daemon restarts waits for it, and for nothing else", async () => {
  const daemon = await Daemon.start();
  await daemon.kill();
  environment({ BROKERD_DATA: daemon.folder });
  let restarting: Promise<void> | undefined;
  await using client = await Client.fromEnv({ agent: "early", onRetry: () => void (restarting ??= daemon.start()) });
  assert.equal((await client.register()).name, "early");
  await restarting;

  const onRetry = () => assert.fail("a broker that was never there is not waited for");
  const address = "unix:///nonexistent/brokerd.sock";
  await assert.rejects(Client.connect({ address, onRetry }), (error) => error instanceof Unreachable && /there is no socket/.test(error.text));
  await daemon.kill();
  await assert.rejects(Client.connect({ address: daemon.address, timeout: 100 }), (error) => error instanceof Unreachable && /refuses connections/.test(error.text));
});

test("a call made while the daemon restarts succeeds once", async () => {
  const daemon = await Daemon.start();
  const retried: (() => void)[] = [];
  const noticed = new Promise<void>((resolve) => retried.push(resolve));
  const lead = await daemon.agent("lead", "", { onRetry: () => retried[0]!() });
  await daemon.kill();
  const sending = lead.send("lead", "over a restart");
  await noticed;
  await daemon.start();
  assert.equal((await sending).recipientCount, 1);
  assert.equal((await lead.inbox()).length, 1);
});

test("a client of several replicas goes on with another address", async () => {
  const [first, second] = await Promise.all([Daemon.start(), Daemon.start()]);
  const address = `unix:///nowhere/brokerd.sock,${first.address}, ${second.address}`;
  await using client = await Client.connect({ address });
  await client.send("operator", "hello");
  assert.deepEqual((await client.inbox()).map((message) => message.text), ["hello"]);
  await first.kill();
  assert.deepEqual(await client.inbox(), [], "it is the mail of the second one");
});

/** Returns the addresses of two daemons in place of two replicas. A position in the first one exists in the second one too. */
async function replicas() {
  const [first, second] = await Promise.all([Daemon.start(), Daemon.start()]);
  const witness = await second.agent("witness");
  for (let i = 0; i < 10; i++) await witness.send("witness", `${i}`);
  return { first, witness, address: `${first.address},${second.address}` };
}

const names = async (client: Client) => (await client.agents()).map((agent) => agent.name);

test("calls and streams leave a replica that is frozen", async () => {
  const { first, witness, address } = await replicas();
  await using client = await Client.connect({ address, timeout: 5000 });
  const mail = client.follow();
  await client.send("operator", "one");
  assert.equal((await mail.next()).value!.text, "one");

  const next = mail.next();
  await first.freeze();
  assert.deepEqual(await names(client), ["witness"]);
  await witness.send("operator", "two");
  assert.equal((await next).value!.text, "two");
});

test("a stream of a replica that is frozen resumes at another one although no call is made", async () => {
  const { first, witness, address } = await replicas();
  await using client = await Client.connect({ address, timeout: 60_000 });
  const mail = client.follow();
  await client.send("operator", "one");
  assert.equal((await mail.next()).value!.text, "one");

  const next = mail.next();
  await first.freeze();
  await witness.send("operator", "two");
  assert.equal((await next).value!.text, "two");
});

test("calls and streams leave a replica without a leader", async () => {
  const daemon = await Daemon.start();
  const witness = await daemon.agent("witness");
  await witness.send("operator", "hello");
  const server = createHTTP2Server();
  server.on("stream", (stream) => {
    const refusal = { "content-type": "application/grpc", "grpc-status": "14", "grpc-message": "no replica leads", "brokerd-reason": "NO_LEADER" };
    stream.respond(refusal, { endStream: true });
  });
  const path = join(daemon.folder, "refusing.sock");
  server.listen(path);
  await once(server, "listening");
  after(() => server.close());

  const address = `unix://${path},${daemon.address}`;
  await using caller = await Client.connect({ address, timeout: 60_000 });
  assert.deepEqual(await names(caller), ["witness"]);
  await using reader = await Client.connect({ address, timeout: 60_000 });
  assert.equal((await reader.follow().next()).value!.text, "hello");
});

test("a client does not wait long for a replica that accepts no connection", async () => {
  const daemon = await Daemon.start();
  await daemon.agent("witness");
  const silent = createServer((socket) => socket.resume().on("error", () => undefined)).listen(0, "127.0.0.1");
  await once(silent, "listening");
  after(() => silent.close());

  const failures: unknown[] = [];
  const address = `tls://127.0.0.1:${(silent.address() as AddressInfo).port},${daemon.address}`;
  await using client = await Client.connect({ address, timeout: 60_000, onRetry: (error) => failures.push(error) });
  assert.deepEqual(await names(client), ["witness"]);
  assert.match(`${failures[0]}`, /has not accepted the connection within 5 s/);
});

test("an error names all addresses", async () => {
  const [first, second] = ["unix:///nonexistent/a.sock", "unix:///nonexistent/b.sock"];
  await assert.rejects(Client.connect({ address: `${first}, ${second}`, timeout: 100 }), (error) =>
    error instanceof Unreachable && error.text.includes(`at ${first} or ${second} cannot be reached`) && /start one of its replicas/.test(error.text));
});

test("a process with an idle client ends by itself", async () => {
  const daemon = await Daemon.start();
  const program = fileURLToPath(new URL("./idle.js", import.meta.url));
  const { stdout } = await promisify(execFile)(process.execPath, [program], { env: { ...process.env, BROKERD_ADDR: daemon.address } });
  assert.equal(stdout, "registered idle\n");
});
