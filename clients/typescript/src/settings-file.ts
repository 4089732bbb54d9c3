import { readFileSync, statSync, type Stats } from "node:fs";
import { dirname, isAbsolute, join } from "node:path";

import { Invalid } from "./errors.js";
import { connectionKeys, type Connection } from "./trust.js";

/** The name of the file with the settings for its folder and all folders below. */
const fileName = ".brokerd.yaml";

/** SettingsFile is the content of a .brokerd.yaml, as `brokerctl init` writes it. */
export interface SettingsFile {
  path?: string;
  addr?: string;
  session?: string;
  output?: string;
  /** Of brokerctl mcp and hooks. */
  start?: string;
  credential_file?: string;
  tls_ca?: string;
  tls_cert?: string;
  tls_key?: string;
  /** The connection as the file has it: paths are relative to its folder. */
  given?: Connection;
  agents: Record<string, AgentSettings>;
}

/** AgentSettings are what the file says of an agent. */
export interface AgentSettings {
  role?: string;
  /** With commas between them, such as "go, sql". */
  capabilities?: string;
  /** With commas between them, such as "team=web, area=ui". */
  labels?: string;
  /** Which mail reaches its model unasked: open, directives or off. Programs ignore it. */
  attention?: string;
  hook_session?: string;
}

const agentKeys = ["role", "capabilities", "labels", "attention", "hook_session"] as const;

const files = ["credential_file", "tls_ca", "tls_cert", "tls_key"] as const;
const settings = ["addr", "session", "output", "start", ...files] as const;

/** Returns the settings for the working folder; undefined if no folder above it has a file. */
export function readSettings(): SettingsFile | undefined {
  const path = findSettings();
  if (path === undefined) return undefined;
  const found = parseSettings(readFileSync(path, "utf8"), path);
  found.path = path;
  found.given = Object.fromEntries(connectionKeys.map((key) => [key, found[key] ?? ""]));
  for (const key of files) {
    const file = found[key];
    if (file && !isAbsolute(file)) found[key] = join(dirname(path), file);
  }
  return found;
}

/**
 * Returns the path of the nearest file from the working folder upwards. It skips a file that belongs
 * neither to the user, nor to root, nor to the owner of the working folder: in a folder that all
 * users may write to, any of them could redirect the calls.
 */
function findSettings(): string | undefined {
  let folder = process.cwd();
  const owners = new Set([0, process.getuid?.(), stat(folder)?.uid]);
  for (;;) {
    const path = join(folder, fileName);
    const info = stat(path);
    if (info?.isFile() && owners.has(info.uid)) return path;
    const above = dirname(folder);
    if (above === folder) return undefined;
    folder = above;
  }
}

function stat(path: string): Stats | undefined {
  try {
    return statSync(path, { throwIfNoEntry: false });
  } catch {
    return undefined; // not readable by this user, so it is not for this user
  }
}

/**
 * Reads the part of YAML that `brokerctl init` writes: scalars, nested mappings by indentation, and
 * mappings in braces. It throws Invalid, with the line, for anything else.
 */
export function parseSettings(text: string, path = fileName): SettingsFile {
  const read: SettingsFile = { agents: {} };
  let inAgents = false;
  let agent: { name: string; indent: number } | undefined;
  text.split(/\r?\n/).forEach((raw, index) => {
    const refuse = (why: string) => new Invalid(`${path}: line ${index + 1}: ${why}`);
    const line = /^(\s*)("[^"]*"|'[^']*'|[^\s:#"'{][^:#]*?(?::[^\s:#]+)*)\s*:(?:\s+(.*))?$/.exec(raw);
    if (/^\s*(#.*)?$/.test(raw) || /^---\s*$/.test(raw)) return;
    if (line === null) throw refuse(`${JSON.stringify(raw)} is no "key: value"`);
    const indent = line[1]!.length;
    const key = scalar(line[2]!, refuse);
    const value = line[3] ?? "";
    if (indent === 0) {
      inAgents = key === "agents";
      agent = undefined;
      if (inAgents) {
        if (scalar(value, refuse) !== "" && !/^\{\s*\}/.test(value)) throw refuse("agents must be names with settings");
      } else if (settings.includes(key as (typeof settings)[number])) {
        read[key as (typeof settings)[number]] = scalar(value, refuse);
      } else {
        throw refuse(`unknown key ${JSON.stringify(key)}; known are ${settings.join(", ")}, agents`);
      }
    } else if (!inAgents) {
      throw refuse(`${key} is indented`);
    } else if (agent === undefined || indent <= agent.indent) {
      agent = { name: key, indent };
      read.agents[key] = {};
      for (const [k, v] of braces(value, refuse)) put(read.agents[key]!, k, v, refuse);
    } else {
      put(read.agents[agent.name]!, key, scalar(value, refuse), refuse);
    }
  });
  return read;
}

type Refuse = (why: string) => Error;

function put(agent: AgentSettings, key: string, value: string, refuse: Refuse): void {
  if (!agentKeys.includes(key as (typeof agentKeys)[number])) {
    throw refuse(`unknown key ${JSON.stringify(key)} of an agent; known are ${agentKeys.join(", ")}`);
  }
  agent[key as (typeof agentKeys)[number]] = value;
}

/** Returns the words of a text such as "go, sql". */
export function words(text = ""): string[] {
  return text.split(",").map((word) => word.trim()).filter((word) => word !== "");
}

/** Returns the labels of a text such as "team=web, area=ui". */
export function labelsIn(text = ""): Record<string, string> {
  return Object.fromEntries(words(text).map((pair) => [pair.split("=", 1)[0]!, pair.slice(pair.indexOf("=") + 1)]));
}

/** Returns the pairs of {key: value, key: value}. */
function braces(value: string, refuse: Refuse): [string, string][] {
  if (scalar(value, refuse) === "") return [];
  const inner = /^\{(.*)\}\s*(#.*)?$/.exec(value)?.[1];
  if (inner === undefined) throw refuse("an agent must have settings, such as {role: builder}");
  const pairs = inner.match(/("[^"]*"|'[^']*'|[^,])+/g) ?? [];
  return pairs.filter((pair) => pair.trim() !== "").map((pair) => {
    const [, key, value] = /^\s*("[^"]*"|'[^']*'|[^:]+?)\s*:\s+(.*?)\s*$/.exec(pair) ?? [];
    if (key === undefined) throw refuse(`${JSON.stringify(pair.trim())} is no "key: value"`);
    return [scalar(key, refuse), scalar(value!, refuse)];
  });
}

/** Returns a plain or quoted scalar without the comment after it. */
function scalar(text: string, refuse: Refuse): string {
  const quoted = /^("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')\s*(#.*)?$/.exec(text.trim())?.[1];
  if (quoted?.startsWith("'")) return quoted.slice(1, -1).replaceAll("''", "'");
  if (quoted !== undefined) {
    try {
      return JSON.parse(quoted) as string;
    } catch {
      throw refuse(`${quoted} has an escape that this client does not know`);
    }
  }
  const plain = text.replace(/(^|\s)#.*$/, "").trim();
  if (/^[[&*!|>%@`]/.test(plain)) throw refuse(`${JSON.stringify(plain)} is YAML that this client does not read`);
  return plain === "null" || plain === "~" ? "" : plain;
}
