// A program that registers an agent and closes nothing.
import { Client } from "@brokerd/client";

const client = await Client.fromEnv({ agent: "idle" });
const { name } = await client.register();
console.log(`registered ${name}`);
