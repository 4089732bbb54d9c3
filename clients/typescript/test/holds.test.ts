import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { Busy, Lost, Unreachable } from "@brokerd/client";

import { Daemon } from "./daemon.js";
import { aborted, take } from "./wait.js";

test("a lock excludes others until the end of its block", async () => {
  const daemon = await Daemon.start();
  const one = await daemon.agent("one");
  const two = await daemon.agent("two");
  {
    await using lock = await one.locks.hold("src/", { reason: "rename" });
    assert.equal(typeof lock.fence, "bigint");
    lock.check();
    await lock.client.state.put("guarded", true);
    await assert.rejects(two.locks.hold("src/a.ts", { wait: 0 }), (error) => {
      assert.ok(error instanceof Busy);
      assert.deepEqual([error.obstacles[0]!.agent, error.obstacles[0]!.reason], ["one", "rename"]);
      return true;
    });
    const given = new AbortController();
    const abandoned = two.locks.hold("src/", { signal: given.signal });
    given.abort(new Error("enough"));
    await assert.rejects(abandoned, /enough/);
    assert.equal((await one.stubs.locks.listLocks({})).tickets.length, 0, "the ticket is released");
    const next = two.locks.hold("src/a.ts");
    await lock.release();
    const other = await next;
    assert.ok(other.fence > lock.fence);
    assert.throws(() => lock.check(), Lost);
    await assert.rejects(one.fenced(lock.fence).state.put("guarded", false), (error) => error instanceof Lost && error.reason === "FENCE_LOST");
    await other.release();
  }
  await using again = await two.locks.hold(["src/", "docs/*.md"], { wait: 0, shared: true });
  await using shared = await one.locks.hold("src/", { wait: 0, shared: true });
  assert.notEqual(again.fence, shared.fence);
});

test("a holder that the caller names gets the same grant again", async () => {
  const daemon = await Daemon.start();
  const one = await daemon.agent("one");
  const first = await one.tokens.hold("deploy", "staging", { holder: "w1", maxHold: "1h" });
  const again = await one.tokens.hold("deploy", "staging", { holder: "w1", maxHold: "4s" });
  assert.equal(again.fence, first.fence);
  again.check();
  await daemon.freeze();
  try {
    assert.ok((await aborted(again.signal)) instanceof Lost, "the shorter hold counts");
    first.check();
  } finally {
    daemon.thaw();
  }
});

test("a hold is extended while its process lives", async () => {
  const daemon = await Daemon.start();
  const one = await daemon.agent("one");
  await using token = await one.tokens.hold("deploy", "staging", { maxHold: "12s" });
  const until = async () => Number((await one.stubs.tokens.getToken({ type: "deploy", scope: "staging" })).token!.heldUntil!.seconds);
  const first = await until();
  await take(1, one.events.follow({ after: 0, types: ["token.extended"] }));
  assert.ok((await until()) > first);
  token.check();
});

test("a hold is lost in time while the daemon is frozen", async () => {
  const daemon = await Daemon.start();
  const one = await daemon.agent("one");
  const lock = await one.locks.hold("src/", { maxHold: "3s" });
  const began = performance.now();
  await daemon.freeze();
  try {
    const reason = await aborted(lock.signal);
    assert.ok(reason instanceof Lost);
    assert.throws(() => lock.check(), Lost);
    assert.ok(performance.now() >= began, "the clock is monotonic");
  } finally {
    daemon.thaw();
  }
  await lock.release();
});

test("check throws in time although no timer of the process could run", async () => {
  const daemon = await Daemon.start();
  const one = await daemon.agent("one");
  const lock = await one.locks.hold("src/", { maxHold: "60s" });
  await daemon.kill();
  lock.check();
  const later = performance.now() + 60_000;
  const now = mock.method(performance, "now", () => later);
  assert.throws(() => lock.check(), Lost); // the event loop has not run since
  now.mock.restore();
  assert.ok(lock.signal.reason instanceof Lost);
  await lock.release();
  await assert.rejects(one.locks.hold("src/", { wait: 0, timeout: "1s" }), Unreachable);
});

test("a hold is lost when an operator takes it, and when the client is closed", async () => {
  const daemon = await Daemon.start();
  const one = await daemon.agent("one");
  const lock = await one.locks.hold("src/", { maxHold: "1s" });
  await daemon.brokerctl("lock", "revoke", "src/", "--reason", "needed");
  assert.ok((await aborted(lock.signal)) instanceof Lost);

  const token = await one.tokens.hold("deploy", "staging");
  one.close();
  assert.throws(() => token.check(), Lost);
  await token.release();
});
