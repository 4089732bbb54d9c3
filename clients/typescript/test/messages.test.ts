import assert from "node:assert/strict";
import { test } from "node:test";

import { Daemon } from "./daemon.js";

test("operators have a mailbox", async () => {
  const daemon = await Daemon.start();
  const operator = await daemon.connect("");
  const builder = await daemon.agent("builder-1", "builder");
  await operator.send("builder-1", "Which branch?", { requiresResponse: true });
  await (await builder.claim({ wait: "10s" }))!.reply("main");
  await builder.send("operator", "May I deploy?");
  const mail = await operator.inbox();
  assert.deepEqual(mail.map((m) => m.text), ["main", "May I deploy?"]);
  await operator.reply(mail[1]!, "yes"); // finishes it
  await operator.ack(mail[0]!);
  assert.deepEqual(await operator.inbox(), []);
  assert.equal((await builder.claim({ wait: "10s" }))?.text, "yes");
});

test("a message is sent, claimed, answered and acknowledged", async () => {
  const daemon = await Daemon.start();
  const lead = await daemon.agent("lead");
  const builder = await daemon.agent("builder-1", "builder");

  const receipt = await lead.send("role:builder", "Add login", { type: "TaskAssignment", payload: { part: 1 } });
  assert.equal(receipt.recipientCount, 1);
  assert.equal(typeof receipt.revision, "bigint");

  const claim = await builder.claim({ wait: "10s" });
  assert.equal(claim?.text, "Add login");
  assert.deepEqual(claim.payload, { part: 1 });
  assert.equal(claim.sender, "lead");
  assert.deepEqual([claim.type, claim.typeAsSent], ["task_assignment", "TaskAssignment"]);
  await claim.reply("Done");

  const answer = await lead.claim({ wait: "10s" });
  assert.equal(answer?.text, "Done");
  assert.equal(answer.proto.inReplyTo, receipt.id);
  await lead.ack(answer);
  assert.deepEqual(await lead.inbox(), []);
  assert.equal(await builder.claim(), undefined);

  await builder.subscribe("news");
  await lead.send("channel:news", "one\ntwo");
  const [news] = await builder.inbox({ types: ["message"] });
  assert.deepEqual([news?.subject, news?.body, news?.text, news?.delivery?.attempts], ["", "one\ntwo", "one\ntwo", 0]);
  await builder.reply(news!, "seen");
  assert.deepEqual((await lead.inbox()).map((mail) => mail.text), ["seen"]);
  await builder.unsubscribe("news");
  assert.equal((await lead.send("channel:news", "three")).recipientCount, 0);
});
