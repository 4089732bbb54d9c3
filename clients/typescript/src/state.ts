import { timestampDate } from "@bufbuild/protobuf/wkt";

import type { Caller, CallOptions } from "./caller.js";
import { duration, exact, json, long, parsed, requestId, type Long, type Span } from "./convert.js";
import { NotFound } from "./errors.js";
import { resumed } from "./follow.js";
import type { StateEntry, StateValue } from "./gen/brokerd/v1/state_pb.js";
import { optional } from "./messages.js";

/** An Entry is one key at one version. */
export interface Entry<T = unknown> {
  namespace: string;
  key: string;
  /**
   * The value; undefined for a document and for a deleted key. An integer is a number, or a bigint if
   * no number is exact. raw.value has the JSON text of a JSON value, for numbers beyond 2^53 in it.
   */
  value: T;
  /** From 1. */
  version: number;
  /** Of the change that made this version; the condition of a later put. */
  revision: bigint;
  author: string;
  changedAt: Date | undefined;
  /** This version is the deletion of the key. */
  deleted: boolean;
  /** Of a document: its entries, as Markdown text. */
  document?: string;
  /** As the API has it. */
  raw: StateEntry;
}

/** Options that name the namespace of a key. */
export interface KeyOptions extends CallOptions {
  /** Default "default"; "global" is shared by all sessions. */
  namespace?: string;
}

/** PutOptions are conditions and properties of a put. */
export interface PutOptions extends KeyOptions {
  /** Only if the key still has this revision; 0 = it must not exist. Conflict (STATE_CHANGED) otherwise. */
  ifRevision?: Long;
  /** After which the key is deleted. */
  ttl?: Span;
  /** The agent becomes the key's owner, or with false the key has none. */
  own?: boolean;
  taskId?: string;
  requestId?: string;
}

/** WatchOptions choose keys and the position to begin at. */
export interface WatchOptions {
  /** Default all but "global". */
  namespace?: string;
  /** Only keys that begin with it. */
  prefix?: string;
  /** Changes after this revision; 0 = all that are kept; default from now on. */
  after?: Long;
  /** Ends the iteration, without an error. */
  signal?: AbortSignal;
  /** Called with the revision up to which everything has been yielded: a position to resume after. */
  onProgress?: (revision: bigint) => void;
}

/** State is the shared state of the session: versioned values and documents. */
export class State {
  readonly #caller: Caller;

  constructor(caller: Caller) {
    this.#caller = caller;
  }

  /** Returns a key, of a document with all entries; undefined if there is none. */
  async get<T = unknown>(key: string, options: KeyOptions = {}): Promise<Entry<T> | undefined> {
    let document = "";
    let afterEntry = 0;
    try {
      for (;;) {
        const request = { key, namespace: options.namespace ?? "", markdown: true, afterEntry };
        const answer = await this.#caller.call((o) => this.#caller.stubs.state.getState(request, o), options);
        document += answer.markdown;
        if (answer.lastEntry >= answer.entry!.entries) return entry<T>(answer.entry!, document);
        afterEntry = answer.lastEntry;
      }
    } catch (error) {
      if (error instanceof NotFound && error.reason === "KEY_NOT_FOUND") return undefined;
      throw error;
    }
  }

  /** Writes a value: a string, a boolean, a whole number or bigint, or any other JSON value. */
  async put<T>(key: string, value: T, options: PutOptions = {}): Promise<Entry<T>> {
    const request = {
      requestId: options.requestId ?? requestId(),
      namespace: options.namespace ?? "",
      key,
      value: { value: stateValue(value) },
      ...optional("compareRevision", options.ifRevision === undefined ? undefined : long(options.ifRevision)),
      ...optional("ttl", duration(options.ttl)),
      ...optional("own", options.own),
      ...optional("taskId", options.taskId),
    };
    const answer = await this.#caller.call((o) => this.#caller.stubs.state.putState(request, o), options);
    return { ...entry<T>(answer.entry!), value };
  }

  /** Adds an entry of Markdown to a document; returns the number of the entry. */
  async append(key: string, text: string, options: KeyOptions & { taskId?: string; requestId?: string } = {}): Promise<number> {
    const { namespace = "", taskId } = options;
    const request = { requestId: options.requestId ?? requestId(), namespace, key, text, ...optional("taskId", taskId) };
    return (await this.#caller.call((o) => this.#caller.stubs.state.appendState(request, o), options)).number;
  }

  /** Deletes a key; returns whether there was one. */
  async delete(key: string, options: KeyOptions & { ifRevision?: Long; requestId?: string } = {}): Promise<boolean> {
    const request = {
      requestId: options.requestId ?? requestId(),
      namespace: options.namespace ?? "",
      key,
      ...optional("compareRevision", options.ifRevision === undefined ? undefined : long(options.ifRevision)),
    };
    return (await this.#caller.call((o) => this.#caller.stubs.state.deleteState(request, o), options)).deleted;
  }

  /** Lists keys with their values, and the revision at which the list is true: watch after it to miss nothing. */
  async list(options: KeyOptions & { prefix?: string; taskId?: string } = {}): Promise<{ entries: Entry[]; revision: bigint }> {
    const { namespace = "", prefix = "", taskId = "" } = options;
    const entries: Entry[] = [];
    let pageToken = "";
    let revision: bigint | undefined;
    do {
      const request = { namespace, keyPrefix: prefix, taskId, values: true, pageSize: 1000, pageToken };
      const page = await this.#caller.call((o) => this.#caller.stubs.state.listState(request, o), options);
      entries.push(...page.entries.map((e) => entry(e)));
      revision ??= page.revision;
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
    return { entries, revision };
  }

  /**
   * Yields the changes of keys: all of one revision at a time, in order. When the stream breaks, it
   * reconnects and resumes: no change is missed or yielded twice. It throws OutOfRange with the reason
   * STATE_COMPACTED if the changes are not kept any more: list the keys then, and watch after that.
   */
  watch(options: WatchOptions = {}): AsyncGenerator<Entry[], void, undefined> {
    const caller = this.#caller;
    let last = options.after === undefined ? undefined : long(options.after);
    return resumed(caller, options.signal, async function* ({ signal, worked }) {
      const { namespace = "", prefix = "" } = options;
      const request = { namespace, keyPrefix: prefix, ...optional("afterRevision", last) };
      for await (const frame of caller.stubs.state.watchState(request, { signal })) {
        worked();
        for (let changes = frame.changes; changes.length > 0; ) {
          const { revision } = changes[0]!;
          const next = changes.findIndex((c) => c.revision !== revision);
          const together = next < 0 ? changes : changes.slice(0, next);
          last = revision;
          yield together.map((c) => entry(c));
          changes = changes.slice(together.length);
        }
        if (last === undefined || frame.revision > last) last = frame.revision;
        options.onProgress?.(last);
      }
      return false;
    });
  }
}

function stateValue(value: unknown): StateValue["value"] {
  switch (typeof value) {
    case "string":
      return { case: "stringValue", value };
    case "boolean":
      return { case: "booleanValue", value };
    case "bigint":
      return { case: "integerValue", value };
  }
  if (Number.isSafeInteger(value)) return { case: "integerValue", value: BigInt(value as number) };
  return { case: "jsonValue", value: json(value) };
}

function entry<T>(raw: StateEntry, document = ""): Entry<T> {
  return {
    namespace: raw.namespace,
    key: raw.key,
    value: plainValue(raw.value) as T,
    version: Number(raw.version),
    revision: raw.revision,
    author: raw.author,
    changedAt: raw.changedAt && timestampDate(raw.changedAt),
    deleted: raw.deleted,
    ...(document === "" ? {} : { document }),
    raw,
  };
}

function plainValue(value: StateValue | undefined): unknown {
  switch (value?.value.case) {
    case "integerValue":
      return exact(value.value.value, (n) => n);
    case "jsonValue":
      return parsed(value.value.value);
    default:
      return value?.value.value;
  }
}
