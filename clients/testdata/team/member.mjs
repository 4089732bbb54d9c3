// A member of the team in JavaScript: works on messages and tasks until SIGTERM. BROKERD_AGENT is its name.
import { Client } from "@brokerd/client";

const client = await Client.fromEnv();
await client.register({ role: "worker" });
await Promise.all([client.work(() => {}, { consumer: "member" }), client.tasks.work(() => {})]);
client.close();
