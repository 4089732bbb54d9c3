import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { timestampDate } from "@bufbuild/protobuf/wkt";

import type { Caller, CallOptions } from "./caller.js";
import { duration, json, parsed, requestId, timestamp, type Span } from "./convert.js";
import {
  MessageBox,
  MessageSchema,
  Reach,
  type AskResponse,
  type Asleep,
  type ClaimedMessage,
  type Delivery,
  type InboxItem,
  type Message as MessageProto,
  type Recipient,
  type SendResult,
} from "./gen/brokerd/v1/message_pb.js";
import { parseTarget } from "./target.js";

/** MessageOptions are the fields of a message beside its receiver and its text. */
export interface MessageOptions extends CallOptions {
  /** What kind of message it is, such as "task_assignment"; default "message". */
  type?: string;
  /** One line for people. */
  subject?: string;
  /** The text; in place of the argument. */
  body?: string;
  /** Any JSON value. */
  payload?: unknown;
  /** 1 to 10, 10 first; default 5. */
  priority?: number;
  taskId?: string;
  threadId?: string;
  correlationId?: string;
  inReplyTo?: string;
  labels?: Record<string, string>;
  files?: { path: string; line?: number }[];
  artifacts?: string[];
  /** One agent of a role or channel, or all of them; default one for a role, all otherwise. */
  reach?: "one" | "all";
  ttl?: Span;
  /** Not to be delivered before: a date, or a time from now. */
  notBefore?: Date | Span;
  orderingKey?: string;
  maxAttempts?: number;
  requiresResponse?: boolean;
  /** Until when the response is required: a date, or a time from now. */
  responseDeadline?: Date | Span;
  resendAfter?: Span;
  /** The idempotency key, a UUID; default a new one. */
  requestId?: string;
}

/** A Receipt says what became of a message that the broker has on disk. */
export interface Receipt {
  id: string;
  revision: bigint;
  recipientCount: number;
  /** The recipients, if there are at most 100. */
  recipients: Recipient[];
  /** How many mailboxes were full. */
  refusedCount: number;
  /** What the sender should know, for people. */
  warnings: string[];
  /** Set if the only recipient reads no messages at present, and since when. */
  asleep?: Asleep | undefined;
  /** The broker had the message from an earlier call with this request id. */
  duplicate: boolean;
}

/** A Reply is a text, or an object (the payload). */
export type Reply = string | object;

/** Options of claims. */
export interface ClaimOptions extends CallOptions {
  /** How long to wait for a message; default: do not wait. */
  wait?: Span;
  /** How long the claim lasts; default 30 s. */
  claimFor?: Span;
  /** Tells workers under one agent name apart. */
  consumer?: string;
  /** The agent's own name, role:NAME, channel:NAME; default all that the agent may take from. */
  mailboxes?: string[];
  types?: string[];
  lowestPriority?: number;
  threadId?: string;
  taskId?: string;
  correlationId?: string;
  senders?: string[];
}

/** InboxOptions choose the mail to list. */
export interface InboxOptions extends CallOptions {
  /** At most this many; default 100. */
  limit?: number;
  /** The messages count as read. */
  markRead?: boolean;
  /** Also the mail of the agent's role and channels that no agent has claimed. */
  includeQueues?: boolean;
  types?: string[];
  threadId?: string;
  taskId?: string;
}

/** Options of a failed attempt. */
export interface NackOptions extends CallOptions {
  /** The time before the next attempt; default a backoff of the broker. */
  delay?: Span;
  /** No further attempt: the message becomes a dead letter. */
  fatal?: boolean;
}

/** A Message is a message as its recipient sees it. */
export class Message {
  constructor(
    /** The message of the API, with every field. */
    readonly proto: MessageProto,
    /** The recipient's copy: its state, attempts and holder. undefined where the call returns none. */
    readonly delivery?: Delivery,
  ) {}

  get id(): string {
    return this.proto.id;
  }

  get revision(): bigint {
    return this.proto.revision;
  }

  get sender(): string {
    return this.proto.sender;
  }

  get type(): string {
    return this.proto.type;
  }

  /** The type as the sender wrote it, such as TaskAssignment; empty if type is the same. */
  get typeAsSent(): string {
    return this.proto.typeAsSent;
  }

  get subject(): string {
    return this.proto.subject;
  }

  get body(): string {
    return this.proto.body;
  }

  /** The body or, if there is none, the subject. */
  get text(): string {
    return this.proto.body || this.proto.subject;
  }

  /** The payload, parsed; undefined without one. */
  get payload(): unknown {
    return parsed(this.proto.payload);
  }

  get labels(): Record<string, string> {
    return this.proto.labels;
  }

  get taskId(): string {
    return this.proto.taskId;
  }

  get threadId(): string {
    return this.proto.threadId;
  }

  get createdAt(): Date {
    return timestampDate(this.proto.createdAt!);
  }
}

/** Returns the messages of a page. */
export function received(items: InboxItem[]): Message[] {
  return items.map(({ message, delivery }) => new Message(message ?? create(MessageSchema), delivery));
}

/** A Claim is a message that the agent holds. id is that of the message. */
export class Claim extends Message {
  /** REVISION.NUMBER: settles this claim and no other. */
  readonly claimId: string;
  /** The number of this attempt, from 1. */
  readonly attempt: number;
  readonly maxAttempts: number;
  /** Where it came from: the agent's name, role:NAME or channel:NAME. */
  readonly mailbox: string;
  /** The agent held it before, for example before a restart. */
  readonly resumed: boolean;

  constructor(
    protected readonly caller: Caller,
    claimed: ClaimedMessage,
  ) {
    super(claimed.message ?? create(MessageSchema));
    this.claimId = claimed.claimId;
    this.attempt = claimed.attempt;
    this.maxAttempts = claimed.maxAttempts;
    this.mailbox = claimed.mailbox;
    this.resumed = claimed.resumed;
  }

  /** Finishes the message. */
  async ack(options?: CallOptions): Promise<void> {
    await ack(this.caller, [this.claimId], options);
  }

  /** Reports a failed attempt. */
  async nack(error: string, options?: NackOptions): Promise<void> {
    await nack(this.caller, this.claimId, error, options);
  }

  /** Makes the claim last for the given time from now on. */
  async extend(span?: Span, options?: CallOptions): Promise<void> {
    await extend(this.caller, this.claimId, span, options);
  }

  /** Returns the message to its place; no attempt is counted. */
  async release(options?: CallOptions): Promise<void> {
    await release(this.caller, [this.claimId], options);
  }

  /** Answers the message and finishes it, in one transaction. */
  reply(answer: Reply, options?: MessageOptions & { ack?: boolean }): Promise<Receipt> {
    return reply(this.caller, this.claimId, answer, options);
  }
}

export async function send(caller: Caller, to: string, text: Reply, options: MessageOptions = {}): Promise<Receipt> {
  const request = { requestId: options.requestId ?? requestId(), messages: [message(text, options, to)] };
  const { results } = await caller.call((o) => caller.stubs.messages.sendMessages(request, o), options);
  return receipt(results[0]);
}

export async function ask(
  caller: Caller,
  to: string,
  text: Reply,
  options: MessageOptions = {},
): Promise<Message | undefined> {
  const request = {
    requestId: options.requestId ?? requestId(),
    message: message(text, options, to),
    wait: duration(options.timeout ?? "30s")!,
  };
  const { reply }: AskResponse = await caller.call((o) => caller.stubs.messages.ask(request, o), { signal: options.signal });
  return reply && new Message(reply);
}

export async function reply(
  caller: Caller,
  id: string,
  text: Reply,
  options: MessageOptions & { ack?: boolean } = {},
): Promise<Receipt> {
  const request = {
    requestId: options.requestId ?? requestId(),
    id,
    ack: options.ack ?? true,
    message: message(text, options),
  };
  const { result } = await caller.call((o) => caller.stubs.messages.reply(request, o), options);
  return receipt(result);
}

export async function inbox(caller: Caller, options: InboxOptions = {}): Promise<Message[]> {
  const { limit = 100, markRead = false, includeQueues = false, types = [], threadId = "", taskId = "" } = options;
  const filter = { types, threadId, taskId };
  const found: Message[] = [];
  let pageToken = "";
  do {
    const request = { box: MessageBox.INBOX, pageSize: Math.min(limit - found.length, 1000), pageToken, markRead, includeQueues, filter };
    const page = await caller.call((o) => caller.stubs.messages.listMessages(request, o), options);
    found.push(...received(page.items));
    pageToken = page.nextPageToken;
  } while (pageToken !== "" && found.length < limit);
  return found;
}

export async function claim(caller: Caller, options: ClaimOptions = {}): Promise<Claim | undefined> {
  const request = {
    consumer: options.consumer ?? "",
    mailboxes: options.mailboxes ?? [],
    types: options.types ?? [],
    lowestPriority: options.lowestPriority ?? 0,
    threadId: options.threadId ?? "",
    taskId: options.taskId ?? "",
    correlationId: options.correlationId ?? "",
    senders: options.senders ?? [],
    max: 1,
    ...optional("wait", duration(options.wait)),
    ...optional("claimFor", duration(options.claimFor)),
  };
  const { claims } = await caller.call((o) => caller.stubs.messages.claimMessages(request, o), options);
  return claims[0] && new Claim(caller, claims[0]);
}

export async function ack(caller: Caller, ids: string[], options?: CallOptions): Promise<void> {
  const request = { requestId: requestId(), ids };
  await caller.call((o) => caller.stubs.messages.ackMessages(request, o), options);
}

export async function nack(caller: Caller, claimId: string, error: string, options: NackOptions = {}): Promise<void> {
  const { fatal = false } = options;
  const item = { claimId, error: errorText(error), fatal, ...optional("delay", duration(options.delay)) };
  const request = { requestId: requestId(), nacks: [item] };
  await caller.call((o) => caller.stubs.messages.nackMessages(request, o), options);
}

export async function extend(caller: Caller, claimId: string, span?: Span, options?: CallOptions): Promise<void> {
  const request = { requestId: requestId(), extensions: [{ claimId, ...optional("claimFor", duration(span)) }] };
  await caller.call((o) => caller.stubs.messages.extendClaims(request, o), options);
}

export async function release(caller: Caller, ids: string[], options?: CallOptions): Promise<void> {
  const request = { requestId: requestId(), ids };
  await caller.call((o) => caller.stubs.messages.releaseClaims(request, o), options);
}

export async function subscribe(caller: Caller, channel: string, options?: CallOptions): Promise<void> {
  const request = { requestId: requestId(), channel };
  await caller.call((o) => caller.stubs.channels.subscribeChannel(request, o), options);
}

export async function unsubscribe(caller: Caller, channel: string, options?: CallOptions): Promise<void> {
  const request = { requestId: requestId(), channel };
  await caller.call((o) => caller.stubs.channels.unsubscribeChannel(request, o), options);
}

const longestSubject = 200; // bytes of a text that becomes the subject

const maxErrorText = 4 << 10; // bytes; the broker keeps no longer text

/** Returns the text of an error, as the broker accepts it. */
export function errorText(error: unknown): string {
  const text = (error instanceof Error ? error.message || error.name : String(error)).replaceAll("\0", "");
  const bytes = Buffer.from(text);
  if (bytes.length <= maxErrorText) return bytes.toString() || "failed without saying why";
  return `${bytes.subarray(0, maxErrorText - 8).toString().replace(/\ufffd+$/, "")}…`;
}

/** Returns an object with a property, or without it if the value is undefined. */
export function optional<K extends string, V>(name: K, value: V | undefined): { [k in K]?: V } {
  return (value === undefined ? {} : { [name]: value }) as { [k in K]?: V };
}

/**
 * Returns a message for the broker. A text of one short line becomes the subject, and any other text
 * the body. A reply has no receiver: the broker knows it.
 */
function message(text: Reply, options: MessageOptions, to?: string): MessageInitShape<typeof MessageSchema> {
  const spoken = typeof text === "string" ? text : "";
  const short = options.subject === undefined && !spoken.includes("\n") && Buffer.byteLength(spoken) <= longestSubject;
  return {
    ...optional("target", to === undefined ? undefined : parseTarget(to)),
    type: options.type ?? "",
    subject: options.subject ?? (short ? spoken : ""),
    body: options.body ?? (short ? "" : spoken),
    payload: json(typeof text === "string" ? options.payload : text),
    priority: options.priority ?? 0,
    taskId: options.taskId ?? "",
    threadId: options.threadId ?? "",
    correlationId: options.correlationId ?? "",
    inReplyTo: options.inReplyTo ?? "",
    labels: options.labels ?? {},
    files: options.files ?? [],
    artifacts: options.artifacts ?? [],
    reach: options.reach === undefined ? Reach.UNSPECIFIED : options.reach === "one" ? Reach.ONE : Reach.ALL,
    orderingKey: options.orderingKey ?? "",
    maxAttempts: options.maxAttempts ?? 0,
    requiresResponse: options.requiresResponse ?? false,
    ...optional("ttl", duration(options.ttl)),
    ...optional("notBefore", timestamp(options.notBefore)),
    ...optional("responseDeadline", timestamp(options.responseDeadline)),
    ...optional("resendAfter", duration(options.resendAfter)),
  };
}

function receipt(result: SendResult | undefined): Receipt {
  return {
    id: result?.id ?? "",
    revision: result?.revision ?? 0n,
    recipientCount: result?.recipientCount ?? 0,
    recipients: result?.recipients ?? [],
    refusedCount: result?.refusedCount ?? 0,
    warnings: result?.warnings ?? [],
    asleep: result?.asleep,
    duplicate: result?.duplicate ?? false,
  };
}
