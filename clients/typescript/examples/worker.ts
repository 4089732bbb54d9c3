// A worker: does the tasks of its role, one after the other, until SIGTERM or Ctrl-C.
//
//   BROKERD_AGENT=builder-1 node worker.ts        (Node 22.18 or newer; otherwise compile it first)
import { Client } from "@brokerd/client";

const client = await Client.fromEnv();
await client.register({ role: "builder", capabilities: ["typescript"] });
console.log(`${client.identity.agent} works`);

await client.tasks.work(async (work) => {
  console.log(`attempt ${work.attempt} of ${work.title}`);
  const lock = await client.locks.hold("CHANGELOG.md", { reason: work.title });
  try {
    await client.state.append("changelog", `- ${work.title}`, { taskId: work.id });
    lock.check();
  } finally {
    await lock.release();
  }
  await work.report(0.9, "written");
  return `${work.title} is built`;
});
console.log("stopped");
await client.close();
