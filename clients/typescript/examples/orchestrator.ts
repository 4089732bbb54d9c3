// An orchestrator: plans tasks with dependencies, and follows the events until all are done.
//
//   BROKERD_AGENT=lead node orchestrator.ts       (Node 22.18 or newer; otherwise compile it first)
import { Client } from "@brokerd/client";

const client = await Client.fromEnv();
await client.register({ role: "lead" });

const { revision: before } = await client.state.list({ prefix: "changelog" });
const schema = await client.tasks.create({ title: "Write the schema", role: "builder" });
const api = await client.tasks.create({ title: "Write the API", role: "builder", dependsOn: [schema.id] });

const open = new Set([schema.id, api.id]);
for await (const event of client.events.follow({ after: before, types: ["task.*"] })) {
  if (!open.has(event.taskId)) continue;
  console.log(event.summary);
  if (["task.completed", "task.failed", "task.cancelled"].includes(event.type)) open.delete(event.taskId);
  if (open.size === 0) break;
}
console.log("result:", (await client.tasks.get(api.id)).result);
console.log((await client.state.get("changelog"))?.document);
await client.close();
