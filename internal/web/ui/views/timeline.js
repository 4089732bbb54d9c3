// Timeline: the events of the session, the newest first.
import { html, useEffect, useRef, useState } from '../vendor/preact.js';
import { call, search } from '../lib/api.js';
import { frame, useLoaded } from '../lib/live.js';
import { Age, Badge, Empty, Fact, matching, Name, Panel, Time, VirtualTable } from '../lib/parts.js';
import { go, here, href } from '../lib/session.js';

const kept = 2000; // rows while the timeline follows
const busy = 500; // revisions per second above which only the frames' events are shown
const pause = 2000; // ms between two reads of missing events

const severities = ['debug', 'info', 'warning', 'error', 'critical'];
const kinds = { warning: 'warn', error: 'bad', critical: 'bad' };

const words = (text) => (text || '').split(/[\s,]+/).filter(Boolean);

const unless = (render) => (row) => row.gap ? null : render(row);

// The rows have no links: rows that move would take the focus with them. The panel has the links.
const columns = [
  { key: 'time', title: 'Age', width: '76px', render: unless((e) => html`<span class="dim"><${Age} since=${e.time} /></span>`) },
  {
    key: 'type', title: 'Type', width: 'minmax(0, 1.2fr)',
    render: (e) => e.gap ? html`<b>Load…</b>` :
      html`<span class=${'timeline-type ' + kinds[e.severity]}><i aria-hidden="true"></i>${e.type}</span>`,
  },
  { key: 'source', title: 'Source', width: 'minmax(0, .8fr)', wide: true, render: unless((e) => html`<bdi>${e.source}</bdi>`) },
  {
    key: 'summary', title: 'What happened', width: 'minmax(0, 2.6fr)',
    render: (e) => e.gap ? html`<span class="dim">more events, up to ${(e.until - e.after).toLocaleString('en')}</span>` : html`<bdi>${e.summary}</bdi>`,
  },
  { key: 'revision', title: 'Revision', width: '96px', numeric: true, wide: true, render: unless((e) => html`<span class="dim">${e.revision}</span>`) },
];

const keyOf = (row) => row.gap ? 'gap' + row.after : String(row.revision);

function View({ id, query }) {
  const [rows, setRows] = useState([]);
  const [held, setHeld] = useState(false); // the list stands still
  const log = useRef(null);
  const filter = { types: words(query.types), sources: words(query.sources), lowest_severity: query.severity };
  const chosen = JSON.stringify(filter);

  useEffect(() => {
    const current = new Log(filter, setRows);
    log.current = current;
    setRows([]);
    setHeld(false);
    return () => current.close();
  }, [chosen]);
  const newest = frame.value;
  useEffect(() => { if (newest && !held) log.current.add(newest); }, [newest, chosen, held]);

  const fresh = held && newest ? log.current.fresh(newest) : 0;
  const found = matching(rows, query.q, (e) => e.gap ? [] : [e.type, e.source, e.summary, String(e.revision)]);
  const set = (name) => (event) => go(here({ [name]: event.currentTarget.value.trim() }), true);
  return html`
    <div class="tools">
      <input type="search" class="search" placeholder="Types, such as task.*" aria-label="Types" value=${query.types || ''}
        list="timeline-types" onChange=${set('types')} />
      <datalist id="timeline-types">${['agent', 'blocker', 'decision', 'handoff', 'lock', 'message', 'state', 'task', 'token', 'vote']
        .map((name) => html`<option key=${name} value=${name + '.*'} />`)}</datalist>
      <input type="search" class="search" placeholder="Sources, such as lead" aria-label="Sources" value=${query.sources || ''}
        onChange=${set('sources')} />
      <select aria-label="Lowest severity" value=${query.severity || ''} onChange=${set('severity')}>
        <option value="">any severity</option>
        ${severities.slice(1).map((name) => html`<option key=${name} value=${name} selected=${name === query.severity}>${name} and above</option>`)}
      </select>
      <span class="gap"></span>
      <button aria-pressed=${held} data-action="hold" onClick=${() => setHeld(!held)}>
        ${held ? 'Held' + (fresh > 0 ? `, ${fresh}${fresh >= 40 ? ' or more' : ''} new` : '') : 'Hold'}</button>
    </div>
    <div class="split">
      <${VirtualTable} label="Events" rows=${found} columns=${columns} keyOf=${keyOf} selected=${id} recycle
        onOpen=${(row) => row.gap ? log.current.fill(row) : go(href('timeline', String(row.revision), query))}
        rowClass=${(row) => row.gap && 'timeline-gap'}
        onScroll=${(top) => { if (top > 60) setHeld(true); else if (top === 0 && !id) setHeld(false); }}
        onEnd=${() => log.current?.more()}
        empty=${newest && 'No event matches.'} />
      ${id && html`<${EventPanel} key=${id} revision=${id} onClose=${() => go(href('timeline', '', query))} />`}
    </div>`;
}

function EventPanel({ revision, onClose }) {
  const { data, error } = useLoaded('event:' + revision, async (signal) => {
    const at = Number(revision);
    const page = await call('GET', `/v1/events?after_revision=${at - 1}&until_revision=${at}`, undefined, { signal });
    return page.events;
  });
  return html`<${Panel} title=${data?.[0]?.type || 'Event ' + revision} error=${error} onClose=${onClose}>
    ${data?.length === 0 && html`<${Empty} text="There is no event with this revision, or it was removed." />`}
    ${data?.map((e, i) => html`<${Event} key=${i} event=${e} />`)}
  <//>`;
}

// objects returns what an event is about, as pairs of kind and name. An agent may have written the
// details.
function objects(e) {
  const found = new Map();
  const add = (kind, names) => {
    for (const name of [names].flat().slice(0, 16)) {
      if (name && /string|number/.test(typeof name)) found.set(kind + name, [kind, String(name)]);
    }
  };
  const details = e.details || {};
  const [area] = e.type.split('.');
  if (e.type === 'message.sent') add('message', e.revision);
  else if (area === 'message') {
    add('message', [details.claim, details.claims].flat().map((claim) => typeof claim === 'string' && claim.split('.')[0]));
    add('message', e.related.filter((name) => /^\d+$/.test(name)));
  }
  for (const field of ['mailbox', 'mailboxes']) add('mailbox', details[field]);
  for (const kind of ['agent', 'thread']) add(kind, details[kind]);
  add('task', e.task_id || details.task_id);
  for (const kind of ['decision', 'blocker', 'handoff', 'vote']) add(kind, details[kind + '_id']);
  if (area === 'lock') add('lock', details.paths);
  if (area === 'token') add('token', details.token);
  return [...found.values()];
}

function Event({ event: e }) {
  return html`
    <p dir="auto">${e.summary}</p>
    <dl class="facts">
      <${Fact} label="Severity"><${Badge} kind=${kinds[e.severity]} text=${e.severity} /><//>
      <${Fact} label="Time"><${Time} at=${e.time} /><//>
      <${Fact} label="Source"><${Name} kind="agent" name=${e.source} /> <span class="dim">${e.source_role}</span><//>
      <${Fact} label="Revision"><code>${e.revision}</code><//>
      ${objects(e).map(([kind, name]) => html`<${Fact} key=${kind + name} label=${kind[0].toUpperCase() + kind.slice(1)}>
        <${Name} kind=${kind} name=${name} /><//>`)}
    </dl>
    ${e.details && html`<h3>Details</h3><pre class="text" tabindex="0" dir="auto">${JSON.stringify(e.details, null, 2)}</pre>`}`;
}

// takes reports whether an event passes a filter, as the broker applies it.
function takes(filter, event) {
  if (severities.indexOf(event.severity) < severities.indexOf(filter.lowest_severity)) return false;
  if (filter.sources.length > 0 && !filter.sources.includes(event.source)) return false;
  return filter.types.length === 0 || filter.types.some((type) =>
    type.endsWith('.*') ? event.type.startsWith(type.slice(0, -1)) : event.type === type);
}

// A Log has events, the newest first. In place of events that were not read, it has a gap: {gap,
// after, until} for the revisions after the one and up to the other. changed is called when rows is a
// new array.
class Log {
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

export const view = {
  id: 'timeline', title: 'Timeline', question: 'What just happened?', key: '4', View,
  icon: 'M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 1 0 8 1.8M8 4.8V8l2.4 1.6',
};
