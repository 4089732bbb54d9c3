import { createHash } from "node:crypto";
import { mkdirSync, realpathSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";

const keys = ["addr", "tls_ca", "tls_cert", "tls_key", "credential_file"] as const;

const sha256 = (text: string): string => createHash("sha256").update(text).digest("hex");

/** Returns the sum that brokerctl notes for these values. */
export function sumOf(values: Partial<Record<(typeof keys)[number], string>>): string {
  const lines = keys.map((key) => `${key} ${Buffer.byteLength(values[key] ?? "")} ${values[key] ?? ""}\n`);
  return sha256(lines.join(""));
}

/** Does what `brokerctl trust --yes` does for a file with these values, in the folder XDG_CONFIG_HOME. */
export function trust(file: string, values: Parameters<typeof sumOf>[0]): void {
  const real = join(realpathSync(dirname(file)), basename(file));
  const folder = join(process.env["XDG_CONFIG_HOME"]!, "brokerd", "trusted");
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, sha256(real)), JSON.stringify({ file: real, sha256: sumOf(values) }), { mode: 0o600 });
}
