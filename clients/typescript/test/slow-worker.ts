// A worker for the test of SIGTERM: its handler waits for a line on standard input.
import { once } from "node:events";

import { Client } from "@brokerd/client";

const client = await Client.fromEnv();
await client.register();
process.once("SIGTERM", () => console.log("stopping"));
await client.work(
  async (claim) => {
    console.log(`begun ${claim.text}`);
    await once(process.stdin, "data");
  },
  { prefetch: 1 },
);
await client.close();
