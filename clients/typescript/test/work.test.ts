import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once, setMaxListeners } from "node:events";
import { createInterface } from "node:readline";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";

import { Lost, Precondition, Reject, Release, RetryAfter } from "@brokerd/client";
import { DeliveryState } from "@brokerd/client/proto";

import { Daemon } from "./daemon.js";
import { aborted, Gate } from "./wait.js";

for (const end of ["kill", "stop"] as const) {
  test(`work finishes every message exactly once although the daemon restarts (${end})`, async () => {
    const daemon = await Daemon.start();
    const lead = await daemon.agent("lead");
    const retried = new Gate();
    const builder = await daemon.agent("builder-1", "builder", { onRetry: () => retried.open() });
    const sent: string[] = [];
    for (let i = 0; i < 20; i++) sent.push((await lead.send("role:builder", `part ${i}`)).id);

    const stop = new AbortController();
    const reached = new Gate();
    const proceed = new Gate();
    const started: string[] = [];
    const finished = new Gate();
    const handled = new Set<string>();
    const working = builder.work(
      async (claim) => {
        started.push(claim.id);
        if (started.length === 8) {
          reached.open();
          await proceed.opened; // the daemon is killed while handlers run
        }
        handled.add(claim.id);
        if (handled.size === sent.length) finished.open();
        return `done ${claim.text}`;
      },
      { concurrency: 3, signal: stop.signal },
    );
    await reached.opened;
    const ended = daemon[end]();
    if (end === "stop") proceed.open(); // the daemon waits for what the handlers settle
    await ended;
    await retried.opened; // the worker has noticed
    await daemon.start();
    proceed.open();
    await finished.opened;
    stop.abort();
    await working;

    for (const id of sent) {
      const { deliveries } = await lead.stubs.messages.getMessage({ id });
      assert.deepEqual(deliveries.map((d) => [d.state, d.attempts]), [[DeliveryState.ACKED, 0]]);
    }
    const answers = (await lead.inbox({ limit: 100 })).map((item) => item.proto.inReplyTo);
    assert.deepEqual(answers.sort(), sent.sort());
  });
}

test("work decides by what the handler throws and returns", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const builder = await daemon.agent("builder-1");
  const ids: Record<string, string> = {};
  for (const text of ["reject", "retry", "release", "fail", "object"]) ids[text] = (await lead.send("builder-1", text)).id;

  const stop = new AbortController();
  const attempts: Record<string, number> = {};
  const errors: unknown[][] = [];
  const { error: print } = console;
  console.error = (...args: unknown[]) => errors.push(args);
  after(() => (console.error = print));
  await builder.work(
    (claim) => {
      const count = (attempts[claim.text] = (attempts[claim.text] ?? 0) + 1);
      if (claim.text === "object") {
        stop.abort();
        return { parts: [1, 2] };
      }
      if (claim.text === "reject") throw new Reject("no such part");
      if (claim.text === "retry") throw new RetryAfter("1h", "not yet");
      if (claim.text === "release" && count === 1) throw new Release("another time");
      if (claim.text === "fail") throw new Error("broken");
      return undefined;
    },
    { signal: stop.signal },
  );
  const delivery = async (text: string) => (await lead.stubs.messages.getMessage({ id: ids[text]! })).deliveries[0]!;
  assert.equal((await delivery("reject")).state, DeliveryState.DEAD);
  const retry = await delivery("retry");
  assert.equal(retry.state, DeliveryState.DELAYED);
  assert.equal(retry.history[0]!.error, "not yet");
  assert.ok(Number(retry.dueAt!.seconds) > Date.now() / 1000 + 1800, "the handler's delay counts");
  assert.equal((await delivery("fail")).history[0]!.error, "broken");
  const [[text, error] = [], ...others] = errors;
  assert.deepEqual(others, [], "Reject, RetryAfter and Release are no failures of the handler");
  assert.match(`${text}`, /^brokerd: the handler has failed with message [0-9]+:$/);
  assert.ok(error instanceof Error && error.message === "broken");
  assert.equal((await delivery("release")).attempts, 0);
  const answer = await lead.claim({ wait: "10s" });
  assert.deepEqual(answer?.payload, { parts: [1, 2] });
});

test("many workers and calls share the signals without a warning", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const warnings: Error[] = [];
  const warn = (warning: Error) => warnings.push(warning);
  process.on("warning", warn);
  const stop = new AbortController();
  setMaxListeners(0, stop.signal);
  const working: Promise<void>[] = [];
  for (let i = 0; i < 12; i++) {
    const builder = lead.asAgent(`builder-${i}`);
    await builder.register();
    working.push(builder.work((claim) => claim.text, { signal: stop.signal }));
  }
  const replies = await Promise.all(working.map((_, i) => lead.ask(`builder-${i}`, `${i}`)));
  assert.deepEqual(replies.map((r) => r?.text), working.map((_, i) => `${i}`));
  const listening = process.listenerCount("SIGTERM");
  stop.abort();
  await Promise.all(working);
  assert.equal(process.listenerCount("SIGTERM"), listening - 1);
  process.removeListener("warning", warn);
  assert.deepEqual(warnings, []);
});

test("the handler's signal aborts when its claim is lost", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const builder = await daemon.agent("builder-1");
  await lead.send("builder-1", "long work");
  const stop = new AbortController();
  const reason = new Gate<unknown>();
  let acked: Promise<unknown> | undefined;
  const working = builder.work(
    async (claim) => {
      acked = builder.ack(claim); // settles the claim beside the worker
      reason.open(await aborted(claim.signal));
    },
    { signal: stop.signal },
  );
  assert.ok((await reason.opened) instanceof Lost);
  await acked; // the worker may hear of it before its answer arrives
  stop.abort();
  await working;
});

test("a second worker of the same consumer ends the first with Lost", async () => {
  const daemon = await Daemon.start();
  const builder = await daemon.agent("builder-1");
  const lead = await daemon.agent("lead");
  const running = new Gate();
  const first = builder.work(async (claim) => {
    running.open();
    await aborted(claim.signal);
  });
  await lead.send("builder-1", "work");
  await running.opened;
  const stop = new AbortController();
  const taken = new Gate();
  const second = builder.work(() => taken.open(), { signal: stop.signal });
  await assert.rejects(first, (error) => error instanceof Lost && error.reason === "TAKEN_OVER");
  await taken.opened;
  stop.abort();
  await second;
});

test("work of an agent that is not registered throws, and the close of the client ends work", async () => {
  const daemon = await Daemon.start();
  const stranger = await daemon.connect("stranger");
  await assert.rejects(stranger.work(() => undefined), (error) => error instanceof Precondition && error.reason === "AGENT_NOT_REGISTERED");

  const lead = await daemon.agent("lead");
  const builder = await daemon.agent("builder-1");
  const begun = new Gate();
  const reason = new Gate<unknown>();
  const working = builder.work(async (claim) => {
    begun.open();
    reason.open(await aborted(claim.signal));
  });
  await lead.send("builder-1", "work");
  await begun.opened;
  builder.close();
  assert.ok((await reason.opened) instanceof Lost);
  await working;
});

test("work drains on SIGTERM and the process ends by itself", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  await daemon.agent("builder-1");
  const { id } = await lead.send("builder-1", "slow");
  const waiting = await lead.send("builder-1", "not begun");

  const program = fileURLToPath(new URL("./slow-worker.js", import.meta.url));
  const child = spawn(process.execPath, [program], {
    env: { ...process.env, BROKERD_ADDR: daemon.address, BROKERD_AGENT: "builder-1" },
    stdio: ["pipe", "pipe", "inherit"],
  });
  const exited = once(child, "exit");
  const lines = createInterface(child.stdout!)[Symbol.asyncIterator]();
  assert.equal((await lines.next()).value, "begun slow");
  child.kill("SIGTERM");
  assert.equal((await lines.next()).value, "stopping");
  child.stdin!.end("continue\n");
  assert.deepEqual(await exited, [0, null]);

  const state = async (id: string) => (await lead.stubs.messages.getMessage({ id })).deliveries[0]!.state;
  assert.equal(await state(id), DeliveryState.ACKED);
  assert.equal(await state(waiting.id), DeliveryState.PENDING);
  assert.deepEqual((await lead.agents({ pattern: "builder-1" })).map((a) => a.state), ["stopped"]);
});

test("the agent holds its locks after work until the client is closed", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const builder = await daemon.agent("builder-1");
  const held = async () => (await lead.stubs.locks.listLocks({})).locks.map((lock) => lock.agent);
  const state = async () => (await lead.agents({ pattern: "builder-1" })).map((a) => a.state);
  const terminate = () => void process.emit("SIGTERM", "SIGTERM");
  const lock = await builder.locks.hold("src/");
  await lead.send("builder-1", "work");
  await builder.work(terminate);
  await lead.tasks.create({ title: "work", assignee: "builder-1" });
  await builder.tasks.work(terminate);
  lock.check();
  assert.deepEqual(await held(), ["builder-1"]);
  assert.notDeepEqual(await state(), ["stopped"]);
  await builder.close();
  assert.deepEqual([await held(), await state()], [[], ["stopped"]]);
});
