import type { Caller, CallOptions } from "./caller.js";
import { json, long, requestId, timestamp, type Long } from "./convert.js";
import { resumed } from "./follow.js";
import { EventCategory, Severity, type Event, type ListEventsResponse } from "./gen/brokerd/v1/event_pb.js";
import { optional } from "./messages.js";

type Category = "agent" | "message" | "state" | "coordination" | "work" | "system";
type SeverityName = "debug" | "info" | "warning" | "error" | "critical";

/** EventFilter chooses events; all that is given must match. */
export interface EventFilter {
  /** Exact types, or prefixes such as "message.*". */
  types?: string[];
  categories?: Category[];
  /** This severity or a higher one. */
  lowestSeverity?: SeverityName;
  sources?: string[];
  sourceRoles?: string[];
  taskId?: string;
  since?: Date;
  until?: Date;
}

/** FollowEventsOptions choose events and the position to begin at. */
export interface FollowEventsOptions extends EventFilter {
  /** Begin after this revision; 0 = from the oldest event that is kept; default from now on. */
  after?: Long;
  /** Ends the iteration, without an error. */
  signal?: AbortSignal;
  /** Called with the revision up to which everything has been yielded: a position to resume after. */
  onProgress?: (revision: bigint) => void;
}

/** PublishOptions describe an event. */
export interface PublishOptions extends CallOptions {
  category?: Category;
  severity?: SeverityName;
  /** A JSON object. */
  details?: object;
  related?: string[];
  taskId?: string;
  /** Also raise or resolve a blocker, with the types BlockerEncountered and BlockerResolved. */
  blocker?: boolean;
  requestId?: string;
}

/** Events is the log of every change in the session. */
export class Events {
  readonly #caller: Caller;

  constructor(caller: Caller) {
    this.#caller = caller;
  }

  /** Appends an event such as "build.finished" in the agent's name; returns its revision. */
  async publish(type: string, summary = "", options: PublishOptions = {}): Promise<bigint> {
    const request = {
      requestId: options.requestId ?? requestId(),
      type,
      summary,
      category: category(options.category),
      severity: severity(options.severity),
      details: json(options.details),
      related: options.related ?? [],
      taskId: options.taskId ?? "",
      blocker: options.blocker ?? false,
    };
    return (await this.#caller.call((o) => this.#caller.stubs.events.publishEvent(request, o), options)).revision;
  }

  /** Lists events in order of revision, at most limit (100); with newestFirst the newest come first. */
  async list(
    options: EventFilter & CallOptions & { after?: Long; limit?: number; newestFirst?: boolean } = {},
  ): Promise<Event[]> {
    const { limit = 100, newestFirst = false } = options;
    const found: Event[] = [];
    let pageToken = "";
    do {
      const request = {
        filter: filter(options),
        afterRevision: long(options.after ?? 0),
        pageSize: Math.min(limit - found.length, 1000),
        newestFirst,
        pageToken,
      };
      const page: ListEventsResponse = await this.#caller.call(
        (o) => this.#caller.stubs.events.listEvents(request, o),
        options,
      );
      found.push(...page.events);
      pageToken = page.nextPageToken;
    } while (pageToken !== "" && found.length < limit);
    return found;
  }

  /**
   * Yields events in order, first those after the position, then new ones. When the stream breaks,
   * it reconnects and resumes: no event is missed or yielded twice. It throws OutOfRange with the
   * reason EVENTS_REMOVED if the log does not reach back that far.
   */
  follow(options: FollowEventsOptions = {}): AsyncGenerator<Event, void, undefined> {
    const caller = this.#caller;
    let last = options.after === undefined ? undefined : long(options.after);
    return resumed(caller, options.signal, async function* ({ signal, worked }) {
      const request = { filter: filter(options), ...optional("afterRevision", last) };
      for await (const page of caller.stubs.events.subscribeEvents(request, { signal })) {
        worked();
        for (const event of page.events) {
          if (last !== undefined && event.revision <= last) continue;
          last = event.revision;
          yield event;
        }
        if (last === undefined || page.revision > last) last = page.revision;
        options.onProgress?.(last);
      }
      return false;
    });
  }
}

function filter(options: EventFilter) {
  return {
    types: options.types ?? [],
    categories: (options.categories ?? []).map(category),
    lowestSeverity: severity(options.lowestSeverity),
    sources: options.sources ?? [],
    sourceRoles: options.sourceRoles ?? [],
    taskId: options.taskId ?? "",
    ...optional("since", timestamp(options.since)),
    ...optional("until", timestamp(options.until)),
  };
}

function category(name: Category | undefined): EventCategory {
  return name === undefined ? EventCategory.UNSPECIFIED : EventCategory[name.toUpperCase() as Uppercase<Category>];
}

function severity(name: SeverityName | undefined): Severity {
  return name === undefined ? Severity.UNSPECIFIED : Severity[name.toUpperCase() as Uppercase<SeverityName>];
}
