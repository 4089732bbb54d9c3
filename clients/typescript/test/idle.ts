// A program that registers an agent and closes nothing.
import { Client } from "@brokerd/client";

const client = await Client.fromEnv({ agent: "idle" });
const { agent } = await client.register();
console.log(`registered ${agent!.name}`);
