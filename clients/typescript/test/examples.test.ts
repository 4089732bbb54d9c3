import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { Daemon } from "./daemon.js";

const example = (name: string) => fileURLToPath(new URL(`../examples/${name}.js`, import.meta.url));

test("the worker of the examples does the tasks of the orchestrator", async () => {
  const daemon = await Daemon.start();
  const env = (agent: string) => ({ ...process.env, BROKERD_ADDR: daemon.address, BROKERD_AGENT: agent });
  const worker = spawn(process.execPath, [example("worker")], { env: env("builder-1"), stdio: ["ignore", "pipe", "inherit"] });
  const exited = once(worker, "exit");
  const lines: string[] = [];
  const closed = (async () => {
    for await (const line of createInterface(worker.stdout!)) lines.push(line);
  })();

  const { stdout } = await promisify(execFile)(process.execPath, [example("orchestrator")], { env: env("lead") });
  assert.match(stdout, /result: Write the API is built/);
  assert.match(stdout, /- Write the schema[^]*- Write the API/);
  worker.kill("SIGTERM");
  assert.deepEqual(await exited, [0, null]);
  await closed;
  assert.deepEqual(lines, ["builder-1 works", "attempt 1 of Write the schema", "attempt 1 of Write the API", "stopped"]);
});
