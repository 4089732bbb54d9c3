// The newest events of the session, as the timeline shows them.
import { call, search } from './api.js';

const kept = 2000; // rows while the timeline follows
const busy = 500; // revisions per second above which only the frames' events are shown
const pause = 2000; // ms between two reads of missing events

const ranks = { debug: 1, info: 2, warning: 3, error: 4, critical: 5 };

// takes reports whether an event passes a filter, as the broker applies it.
export function takes(filter, event) {
  if (filter.lowest_severity && ranks[event.severity] < ranks[filter.lowest_severity]) return false;
  if (filter.sources.length > 0 && !filter.sources.includes(event.source)) return false;
  return filter.types.length === 0 || filter.types.some((type) =>
    type.endsWith('.*') ? event.type.startsWith(type.slice(0, -1)) : event.type === type);
}

// A Log has events, the newest first. In place of events that were not read, it has a gap: {gap,
// after, until} for the revisions after the one and up to the other. changed is called when rows is a
// new array.
export class Log {
  rows = [];
  end = false; // rows has the oldest event that is kept

  #filter;
  #changed;
  #begun = false;
  #newest = 0; // revision of the newest event of the frames, whether the filter takes it or not
  #readAt = 0;
  #reading = false;
  #stop = new AbortController();

  constructor(filter, changed) {
    this.#filter = filter;
    this.#changed = changed;
  }

  // fresh returns how many of a frame's events the log does not have yet.
  fresh(frame) {
    return frame.events.filter((event) => event.revision > this.#newest).length;
  }

  // add adds the events of a frame, which are the newest ones without a gap.
  add({ events, revision, totals }) {
    if (!this.#begun) this.#older(events.length > 0 ? events.at(-1).revision - 1 : revision);
    if (events.length > 0 && events[0].revision > this.#newest) {
      const oldest = events.at(-1).revision;
      const gap = this.#begun && oldest > this.#newest + 1 ? [{ gap: true, after: this.#newest, until: oldest - 1 }] : [];
      const added = events.filter((event) => event.revision > this.#newest && takes(this.#filter, event));
      this.#newest = events[0].revision;
      this.#set(joined([...added, ...gap, ...this.rows]).slice(0, kept));
      if (this.rows.length === kept) this.end = false;
    }
    this.#begun = true;
    const { types, sources, lowest_severity: severity } = this.#filter;
    if (types.length + sources.length > 0 || severity || totals.revision_rate < busy) {
      const gap = this.rows.find((row) => row.gap);
      if (gap && performance.now() - this.#readAt > pause) this.fill(gap);
    }
  }

  // fill reads events of a gap.
  fill(gap) {
    this.#read(gap.after, gap.until, (events, next) => {
      const rest = next ? [{ gap: true, after: gap.after, until: events.at(-1).revision - 1 }] : [];
      const at = this.rows.findIndex((row) => row.gap && row.after === gap.after);
      if (at < 0) return;
      const above = this.rows[at].until > gap.until ? [{ gap: true, after: gap.until, until: this.rows[at].until }] : [];
      this.#set(joined([...this.rows.slice(0, at), ...above, ...events, ...rest, ...this.rows.slice(at + 1)]));
    });
  }

  // more reads the next older events.
  more() {
    const last = this.rows.at(-1);
    if (!this.end && last) this.#older(last.gap ? last.after : last.revision - 1);
  }

  #older(until) {
    if (until < 1) {
      this.end = true;
      return;
    }
    this.#read(0, until, (events, next) => {
      this.end = !next;
      this.#set([...this.rows, ...events]);
    });
  }

  async #read(after, until, got) {
    if (this.#reading) return;
    this.#reading = true;
    try {
      const answer = { events: [], next_page_token: '' };
      do { // a page may have no event although another one follows
        const page = await call('GET', '/v1/events' + search({
          ...this.#filter, after_revision: after || undefined, until_revision: until, newest_first: true, page_size: 300,
          page_token: answer.next_page_token,
        }), undefined, { signal: this.#stop.signal });
        answer.events = page.events;
        answer.next_page_token = page.next_page_token;
      } while (answer.next_page_token && answer.events.length === 0);
      got(answer.events, answer.next_page_token);
    } catch {
      // The next frame, or the next scrolling, tries again.
    }
    this.#reading = false;
    this.#readAt = performance.now();
  }

  #set(rows) {
    this.rows = rows;
    this.#changed(rows);
  }

  close() {
    this.#stop.abort();
  }
}

// joined makes one gap of two that are adjacent.
function joined(rows) {
  const all = [];
  for (const row of rows) {
    const before = all.at(-1);
    if (row.gap && before?.gap) all[all.length - 1] = { gap: true, after: row.after, until: before.until };
    else all.push(row);
  }
  return all;
}
