import { Code, ConnectError } from "@connectrpc/connect";

import type { ItemError } from "./gen/brokerd/v1/message_pb.js";
import { detailsOf, type Details } from "./error-details.js";

const noDetails: Details = { reason: "", facts: {}, fields: {}, resource: "", retryAfter: 0 };

/** A BrokerError says why a call failed. Its subclasses say what a program can do about it. */
export class BrokerError extends Error {
  override name = this.constructor.name;
  /** The broker's reason, such as CLAIM_LOST: stable. Empty if the error is not the broker's. */
  readonly reason: string;
  /** The invalid fields of the request, such as messages[3].priority, each with what is wrong and what is allowed. */
  readonly fields: Readonly<Record<string, string>>;
  /** Further facts for programs, such as the present revision of a key that has changed. */
  readonly facts: Readonly<Record<string, string>>;
  /** The name of what does not exist. */
  readonly resource: string;
  /** After how many milliseconds the same call may succeed; 0 = the broker does not say. */
  readonly retryAfter: number;

  constructor(
    message: string,
    details: Partial<Details> = {},
    /** The gRPC status code. */
    readonly code: Code = Code.Unknown,
    options?: ErrorOptions,
  ) {
    super(message, options);
    const all = { ...noDetails, ...details };
    this.reason = all.reason;
    this.fields = all.fields;
    this.facts = all.facts;
    this.resource = all.resource;
    this.retryAfter = all.retryAfter;
  }

  /** The broker's text, complete by itself. */
  get text(): string {
    return this.message;
  }
}

/** There is no such agent, role, message, task, key or other thing; see resource. */
export class NotFound extends BrokerError {}

/** Another client was faster, or the name is taken: read again, then decide. */
export class Conflict extends BrokerError {}

/** The state of the broker does not permit it: reason says why, such as AGENT_NOT_REGISTERED. */
export class Precondition extends BrokerError {}

/** The position is not kept any more: facts.oldest is the oldest revision that is. */
export class OutOfRange extends BrokerError {}

/** The caller does not hold the claim, lock, token, task or registration any more: stop that work. */
export class Lost extends BrokerError {}

/** The caller may not do this, or is unknown to the broker. */
export class Denied extends BrokerError {}

/** The request can never succeed; see fields. */
export class Invalid extends BrokerError {
  constructor(message: string, details: Partial<Details> = {}, code = Code.InvalidArgument, options?: ErrorOptions) {
    super(message, details, code, options);
  }
}

/** A limit is reached; see retryAfter. */
export class Exhausted extends BrokerError {}

/** The broker cannot be reached, does not answer in time, or cannot serve now. */
export class Unreachable extends BrokerError {
  constructor(message: string, details: Partial<Details> = {}, code = Code.Unavailable, options?: ErrorOptions) {
    super(message, details, code, options);
  }
}

/** The client has been closed. */
export class Closed extends BrokerError {
  constructor(options?: ErrorOptions) {
    super("the client is closed", {}, Code.Canceled, options);
  }
}

type Kind = new (message: string, details: Partial<Details>, code: Code, options?: ErrorOptions) => BrokerError;

/** The class of each status code. A reason of lostReasons takes precedence. */
const kinds: Partial<Record<Code, Kind>> = {
  [Code.InvalidArgument]: Invalid,
  [Code.NotFound]: NotFound,
  [Code.AlreadyExists]: Conflict,
  [Code.FailedPrecondition]: Precondition,
  [Code.Aborted]: Conflict,
  [Code.OutOfRange]: OutOfRange,
  [Code.PermissionDenied]: Denied,
  [Code.Unauthenticated]: Denied,
  [Code.ResourceExhausted]: Exhausted,
  [Code.Unavailable]: Unreachable,
  [Code.DeadlineExceeded]: Unreachable,
};

const lostReasons = new Set([
  "CLAIM_LOST",
  "FENCE_LOST",
  "GRANTS_LOST",
  "LOCK_LOST",
  "STALE_INCARNATION",
  "TAKEN_OVER",
  "TASK_LOST",
  "TOKEN_LOST",
  "TOKEN_NOT_HELD",
]);

function make(code: Code, message: string, details: Details, options?: ErrorOptions): BrokerError {
  const kind = lostReasons.has(details.reason) ? Lost : (kinds[code] ?? BrokerError);
  return new kind(message, details, code, options);
}

const agentField = "brokerd-agent"; // of the metadata

/** Returns the broker's text in the words of this client. */
function inWords(text: string, { reason, fields }: Details): string {
  if (reason !== "AGENT_REQUIRED" && !(agentField in fields)) return text;
  return `${text.replace(`${agentField}: `, "agent: ")}; name it with the option agent, asAgent() or BROKERD_AGENT`;
}

/** Returns the error of a call. The addresses name the broker in the error of a call without an answer. */
export function callError(error: unknown, addresses: readonly string[]): BrokerError {
  if (error instanceof BrokerError) return error;
  const failed = ConnectError.from(error);
  if (failed.metadata.has("grpc-status") || failed.code === Code.ResourceExhausted) {
    const details = detailsOf(failed);
    return make(failed.code, inWords(failed.rawMessage, details), details, { cause: failed });
  }
  return unanswered(failed, addresses);
}

/** Returns the error for one item of a stream. */
export function itemError(error: ItemError): BrokerError {
  const fields = error.field === "" ? {} : { [error.field]: error.message };
  const { seconds = 0n, nanos = 0 } = error.retryAfter ?? {};
  const retryAfter = Number(seconds) * 1000 + Math.ceil(nanos / 1e6);
  return make(error.code as Code, error.message, { ...noDetails, reason: error.reason, fields, retryAfter });
}

/** Returns the error of a call to which no broker has answered. */
function unanswered(failed: ConnectError, addresses: readonly string[]): BrokerError {
  const options = { cause: failed };
  const several = addresses.length > 1;
  const where = addresses.join(" or ");
  if (failed.code === Code.DeadlineExceeded) {
    const why = several
      ? "its replicas are frozen, overloaded or cut off; see their logs, or restart them"
      : "its process is frozen or overloaded";
    return new Unreachable(`the broker at ${where} has not answered in time: ${why}`, {}, Code.DeadlineExceeded, options);
  }
  if (several) {
    const text = `the broker at ${where} cannot be reached (${failed.rawMessage}); start one of its replicas, or name others with BROKERD_ADDR`;
    return new Unreachable(text, {}, undefined, options);
  }
  const advice = "start one with `brokerctl up`, or name another with BROKERD_ADDR";
  switch (systemCode(failed)) {
    case "ENOENT":
      return new Unreachable(`no broker is running at ${where} (there is no socket); ${advice}`, {}, undefined, options);
    case "ECONNREFUSED":
      return new Unreachable(`no broker is running at ${where} (it refuses connections); ${advice}`, {}, undefined, options);
  }
  return new Unreachable(`the connection to the broker at ${where} broke: ${failed.rawMessage}`, {}, undefined, options);
}

/** Returns the code of the operating system's error behind an error, such as ECONNREFUSED. */
function systemCode(error: unknown): string | undefined {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if ("code" in cause && typeof cause.code === "string" && /^E[A-Z]+$/.test(cause.code)) return cause.code;
  }
  return undefined;
}

/** Reports whether a stream that ended with an error is worth opening again. undefined is a normal end. */
export function transient(error: unknown): boolean {
  if (error === undefined || error instanceof Unreachable) return true;
  if (!(error instanceof BrokerError)) return false;
  if (error instanceof Exhausted) return error.retryAfter > 0;
  return (error.code === Code.Internal || error.code === Code.Unknown) && error.constructor === BrokerError;
}

/** Reports whether a call that failed may succeed a moment later, because the broker restarts or another replica takes over. */
export function interrupted(error: unknown): boolean {
  return error instanceof Unreachable && ["", "DATABASE_LOST", "NO_LEADER", "SHUTTING_DOWN"].includes(error.reason);
}
