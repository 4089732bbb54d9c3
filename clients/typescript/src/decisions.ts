import type { Caller, CallOptions } from "./caller.js";
import { duration, json, milliseconds, requestId, timestamp, type Span } from "./convert.js";
import { DecisionKind, DecisionState, FeedbackSeverity, type Decision } from "./gen/brokerd/v1/decision_pb.js";
import { optional } from "./messages.js";

/** Content is what is submitted for a decision. */
export interface Content {
  body?: string;
  /** Any JSON value. */
  payload?: unknown;
  files?: { path: string; line?: number }[];
  artifacts?: string[];
}

export type Kind = "review" | "plan" | "shutdown" | "custom";
type StateName = Lowercase<Exclude<keyof typeof DecisionState, "UNSPECIFIED">>;

/** OpenDecisionOptions describe a decision. */
export interface OpenDecisionOptions extends Content, CallOptions {
  title?: string;
  /** What it is about; there is one unfinished decision of a kind and scope at a time. */
  scope?: string;
  taskId?: string;
  threadId?: string;
  /** Of a custom decision: the possible verdicts. */
  verdicts?: string[];
  /** When it escalates: a date, or a time from now. */
  deadline?: Date | Span;
  maxRounds?: number;
  /** Of a review with a scope: pass the token (producer_critic, scope) with the rounds. */
  passToken?: boolean;
  requestId?: string;
}

/** ListDecisionsOptions select decisions; all that is given must match. */
export interface ListDecisionsOptions extends CallOptions {
  states?: StateName[];
  kind?: Kind;
  opener?: string;
  owedBy?: string;
  scope?: string;
  taskId?: string;
}

/** VerdictOptions explain a verdict. */
export interface VerdictOptions extends CallOptions {
  reason?: string;
  feedback?: { text: string; severity?: "note" | "minor" | "major" | "blocker"; file?: string; line?: number }[];
  /** Required with the verdict defer: a date, or a time from now. */
  until?: Date | Span;
  /** The round that the verdict is about; default the current one. */
  round?: number;
  requestId?: string;
}

const longestWait = 60_000; // ms in one call

/** Decisions are reviews, plans, shutdowns and custom decisions. */
export class Decisions {
  readonly #caller: Caller;

  constructor(caller: Caller) {
    this.#caller = caller;
  }

  /** Asks an agent ("critic-1") or a role ("role:critic") for a decision; wait then waits for the verdict. */
  async open(kind: Kind, to: string, options: OpenDecisionOptions = {}): Promise<Decision> {
    const role = to.startsWith("role:") ? to.slice("role:".length) : undefined;
    const request = {
      requestId: options.requestId ?? requestId(),
      kind: kindOf(kind),
      to: role === undefined ? ({ case: "agent", value: to } as const) : ({ case: "role", value: role } as const),
      title: options.title ?? "",
      scope: options.scope ?? "",
      content: content(options),
      taskId: options.taskId ?? "",
      threadId: options.threadId ?? "",
      verdicts: options.verdicts ?? [],
      maxRounds: options.maxRounds ?? 0,
      passToken: options.passToken ?? false,
      ...optional("deadline", timestamp(options.deadline)),
    };
    return (await this.#caller.call((o) => this.#caller.stubs.decisions.openDecision(request, o), options)).decision!;
  }

  /** Gives the verdict of the round, such as "approve". */
  async decide(id: string, verdict: string, options: VerdictOptions = {}): Promise<Decision> {
    const request = {
      requestId: options.requestId ?? requestId(),
      id,
      verdict,
      reason: options.reason ?? "",
      feedback: (options.feedback ?? []).map(({ severity = "major", ...rest }) => ({
        ...rest,
        severity: FeedbackSeverity[severity.toUpperCase() as keyof typeof FeedbackSeverity],
      })),
      round: options.round ?? 0,
      ...optional("until", timestamp(options.until)),
    };
    return (await this.#caller.call((o) => this.#caller.stubs.decisions.decide(request, o), options)).decision!;
  }

  /** Opens the next round with revised content; passToken passes the token from this round on. */
  async resubmit(
    id: string,
    revised: Content & CallOptions & { title?: string; deadline?: Date | Span; passToken?: boolean } = {},
  ): Promise<Decision> {
    const request = {
      requestId: requestId(),
      id,
      title: revised.title ?? "",
      content: content(revised),
      passToken: revised.passToken ?? false,
      ...optional("deadline", timestamp(revised.deadline)),
    };
    return (await this.#caller.call((o) => this.#caller.stubs.decisions.resubmitDecision(request, o), revised)).decision!;
  }

  /** Withdraws a decision. */
  async cancel(id: string, options: CallOptions & { reason?: string } = {}): Promise<Decision> {
    const request = { requestId: requestId(), id, reason: options.reason ?? "" };
    return (await this.#caller.call((o) => this.#caller.stubs.decisions.cancelDecision(request, o), options)).decision!;
  }

  /** Returns the decisions that match, the newest first, without content. */
  async list(options: ListDecisionsOptions = {}): Promise<Decision[]> {
    const { opener = "", owedBy = "", scope = "", taskId = "" } = options;
    const states = (options.states ?? []).map((name) => DecisionState[name.toUpperCase() as Uppercase<StateName>]);
    const kind = options.kind === undefined ? DecisionKind.UNSPECIFIED : kindOf(options.kind);
    const found: Decision[] = [];
    let pageToken = "";
    do {
      const request = { states, kind, opener, owedBy, scope, taskId, pageSize: 1000, pageToken };
      const page = await this.#caller.call((o) => this.#caller.stubs.decisions.listDecisions(request, o), options);
      found.push(...page.decisions);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
    return found;
  }

  async get(id: string, options?: CallOptions): Promise<Decision> {
    return (await this.#caller.call((o) => this.#caller.stubs.decisions.getDecision({ id }, o), options)).decision!;
  }

  /**
   * Waits until the round has a verdict or the decision is cancelled, and returns the decision as it
   * is then; without a verdict if timeout (default without limit) ends first.
   */
  async wait(id: string, options: CallOptions = {}): Promise<Decision> {
    const { signal, timeout } = options;
    const end = timeout === undefined ? Infinity : performance.now() + milliseconds(timeout);
    for (;;) {
      const wait = duration(Math.max(Math.min(end - performance.now(), longestWait), 0))!;
      const request = { id, wait };
      const { decision } = await this.#caller.call((o) => this.#caller.stubs.decisions.getDecision(request, o), { signal });
      const pending = decision!.state === DecisionState.OPEN || decision!.state === DecisionState.ESCALATED;
      if (!pending || performance.now() >= end) return decision!;
    }
  }
}

function kindOf(kind: Kind): DecisionKind {
  return DecisionKind[kind.toUpperCase() as Uppercase<Kind>];
}

function content(given: Content) {
  return {
    body: given.body ?? "",
    payload: json(given.payload),
    files: given.files ?? [],
    artifacts: given.artifacts ?? [],
  };
}
