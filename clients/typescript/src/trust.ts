import { createHash } from "node:crypto";
import { closeSync, fstatSync, openSync, readFileSync, realpathSync } from "node:fs";
import { homedir } from "node:os";
import { basename, dirname, isAbsolute, join, relative } from "node:path";

import { Invalid } from "./errors.js";

/**
 * The keys of a .brokerd.yaml that say where calls go and what proves who calls. They count only if the
 * user trusts the file with these values: another person may have written it, such as the author of a
 * repository.
 */
export const connectionKeys = ["addr", "tls_ca", "tls_cert", "tls_key", "credential_file"] as const;

export type Connection = Partial<Record<(typeof connectionKeys)[number], string>>;

/** Returns the SHA-256 of the values, as brokerctl computes it. */
export function connectionSum(values: Connection): string {
  const digest = createHash("sha256");
  for (const key of connectionKeys) {
    const value = values[key] ?? "";
    digest.update(`${key} ${Buffer.byteLength(value)} ${value}\n`);
  }
  return digest.digest("hex");
}

/**
 * Throws Invalid unless the user trusts the file with these values (`brokerctl trust`), or if a symbolic link
 * leads a file out of the folder.
 */
export function checkTrust(path: string, values: Connection): void {
  const real = join(realpathSync(dirname(path)), basename(path));
  const config = process.env["XDG_CONFIG_HOME"] ?? "";
  const root = isAbsolute(config) ? config : join(homedir(), ".config");
  const note = readNote(join(root, "brokerd", "trusted", createHash("sha256").update(real).digest("hex")));
  if (note?.file !== real || note.sha256 !== connectionSum(values)) {
    const what = "says where calls go or with which credential, and you have not trusted it";
    throw new Invalid(`${path} ${what}: read it, then run \`brokerctl trust\``);
  }
  const folder = dirname(real);
  for (const key of connectionKeys) {
    const value = values[key];
    if (!value || key === "addr") continue;
    const named = isAbsolute(value) ? value : join(folder, value);
    if (isIn(folder, named) && !isIn(folder, withoutLinks(named))) { // perhaps created after `brokerctl trust`
      const advice = "name its target in the file, and run `brokerctl trust`";
      throw new Invalid(`${path}: a symbolic link leads ${key} out of the folder: ${advice}`);
    }
  }
}

function isIn(folder: string, file: string): boolean {
  const path = relative(folder, file);
  return path !== ".." && !path.startsWith("../");
}

/** Returns the path of a file without symbolic links; of a missing file, the path as it is. */
function withoutLinks(file: string): string {
  try {
    return realpathSync(file);
  } catch {
    return file;
  }
}

/** Reads the note about a file; undefined if there is none. */
function readNote(path: string): { file?: string; sha256?: string } | undefined {
  let opened: number;
  try {
    opened = openSync(path, "r");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw new Invalid(`read ${path}: ${(error as Error).message}`, {}, undefined, { cause: error });
  }
  try {
    const info = fstatSync(opened);
    if (info.uid !== process.getuid?.() || (info.mode & 0o022) !== 0) {
      throw new Invalid(`${path} may be from another user; remove it`);
    }
    return JSON.parse(readFileSync(opened, "utf8")) as { file?: string; sha256?: string };
  } finally {
    closeSync(opened);
  }
}
