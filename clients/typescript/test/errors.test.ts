import assert from "node:assert/strict";
import { test } from "node:test";

import { BrokerError, Conflict, Denied, Exhausted, Invalid, Lost, NotFound, OutOfRange, Precondition, Unreachable } from "@brokerd/client";

import { Daemon } from "./daemon.js";

/** Returns the error of a call that the broker refuses. */
async function refusal(call: Promise<unknown>): Promise<BrokerError> {
  try {
    await call;
  } catch (error) {
    assert.ok(error instanceof BrokerError, `${error}`);
    return error;
  }
  assert.fail("the call was not refused");
}

test("each class of errors comes from a refused call, with reason, fields and text", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const builder = await daemon.agent("builder-1");
  await lead.state.put("step", 1);
  await lead.send("builder-1", "work");
  const claim = (await builder.claim())!;
  await claim.nack("broken");
  await lead.artifacts.upload("a.md", "short");

  const cases: [() => Promise<unknown>, typeof NotFound | typeof Invalid, string][] = [
    [() => lead.send("bilder-1", "hello"), NotFound, "AGENT_NOT_FOUND"],
    [() => lead.tasks.get("t-404"), NotFound, "TASK_NOT_FOUND"],
    [() => lead.state.put("step", 2, { ifRevision: 0 }), Conflict, "STATE_CHANGED"],
    [() => lead.asAgent("stranger").inbox(), Precondition, "AGENT_NOT_REGISTERED"],
    [() => lead.ask("role:critic", "Good?"), Precondition, "NO_RESPONDERS"],
    [() => lead.stubs.artifacts.downloadArtifact({ name: "a.md", offset: 6n })[Symbol.asyncIterator]().next(), OutOfRange, "OFFSET_TOO_LARGE"],
    [() => claim.extend(), Lost, "CLAIM_LOST"],
    [() => lead.atIncarnation(99).inbox(), Lost, "STALE_INCARNATION"],
    [() => lead.fenced(1).state.put("step", 3), Lost, "FENCE_LOST"],
    [() => lead.stubs.admin.checkDatabase({}), Denied, "OPERATOR_ONLY"],
    [() => lead.send("builder-1", "x", { priority: 11 }), Invalid, "INVALID_ARGUMENT"],
  ];
  for (const [call, kind, reason] of cases) {
    const error = await refusal(call());
    assert.equal(error.constructor, kind, `${reason}: ${error}`);
    assert.equal(error.name, kind.name);
    assert.equal(error.reason, reason);
    assert.ok(error.text.length > 0);
  }

  const wrong = await refusal(lead.send("builder-1", "x", { priority: 11 }));
  assert.match(wrong.fields["messages[0].priority"]!, /1 to 10/);
  const changed = await refusal(lead.state.put("step", 2, { ifRevision: 0 }));
  assert.equal(BigInt(changed.facts["revision"]!), (await lead.state.get("step"))!.revision);
  assert.equal((await refusal(lead.send("bilder-1", "hello"))).resource, "bilder-1");
});

test("an agent without a name is reported in the words of the client", async () => {
  const daemon = await Daemon.start();
  const nameless = await daemon.connect("");
  const advice = "name it with the option agent, asAgent() or BROKERD_AGENT";
  assert.equal((await refusal(nameless.register())).text, `agent: is empty; a name is required; ${advice}`);
  assert.ok((await refusal(nameless.claim())).text.endsWith(`; ${advice}`));
});

test("a limit is Exhausted, with the time after which the call may succeed", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const texts = Array.from({ length: 300 }, (_, i) => `${i}`); // more than send_burst
  const messages = texts.map((body) => ({ body, target: { to: { case: "agent", value: "lead" } } as const }));
  const error = await refusal(lead.stubs.messages.sendMessages({ messages }, { timeoutMs: 2000 }));
  assert.equal(error.constructor, Exhausted);
  assert.equal(error.reason, "SEND_RATE");
  assert.ok(error.retryAfter > 0);
});

test("a broker that has ended is Unreachable", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  await daemon.kill();
  assert.equal((await refusal(lead.inbox({ timeout: 100 }))).constructor, Unreachable);
});
