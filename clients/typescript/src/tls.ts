import { readFileSync } from "node:fs";
import { isIP } from "node:net";
import { checkServerIdentity, connect, type ConnectionOptions } from "node:tls";

import { Invalid } from "./errors.js";

/** TLS are the files, in PEM, and the name with which a client speaks TLS. */
export interface TLS {
  /** The authorities that the broker's certificate may be from; default those of Node. */
  ca?: string;
  /** The certificate that identifies the agent. */
  cert?: string;
  /** The key of cert. */
  key?: string;
  /** The name in the broker's certificate; default the host of the address. */
  serverName?: string;
}

const probeTimeout = 10_000; // ms

/** Returns the options of a connection, with the files as they are now. It throws Invalid if one cannot be read. */
export function tlsOptions(tls: TLS, host: string, port: number): ConnectionOptions {
  if ((tls.cert === undefined) !== (tls.key === undefined)) {
    throw new Invalid("a certificate for TLS needs its key: give both files or neither");
  }
  const name = tls.serverName ?? host;
  const options: ConnectionOptions = {
    host,
    port,
    ALPNProtocols: ["h2"],
    minVersion: "TLSv1.3",
    checkServerIdentity: (_, certificate) => checkServerIdentity(name, certificate),
  };
  if (isIP(name) === 0) options.servername = name;
  for (const key of ["ca", "cert", "key"] as const) {
    const file = tls[key];
    if (file === undefined) continue;
    try {
      options[key] = readFileSync(file);
    } catch (error) {
      throw new Invalid(`read the files for TLS: ${(error as Error).message}`, {}, undefined, { cause: error });
    }
  }
  return options;
}

/** Returns why a handshake failed, for after "the broker at ADDRESS"; undefined for other errors. */
export function tlsProblem(error: unknown, name: string): string | undefined {
  const { code = "", message = "" } = error as NodeJS.ErrnoException;
  if (code === "CERT_HAS_EXPIRED" || code === "CERT_NOT_YET_VALID") {
    return `has a certificate that is not valid now (${message}): renew it, or correct the clock`;
  }
  if (code === "ERR_TLS_CERT_ALTNAME_INVALID") {
    return `has a certificate for other names, not for ${name}: BROKERD_TLS_SERVER_NAME can give the name`;
  }
  if (/^(DEPTH_ZERO_)?SELF_SIGNED_CERT|^UNABLE_TO_(VERIFY|GET_ISSUER)|^CERT_(UNTRUSTED|SIGNATURE_FAILURE)/.test(code)) {
    return `has a certificate of an authority that is not trusted: BROKERD_TLS_CA names the file with its authority (${message})`;
  }
  if (code === "ERR_SSL_WRONG_VERSION_NUMBER" || code === "ERR_SSL_PACKET_LENGTH_TOO_LONG") {
    return "does not speak TLS; an address without tls:// and without settings for TLS reaches it, on this machine alone";
  }
  if (/^ERR_SSL_.*ALERT/.test(code)) {
    return `refuses the client's certificate, which BROKERD_TLS_CERT names: ${code}`;
  }
  return undefined;
}

/** Reports whether a server speaks TLS. */
export function speaksTLS(host: string, port: number): Promise<boolean> {
  const socket = connect({ host, port, ALPNProtocols: ["h2"], rejectUnauthorized: false, timeout: probeTimeout });
  const answer = new Promise<boolean>((resolve) => {
    socket.once("secureConnect", () => resolve(true));
    for (const event of ["error", "timeout", "close"]) socket.once(event, () => resolve(false));
  });
  return answer.finally(() => socket.destroy());
}
