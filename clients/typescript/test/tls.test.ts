import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, test } from "node:test";
import { promisify } from "node:util";

import { Client, Denied, Invalid, Unreachable, type TLS } from "@brokerd/client";

import { Daemon } from "./daemon.js";
import { trust } from "./trust.js";

const folder = mkdtempSync("/tmp/brokerd-ts-tls-");
after(() => rmSync(folder, { recursive: true }));

/** Makes the certificates of a server and of builder-1, and returns the files of the agent. */
async function certificates(name: string): Promise<Required<Omit<TLS, "serverName">>> {
  const dir = join(folder, name);
  const brokerctl = join(process.env["BROKERD_PROGRAM"]!, "..", "brokerctl");
  await promisify(execFile)(brokerctl, ["credential", "tls", dir, "builder-1", "--host", "127.0.0.1", "--session", "default"]);
  const agent = join(dir, "agents", "default", "builder-1");
  return { ca: join(dir, "ca.pem"), cert: `${agent}.pem`, key: `${agent}.key` };
}

test("a client speaks TLS, its certificate identifies the agent, and problems are named", async () => {
  const own = await certificates("ours");
  const other = await certificates("other");
  const dir = join(folder, "ours");
  const daemon = await Daemon.start("--listen", "127.0.0.1:0", "--tls-cert", join(dir, "server.pem"), "--tls-key", join(dir, "server.key"), "--tls-client-ca", own.ca);
  const where = /tls:\/\/(127\.0\.0\.1:\d+)/.exec(daemon.announced)![1]!;
  const address = `tls://${where}`;
  const credential = readFileSync(join(daemon.folder, "operator.credential"), "utf8").trim();
  const timeout = 60_000;

  for (const named of [address, where]) {
    await using trusting = await Client.connect({ address: named, tls: { ca: own.ca }, credential, agent: "critic-1", timeout });
    await trusting.register();
  }
  await using certified = await Client.connect({ address, tls: own, timeout });
  assert.equal((await certified.register()).name, "builder-1");
  await assert.rejects(certified.asAgent("critic-1").inbox(), (error) => error instanceof Denied && error.reason === "CREDENTIAL_BOUND");
  await using twice = await Client.connect({ address, tls: own, credential, timeout });
  await assert.rejects(twice.inbox(), (error) => error instanceof Denied && error.reason === "CREDENTIAL_MISMATCH");

  const plain = /127\.0\.0\.1:\d+/.exec((await Daemon.start("--listen", "127.0.0.1:0")).announced)![0];
  for (const [named, tls, problem] of [
    [address, { ca: other.ca }, /an authority that is not trusted/],
    [address, { ...own, serverName: "broker.example" }, /a certificate for other names, not for broker.example/],
    [address, { ...other, ca: own.ca }, /refuses the client's certificate/],
    [where, {}, new RegExp(`speaks TLS: write its address as tls://${where}`)],
    [`tls://${plain}`, own, /does not speak TLS/],
  ] as const) {
    const call = async () => {
      await using client = await Client.connect({ address: named, tls, timeout: 20_000 });
      await client.inbox();
    };
    await assert.rejects(call(), (error) => error instanceof Unreachable && problem.test(error.text), `${problem}`);
  }
  await assert.rejects(Client.connect({ address: "192.0.2.1:7421" }), (error) => error instanceof Invalid && /write tls:\/\/192/.test(error.text));
  await assert.rejects(Client.connect({ address, tls: { ca: join(folder, "none.pem") } }), (error) => error instanceof Invalid && /none.pem/.test(error.text));
  await assert.rejects(Client.connect({ address, tls: { cert: own.cert } }), (error) => error instanceof Invalid && /both files/.test(error.text));

  const home = process.cwd();
  process.chdir(folder);
  try {
    const [cert, key] = [own.cert, own.key];
    writeFileSync(".brokerd.yaml", `addr: ${where}\ntls_ca: ours/ca.pem\ntls_cert: ${cert}\ntls_key: ${key}\n`);
    process.env["XDG_CONFIG_HOME"] = join(folder, "config");
    trust(join(folder, ".brokerd.yaml"), { addr: where, tls_ca: "ours/ca.pem", tls_cert: cert, tls_key: key });
    await using found = await Client.fromEnv({ timeout });
    assert.equal((await found.heartbeat({ activity: "reading" })).incarnation, 1n);
  } finally {
    process.chdir(home);
    delete process.env["XDG_CONFIG_HOME"];
  }
});
