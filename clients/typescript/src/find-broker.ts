import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";

import { Denied, Invalid, Unreachable } from "./errors.js";
import { readSettings, type AgentSettings, type SettingsFile } from "./settings-file.js";
import type { TLS } from "./tls.js";
import { checkTrust, connectionKeys } from "./trust.js";

/** Found is the broker and the identity that the surroundings of the process name. */
export interface Found {
  address?: string;
  credential?: string;
  tls?: TLS;
  session?: string;
  agent?: string;
  incarnation?: bigint;
  fence?: bigint;
  agents?: Record<string, AgentSettings>;
}

/**
 * Reads what the caller has not given. It reads the environment, then the .brokerd.yaml of the working folder, as brokerctl does:
 * BROKERD_ADDR, BROKERD_SESSION, BROKERD_AGENT, BROKERD_INCARNATION, BROKERD_FENCE and
 * BROKERD_CREDENTIAL_FILE, BROKERD_TLS_CA, BROKERD_TLS_CERT, BROKERD_TLS_KEY and BROKERD_TLS_SERVER_NAME. The incarnation and the fence belong to the agent of the environment:
 * they do not count for another one.
 *
 * The keys of the file that say where calls go, and with which credential, count only if the user trusts the file
 * (`brokerctl trust`). A credential of the environment or of the caller is not sent to an address of the file, nor
 * one of the file to an address of the caller.
 */
export function surroundings<T extends { address?: string; agent?: string; credential?: string; tls?: TLS }>(given: T): Found & T {
  const env = process.env;
  const file = readSettings();
  const found: Found = {};
  const { address, credentialFile, tls } = connection(given, file);
  const session = env["BROKERD_SESSION"] || file?.session;
  const named = env["BROKERD_AGENT"] ?? "";
  const agent = given.agent ?? (named || onlyAgent(file));
  if (address) found.address = address;
  if (session) found.session = session;
  if (agent) found.agent = agent;
  if (file !== undefined) found.agents = file.agents;
  if (credentialFile && given.credential === undefined) found.credential = readCredential(credentialFile);
  if (Object.keys(tls).length > 0) found.tls = tls;
  if ((given.agent ?? named) !== named) return { ...found, ...given };
  const incarnation = wholeNumber("BROKERD_INCARNATION");
  const fence = wholeNumber("BROKERD_FENCE");
  if (incarnation !== undefined) found.incarnation = incarnation;
  if (fence !== undefined) found.fence = fence;
  return { ...found, ...given };
}

/** Returns the address and what proves who calls, of the environment or of the file. */
function connection(
  given: { address?: string; credential?: string; tls?: TLS },
  file: SettingsFile | undefined,
): { address: string; credentialFile: string; tls: TLS } {
  const env = process.env;
  const own = {
    address: env["BROKERD_ADDR"] ?? "",
    credentialFile: env["BROKERD_CREDENTIAL_FILE"] ?? "",
    tls: onlySet({
      ca: env["BROKERD_TLS_CA"],
      cert: env["BROKERD_TLS_CERT"],
      key: env["BROKERD_TLS_KEY"],
      serverName: env["BROKERD_TLS_SERVER_NAME"],
    }),
  };
  if (given.address || own.address || !file?.path || !connectionKeys.some((key) => file[key])) return own;
  checkTrust(file.path, file.given ?? {});
  const address = file.addr ?? "";
  const fromCaller = given.credential !== undefined || given.tls !== undefined;
  const proof = own.credentialFile || own.tls.cert || own.tls.key || fromCaller;
  const ofFile = file.credential_file || file.tls_cert || file.tls_key;
  if (address && proof && (!ofFile || fromCaller)) {
    const advice = "give that address with it, or put the credential into the file";
    throw new Invalid(
      `a credential of the environment or of the caller is not for ${address}, the address in ${file.path}: ${advice}`,
    );
  }
  const ca = file.tls_ca || own.tls.ca; // it is no secret
  if (!address && proof) return { ...own, tls: onlySet({ ...own.tls, ca }) };
  return {
    address,
    credentialFile: file.credential_file ?? "",
    tls: onlySet({ ca, cert: file.tls_cert, key: file.tls_key, serverName: own.tls.serverName }),
  };
}

/** Returns the settings for TLS that are set. */
function onlySet(settings: { [K in keyof TLS]?: string | undefined }): TLS {
  return Object.fromEntries(Object.entries(settings).filter(([, value]) => value));
}

/** Returns the agent of a folder: the one of this coding agent's session, or the only one. */
function onlyAgent(file: SettingsFile | undefined): string | undefined {
  const { agents = {}, path } = file ?? {};
  const names = Object.keys(agents);
  const session = process.env["CLAUDE_CODE_SESSION_ID"];
  const own = session ? names.filter((name) => agents[name]!.hook_session === session).sort() : [];
  if (own[0] === undefined && names.length > 1) {
    const advice = "export BROKERD_AGENT=NAME, or give the option agent";
    throw new Invalid(`${path} has several agents (${names.sort().join(", ")}) and nothing chooses one: ${advice}`);
  }
  return own[0] ?? names[0];
}

function wholeNumber(variable: string): bigint | undefined {
  const text = process.env[variable];
  if (!text) return undefined;
  if (!/^\d+$/.test(text)) throw new Invalid(`${variable} is ${JSON.stringify(text)}; it must be a whole number, 0 or above`);
  return BigInt(text);
}

/** Reads a credential from a file, without the white space around it. */
export function readCredential(file: string): string {
  let text: string;
  try {
    text = readFileSync(file, "utf8").trim();
  } catch (error) {
    throw new Denied(`read credential: ${(error as Error).message}`, {}, undefined, { cause: error });
  }
  if (text === "") throw new Denied(`read credential: ${file} is empty`);
  if (!/^[A-Za-z0-9_-]{43}$/.test(text)) { // it may be a secret of another program
    const what = "does not have the form of a credential, so it is not sent";
    throw new Denied(`read credential: the content of ${file} ${what}`);
  }
  return text;
}

/** Returns the data folder of the local broker. */
function dataFolder(): string {
  const { BROKERD_DATA, XDG_STATE_HOME } = process.env;
  return BROKERD_DATA || join(XDG_STATE_HOME || join(homedir(), ".local", "state"), "brokerd");
}

/**
 * Returns the address of this user's broker on this machine from its endpoint file and, if it
 * listens on TCP only, the credential of the operator.
 */
export function localBroker(): { address: string; credential?: string } {
  const folder = dataFolder();
  const missing = (why: string) =>
    new Unreachable(`no broker is running at ${folder} (${why}); start one with \`brokerctl up\`, or name another with BROKERD_ADDR`);
  const text = readIfThere(join(folder, "endpoint"));
  if (text === undefined) throw missing("there is no endpoint file");
  const address = text.split("\n", 1)[0]!.trim();
  if (address === "") throw missing("the endpoint file is empty");
  const secret = join(folder, "operator.credential");
  if (address.startsWith("unix:") || readIfThere(secret) === undefined) return { address };
  return { address, credential: readCredential(secret) };
}

function readIfThere(file: string): string | undefined {
  try {
    return readFileSync(file, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw new Invalid(`find the broker: ${(error as Error).message}`, {}, undefined, { cause: error });
  }
}
