import assert from "node:assert/strict";
import { test } from "node:test";

import { Precondition } from "@brokerd/client";

import { Daemon } from "./daemon.js";
import { Gate, take } from "./wait.js";

/** Starts a daemon with two agents, and a gate that opens when a stream has broken. */
async function team() {
  const daemon = await Daemon.start();
  const broken = new Gate();
  const lead = await daemon.agent("lead");
  const reader = await daemon.agent("reader", "", { onRetry: () => broken.open() });
  return { daemon, lead, reader, broken };
}

test("follow resumes over a restart without loss or repetition", async () => {
  const { daemon, lead, reader, broken } = await team();
  for (let i = 0; i < 3; i++) await lead.send("reader", `before ${i}`);
  const messages = reader.follow();
  const texts: string[] = [];
  for (let i = 0; i < 3; i++) texts.push((await messages.next()).value!.text);

  const next = messages.next(); // waits while the daemon is killed
  await daemon.kill();
  await broken.opened;
  await daemon.start();
  for (let i = 0; i < 3; i++) await lead.send("reader", `after ${i}`);
  texts.push((await next).value!.text);
  for await (const item of messages) {
    texts.push(item.text);
    if (texts.length === 6) break;
  }
  assert.deepEqual(texts, ["before 0", "before 1", "before 2", "after 0", "after 1", "after 2"]);
  assert.equal((await reader.inbox()).length, 6, "follow claims nothing");
});

test("events.follow and state.watch resume over a restart without loss or repetition", async () => {
  const { daemon, lead, reader, broken } = await team();
  const first = await lead.state.put("step", 1);
  await lead.events.publish("build.started", "one");
  const events = reader.events.follow({ after: 0, types: ["build.*"] });
  const changes = reader.state.watch({ after: 0, prefix: "step" });
  assert.equal((await events.next()).value!.summary, "one");
  assert.equal((await changes.next()).value![0]!.revision, first.revision);

  const [nextEvent, nextChange] = [events.next(), changes.next()];
  await daemon.kill();
  await broken.opened;
  await daemon.start();
  await lead.events.publish("build.finished", "two", { details: { ok: true } });
  await lead.state.put("step", 2, { ifRevision: first.revision });
  await lead.state.delete("step");
  const event = (await nextEvent).value!;
  assert.deepEqual([event.summary, JSON.parse(event.details)], ["two", { ok: true }]);
  const change = (await nextChange).value![0]!;
  assert.deepEqual([change.value, change.version, change.author], [2, 2, "lead"]);
  assert.equal((await changes.next()).value![0]!.deleted, true);
  await lead.events.publish("build.cleaned", "three");
  assert.equal((await events.next()).value!.summary, "three");
});

test("an iteration ends without an error when its signal aborts or the client is closed", async () => {
  const { daemon, reader } = await team();
  const stop = new AbortController();
  const events = reader.events.follow({ after: 0, signal: stop.signal });
  await events.next();
  const rest = (async () => {
    for await (const _ of events);
  })();
  stop.abort();
  await rest;

  const other = await daemon.agent("other");
  const mail = other.follow().next();
  other.close();
  assert.deepEqual(await mail, { done: true, value: undefined });
  await assert.rejects(other.inbox(), { name: "Closed" });
});

test("an iteration throws an error that another attempt does not heal", async () => {
  const { reader } = await team();
  await assert.rejects(take(1, reader.events.follow({ after: 10n ** 15n })), { name: "Invalid" });
  const stranger = reader.asAgent("stranger");
  await assert.rejects(take(1, stranger.follow()), (error) => error instanceof Precondition && error.reason === "AGENT_NOT_REGISTERED");
});
