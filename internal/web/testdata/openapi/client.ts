// Sends, claims and acknowledges a message with a client that is generated from the OpenAPI document.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { paths } from "./schema.js";

const baseUrl = process.env.BROKERD_URL;
assert(baseUrl);

function agent(name: string) {
  const headers = { Authorization: `Bearer ${process.env.BROKERD_SECRET}`, "Brokerd-Agent": name };
  return createClient<paths>({ baseUrl, headers });
}

const lead = agent("lead");
const builder = agent("builder-1");
for (const client of [lead, builder]) {
  const { error } = await client.POST("/v1/agents", { body: { lease: "1h" } });
  assert.equal(error, undefined);
}

const sent = await lead.POST("/v1/messages", {
  body: { messages: [{ target: { agent: "builder-1" }, subject: "Add login", priority: 7, payload: { task: [1] } }] },
  params: { header: { "Idempotency-Key": "01935f2e-7c5b-7000-8000-000000000001" } },
});
const result = sent.data?.results?.[0];
assert.equal(result?.recipients?.[0]?.outcome, "queued", JSON.stringify(sent.error));

const claimed = await builder.POST("/v1/claims", { body: { max: 1, wait: "1m" } });
const claim = claimed.data?.claims?.[0];
assert.equal(claim?.message?.subject, "Add login", JSON.stringify(claimed.error));
assert.deepEqual(claim?.message?.payload, { task: [1] });
assert(claim?.claim_id && result?.id);

const acked = await builder.POST("/v1/claims/ack", { body: { ids: [claim.claim_id] } });
assert.deepEqual(acked.data?.acked, [claim.claim_id], JSON.stringify(acked.error));

const read = await lead.GET("/v1/messages/{id}", { params: { path: { id: result.id } } });
assert.equal(read.data?.deliveries?.[0]?.state, "acked", JSON.stringify(read.error));

const list = await lead.GET("/v1/mailboxes", { params: { query: { order: "waiting", page_size: 5 } } });
assert.deepEqual(list.data?.mailboxes, [], JSON.stringify(list.error));

const refused = await lead.GET("/v1/agents/{name}", { params: { path: { name: "nobody" } } });
assert.equal(refused.response.status, 404);
assert.equal(refused.error?.error.reason, "AGENT_NOT_FOUND");

console.log("acknowledged", result.id);
