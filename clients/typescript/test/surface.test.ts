import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, Invalid, json, Lost, Reject, requestId, Message, timestampDate, type Entry } from "@brokerd/client";
import { AgentStatus, DecisionState, TaskState } from "@brokerd/client/proto";

import { Daemon } from "./daemon.js";
import { aborted, Gate, take } from "./wait.js";

test("ask waits for the reply, and a question without a reply is undefined", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const critic = await daemon.agent("critic-1", "critic");
  const stop = new AbortController();
  const working = critic.work((claim) => `${claim.text} Yes.`, { signal: stop.signal });
  const reply: Message | undefined = await lead.ask("role:critic", "Good?", { timeout: "30s" });
  assert.equal(reply?.text, "Good? Yes.");
  assert.equal(reply.sender, "critic-1");
  stop.abort();
  await working;
  assert.equal(await lead.ask("critic-1", "Again?", { timeout: 50 }), undefined);
});

test("messages carry their options, and 64-bit numbers are exact", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const builder = await daemon.agent("builder-1");
  const id = requestId();
  assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  const options = { subject: "Part", priority: 7, taskId: "t1", labels: { a: "b" }, ttl: "1h30m", files: [{ path: "a.ts", line: 3 }], requestId: id };
  const receipt = await lead.send("builder-*", { revision: 5n, large: 2n ** 63n - 1n }, options);
  assert.equal((await lead.send("builder-*", { revision: 5n, large: 2n ** 63n - 1n }, options)).id, receipt.id);
  const [item] = await builder.inbox();
  const message = item!.proto;
  assert.deepEqual([message.subject, message.priority, message.taskId, message.labels, message.files[0]!.line], ["Part", 7, "t1", { a: "b" }, 3]);
  assert.equal(message.payload, '{"revision":5,"large":"9223372036854775807"}');
  assert.equal(Number(message.expiresAt!.seconds - message.createdAt!.seconds), 5400);
  assert.ok(timestampDate(message.createdAt!) instanceof Date);
  assert.equal(message.revision, receipt.revision);
  await builder.ack(item!);
  assert.deepEqual(await builder.inbox(), []);
  assert.throws(() => json(() => 0), Invalid);
  await assert.rejects(lead.send("", "x"), Invalid);
  await assert.rejects(lead.send("builder-1", "x", { ttl: "soon" }), Invalid);
  await assert.rejects(lead.state.delete("k", { ifRevision: 2 ** 60 }), Invalid);
});

test("a document that exceeds one answer is read whole", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const entry = "x".repeat(250 * 1024);
  for (let number = 1; number <= 15; number++) {
    await lead.state.append("log", entry);
  }
  const { document } = (await lead.state.get("log"))!;
  const headings = document!.match(/^## \d+/gm);
  assert.deepEqual(headings, Array.from({ length: 15 }, (_, i) => `## ${i + 1}`));
});

test("state keeps the type of each value", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  for (const value of ["text", "", true, false, 0, -5, 2 ** 53 - 1, 2n ** 63n - 1n, -(2n ** 63n), 1.5, null, [1, "a"], { a: { b: null } }]) {
    await lead.state.put("key", value);
    assert.deepEqual((await lead.state.get("key"))!.value, value);
  }
  const typed: Entry<{ a: number }> | undefined = await lead.state.get<{ a: number }>("key");
  assert.equal(typed!.author, "lead");
  assert.equal(await lead.state.get("missing"), undefined);
  assert.equal(await lead.state.append("log", "first"), 1);
  assert.equal(await lead.state.append("log", "second"), 2);
  assert.match((await lead.state.get("log"))!.document!, /first[^]*second/);
  const { entries, revision } = await lead.state.list({ prefix: "k" });
  assert.deepEqual(entries.map((e) => e.key), ["key"]);
  assert.ok(revision >= entries[0]!.revision);
  const changed = take(1, lead.state.watch({ after: revision }));
  assert.equal(await lead.state.delete("key"), true);
  assert.equal((await changed)[0]![0]!.deleted, true);
  assert.equal(await lead.state.delete("key"), false);
});

test("tasks.work completes tasks over a restart, and fails what the handler rejects", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const retried = new Gate();
  const builder = await daemon.agent("builder-1", "builder", { onRetry: () => retried.open() });
  const schema = await lead.tasks.create({ title: "schema", role: "builder" });
  const [api, bad] = await lead.tasks.create([{ title: "api", dependsOn: [schema.id] }, { title: "bad", dependsOn: [schema.id] }]);
  const begun = new Gate();
  const proceed = new Gate();
  const stop = new AbortController();
  const working = builder.tasks.work(
    async (work) => {
      if (work.title === "bad") throw new Reject("impossible");
      if (work.title === "api") return { endpoints: 3 };
      await work.report(0.5, "half");
      begun.open();
      await proceed.opened;
      return "done";
    },
    { signal: stop.signal },
  );
  await begun.opened;
  await daemon.kill();
  await retried.opened;
  await daemon.start();
  proceed.open();
  const waited = await lead.tasks.wait([schema.id, api!.id], { timeout: "60s" });
  assert.equal(waited.outcome, "done");
  assert.equal((await lead.tasks.wait(bad!.id, { timeout: "60s" })).outcome, "attention");
  stop.abort();
  await working;
  const results = await Promise.all([schema.id, api!.id, bad!.id].map((id) => lead.tasks.get(id)));
  assert.deepEqual(results.map((t) => [t.state, t.result, t.attempts]), [
    [TaskState.DONE, "done", 0],
    [TaskState.DONE, '{"endpoints":3}', 0],
    [TaskState.FAILED, "", 1],
  ]);
  assert.deepEqual((await lead.tasks.list({ states: ["failed"] })).map((t) => t.id), [bad!.id]);
});

test("the signal of a task aborts when the task is cancelled", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const builder = await daemon.agent("builder-1");
  const { id } = await lead.tasks.create("long");
  const begun = new Gate();
  const reason = new Gate<unknown>();
  const stop = new AbortController();
  const working = builder.tasks.work(
    async (work) => {
      begun.open();
      reason.open(await aborted(work.signal));
    },
    { signal: stop.signal },
  );
  await begun.opened;
  await lead.tasks.cancel(id);
  assert.ok((await reason.opened) instanceof Lost);
  stop.abort();
  await working;
  assert.equal((await lead.tasks.get(id)).state, TaskState.CANCELLED);
});

test("a task is claimed, updated, released and failed by hand", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const { id } = await lead.tasks.create({ title: "by hand", maxAttempts: 1, staleAfter: "1h" });
  const claim = (await lead.tasks.claim({ labels: {} }))!;
  assert.deepEqual([claim.id, claim.attempt], [id, 1]);
  await lead.tasks.update(claim, { progress: 0.3, block: "no key" });
  assert.equal((await lead.tasks.update(id, { unblock: true })).state, TaskState.CLAIMED);
  assert.equal((await lead.tasks.release(id)).state, TaskState.READY);
  await assert.rejects(lead.tasks.complete(claim), Lost);
  await lead.tasks.claim({ id });
  assert.equal((await lead.tasks.fail(id, "broken")).state, TaskState.FAILED);
  assert.equal(await lead.tasks.claim(), undefined);
});

test("a decision goes through its rounds", async () => {
  const daemon = await Daemon.start();
  const builder = await daemon.agent("builder-1");
  const critic = await daemon.agent("critic-1", "critic");
  const review = await builder.decisions.open("review", "role:critic", { scope: "login", body: "please", payload: { files: 2 } });
  assert.deepEqual((await critic.decisions.list({ states: ["open"], owedBy: "critic-1" })).map((d) => d.id), [review.id]);
  const revised = builder.decisions.wait(review.id);
  await critic.decisions.decide(review.id, "revise", { reason: "tests", feedback: [{ text: "no test", severity: "blocker", file: "a.ts" }] });
  assert.equal((await revised).state, DecisionState.REVISING);
  await builder.decisions.resubmit(review.id, { body: "with tests" });
  const approved = builder.decisions.wait(review.id, { timeout: "60s" });
  await critic.decisions.decide(review.id, "approve");
  assert.equal((await approved).verdict, "approve");
  assert.equal((await builder.decisions.get(review.id)).rounds.length, 2);
  const withdrawn = await builder.decisions.open("plan", "critic-1", { body: "first this" });
  assert.equal((await builder.decisions.cancel(withdrawn.id, { reason: "no need" })).state, DecisionState.CANCELLED);
});

test("an artifact is uploaded and downloaded", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const content = new Uint8Array(1 << 20).map((_, i) => i * 7);
  const artifact = await lead.artifacts.upload("bin/data", content, { mediaType: "application/octet-stream" });
  assert.equal(artifact.version, 1n);
  assert.equal((await lead.artifacts.upload("bin/data", content)).version, 1n);
  await lead.artifacts.upload("bin/data", "newer");
  const older = await lead.artifacts.download("bin/data", { version: 1 });
  assert.ok(Buffer.from(older).equals(content));
  const newest = await lead.artifacts.download("bin/data");
  assert.equal(new TextDecoder().decode(newest), "newer");
  assert.equal((await lead.artifacts.get("bin/data", { version: 1 })).mediaType, "application/octet-stream");
});

test("a heartbeat reports status, and the pulse keeps the lease of a registered agent", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const short = await Client.connect({ address: daemon.address, agent: "short" });
  await short.register({ lease: "9s", capabilities: ["ts"], labels: { a: "b" } });
  await short.heartbeat({ status: "waiting", activity: "thinking", progress: 0.5 });
  const [agent] = await lead.agents({ capabilities: ["ts"] });
  assert.deepEqual([agent!.activity, agent!.progress, agent!.labels], ["thinking", 0.5, { a: "b" }]);
  const pulse = new Gate();
  const { heartbeat } = short.stubs.agents;
  short.stubs.agents.heartbeat = async (...args) => {
    const answer = await heartbeat(...args);
    pulse.open();
    return answer;
  };
  await pulse.opened;
  const [later] = await lead.agents({ capabilities: ["ts"] });
  assert.ok(timestampDate(later!.lastSeen!) > timestampDate(agent!.lastSeen!));
  assert.deepEqual(await lead.events.list({ types: ["agent.failed"] }), []);
  await short.stubs.agents.registerAgent({ lease: { seconds: 1n } }); // without heartbeats, as a program that is killed
  await short.close();
  const [failed] = await take(1, lead.events.follow({ after: 0, types: ["agent.failed"] }));
  assert.deepEqual(failed!.related, ["short"]);

  const ending = await Client.connect({ address: daemon.address, agent: "ending" });
  await ending.register();
  await ending.asAgent("ending-too").register();
  const closing = ending.close();
  assert.equal(ending.close(), closing); // it ends when the first close has ended
  await closing;
  assert.deepEqual((await lead.agents({ pattern: "ending*" })).map((a) => a.state), ["stopped", "stopped"]);
  await lead.asAgent("ending").register();
  await lead.asAgent("ending").deregister();
  await lead.asAgent("ending-too").register();
  await lead.asAgent("ending-too").deregister();

  const again = await daemon.connect("short");
  await again.register();
  assert.deepEqual(again.losses, []);
  await again.deregister();
  assert.deepEqual((await lead.agents()).map((a) => a.name), ["lead"]);
});

/** Holds the heartbeats of a client back until due is opened, and opens done when the first has been answered. */
function gated(client: Client): { due: Gate; done: Gate } {
  const due = new Gate();
  const done = new Gate();
  const { heartbeat } = client.stubs.agents;
  let calls = 0;
  client.stubs.agents.heartbeat = async (...args) => {
    if (++calls > 1) done.open();
    await due.opened;
    return heartbeat(...args);
  };
  return { due, done };
}

test("an agent that failed and returned is reported as stopped", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const one = await daemon.connect("returning");
  const { due, done } = gated(one);
  await one.register({ lease: "1s" });
  await take(1, lead.events.follow({ after: 0, types: ["agent.failed"] }));
  await one.send("returning", "work");
  await one.follow().next(); // the open stream keeps the lease
  due.open();
  await done.opened;
  await one.close();
  assert.deepEqual((await lead.agents({ pattern: "returning" })).map((a) => a.state), ["stopped"]);
});

test("the end of a client does not stop an agent that another program has registered", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const one = await daemon.connect("moving");
  const { due, done } = gated(one);
  await one.register({ lease: "5s" });
  await (await daemon.connect("moving")).register({ lease: "1h" });
  due.open();
  await done.opened;
  await one.close();
  assert.deepEqual((await lead.agents({ pattern: "moving" })).map((a) => a.state), ["starting"]);
});

test("an agent that reports failed keeps that status at the end of an await using block", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const program = async () => {
    await using one = await Client.connect({ address: daemon.address, agent: "failing" });
    await one.register();
    await one.heartbeat({ status: "failed", reason: "the disk is full" });
    throw new Error("the disk is full");
  };
  await assert.rejects(program, /the disk is full/);
  const [agent] = await lead.agents({ pattern: "failing" });
  assert.deepEqual([agent!.status, agent!.statusReason], [AgentStatus.FAILED, "the disk is full"]);
  assert.notEqual(agent!.stoppedAt, undefined);
});
