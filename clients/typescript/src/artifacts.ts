import { createHash } from "node:crypto";

import type { MessageInitShape } from "@bufbuild/protobuf";

import { linked } from "./abort.js";
import { Backoff } from "./backoff.js";
import type { Caller, CallOptions } from "./caller.js";
import { long, requestId, type Long } from "./convert.js";
import { BrokerError, interrupted } from "./errors.js";
import type { ArtifactVersion, UploadArtifactRequestSchema } from "./gen/brokerd/v1/artifact_pb.js";

const chunkSize = 64 << 10; // bytes in one frame of an upload

/** UploadOptions describe a version of an artifact. */
export interface UploadOptions {
  mediaType?: string;
  description?: string;
  labels?: Record<string, string>;
  taskId?: string;
  /** Also publish the event artifact_shared. */
  announce?: boolean;
  requestId?: string;
  signal?: AbortSignal;
}

/** Artifacts are files that agents share, with numbered versions. */
export class Artifacts {
  readonly #caller: Caller;

  constructor(caller: Caller) {
    this.#caller = caller;
  }

  /**
   * Stores a content as the next version of a name; the same content again adds no version. If the connection breaks,
   * the upload repeats until the signal aborts, and never adds two versions.
   */
  async upload(name: string, content: string | Uint8Array, options: UploadOptions = {}): Promise<ArtifactVersion> {
    const bytes = typeof content === "string" ? new TextEncoder().encode(content) : content;
    const header = {
      requestId: options.requestId ?? requestId(),
      name,
      size: BigInt(bytes.length),
      sha256: sha256(bytes),
      mediaType: options.mediaType ?? "",
      description: options.description ?? "",
      labels: options.labels ?? {},
      taskId: options.taskId ?? "",
      announce: options.announce ?? false,
    };
    const { artifact } = await this.#persist(options.signal, (signal) =>
      this.#caller.stubs.artifacts.uploadArtifact(frames(header, bytes), { signal }),
    );
    return artifact!;
  }

  /**
   * Returns the content of a version; default the newest. If the connection breaks, the download
   * begins again. It throws a BrokerError (DAMAGED) if the content does not have the version's hash.
   */
  async download(name: string, options: CallOptions & { version?: Long } = {}): Promise<Uint8Array> {
    return this.#persist(options.signal, async (signal) => {
      const request = { name, version: long(options.version ?? 0) };
      let artifact: ArtifactVersion | undefined;
      const chunks: Uint8Array[] = [];
      for await (const { frame } of this.#caller.stubs.artifacts.downloadArtifact(request, { signal })) {
        if (frame.case === "artifact") artifact = frame.value;
        else if (frame.case === "chunk") chunks.push(frame.value);
      }
      const content = new Uint8Array(Buffer.concat(chunks));
      if (sha256(content) !== artifact?.sha256) {
        throw new BrokerError(`the content of ${name} does not have the hash of its version`, { reason: "DAMAGED" });
      }
      return content;
    });
  }

  /** Returns the description of a version; default the newest. */
  async get(name: string, options: CallOptions & { version?: Long } = {}): Promise<ArtifactVersion> {
    const request = { name, version: long(options.version ?? 0) };
    return (await this.#caller.call((o) => this.#caller.stubs.artifacts.getArtifact(request, o), options)).artifact!;
  }

  /** Transfers again while the connection breaks, until the signal aborts or the client is closed. */
  async #persist<T>(given: AbortSignal | undefined, transfer: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const { connection } = this.#caller;
    const backoff = new Backoff(connection);
    for (;;) {
      const ending = linked(given);
      try {
        return await transfer(ending.signal);
      } catch (error) {
        if (!interrupted(error) || !(await backoff.pause(error, given))) throw given?.aborted ? given.reason : error;
      } finally {
        ending.unlink();
        ending.abort();
      }
    }
  }
}

type Frame = MessageInitShape<typeof UploadArtifactRequestSchema>;

async function* frames(header: object, bytes: Uint8Array): AsyncGenerator<Frame> {
  yield { frame: { case: "header", value: header } };
  for (let at = 0; at < bytes.length; at += chunkSize) {
    yield { frame: { case: "chunk", value: bytes.subarray(at, at + chunkSize) } };
  }
}

function sha256(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}
