// Timeline: the events of the session, the newest first.
// Conversations: who waits for an answer, and what was said.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from '../vendor/preact.js';
import { call, pages, rpc, search } from '../lib/api.js';
import {
  Cancel, counted, messageAt, outcome, payloadOf, receiver, Resend, send, targetOf, Text,
} from '../lib/item.js';
import { frame, useLoaded } from '../lib/live.js';
import {
  Action, Age, Badge, Count, Empty, Fact, Failure, matching, Name, Panel, State, Time, VirtualTable,
} from '../lib/parts.js';
import { go, here, href, route } from '../lib/session.js';

// rows while the timeline follows
const kept = 2000;
// revisions per second above which only the frames' events are shown
const busy = 500;
// ms between two reads of missing events
const pause = 2000;

const severities = ['debug', 'info', 'warning', 'error', 'critical'];
const kinds = { warning: 'warn', error: 'bad', critical: 'bad' };

const words = (text) => (text || '').split(/[\s,]+/).filter(Boolean);

const unless = (render) => (row) => row.gap ? null : render(row);

// The rows have no links: rows that move would take the focus with them. The panel has the links.
const columns = [
  { key: 'time', title: 'Age', width: '76px', render: unless((e) => html`<span class="dim"><${Age} since=${e.time} /></span>`) },
  {
    key: 'type', title: 'Type', width: 'minmax(136px, 1.2fr)',
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
  // the list stands still
  const [held, setHeld] = useState(false);
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
  const set = (name) => (event) => go(here({ [name]: event.currentTarget.value }), true);
  return html`
    <div class="tools">
      <input type="search" class="search" placeholder="Types, such as task.*" aria-label="Types" value=${query.types || ''}
        list="timeline-types" onInput=${set('types')} />
      <datalist id="timeline-types">${['agent', 'blocker', 'decision', 'handoff', 'lock', 'message', 'state', 'task', 'token', 'vote']
        .map((name) => html`<option key=${name} value=${name + '.*'} />`)}</datalist>
      <input type="search" class="search" placeholder="Sources, such as lead" aria-label="Sources" value=${query.sources || ''}
        onInput=${set('sources')} />
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
  // rows has the oldest event that is kept
  end = false;

  #filter;
  #changed;
  #begun = false;
  // revision of the newest event of the frames, whether the filter takes it or not
  #newest = 0;
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
      // a page may have no event although another one follows
      do {
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

export const timeline = {
  id: 'timeline', title: 'Timeline', question: 'What just happened?', key: '4', View,
  icon: 'M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 1 0 8 1.8M8 4.8V8l2.4 1.6',
};

// conversations that are loaded at first
const few = 100;
// and at most, when the list is scrolled to its end
const most = 800;
// messages of a conversation that are loaded at first
const fewMessages = 50;

const titleOf = (m) => m.subject || m.type;

// inbox returns the unfinished messages in the mailbox of the operators.
const inbox = (options) => pages('/v1/messages', { box: 'inbox' }, 'items', 1000, 1, options);

// Waits says who waits for an answer.
function Waits({ question: q, resolved, mail }) {
  if (mail && !q?.overdue) return html`<${Badge} kind="accent" text="for operator" />`;
  if (!q) return resolved && html`<${Badge} kind="good" text="resolved" />`;
  return html`<${State} of=${q.overdue ? 'overdue' : 'open'} />${' '}
    <${Name} kind="agent" name=${q.sender} />`;
}

const unanswered = (t) => t.open_questions.length > 0 || t.mail;
const waits = (t) => unanswered(t) || t.resolved_at;

const threadColumns = [
  { key: 'waits', title: 'Waits', width: 'minmax(84px, 1fr)',
    render: (t) => html`<${Waits} question=${t.open_questions[0]} resolved=${t.resolved_at} mail=${t.mail} />` },
  { key: 'subject', title: 'Subject', width: 'minmax(0, 2fr)', render: (t) => titleOf(t.first_message) },
  { key: 'last_message', title: 'Last message', width: 'minmax(0, 1.5fr)', wide: true, render: (t) => html`
    <bdi class="dim">${t.last_message.sender}</bdi> <bdi>${titleOf(t.last_message)}</bdi>` },
  { key: 'participants', title: 'Between', wide: true, render: (t) => t.participants.join(', ') },
  { key: 'messages', title: 'Messages', width: '90px', wide: true, numeric: true,
    render: (t) => html`<${Count} n=${t.messages} atLeast=${t.messages >= 100} />` },
  { key: 'last_at', title: 'Last', width: '80px', numeric: true, render: (t) => html`<${Age} since=${t.last_at} />` },
];

// urgency is the place of a conversation in the list: mail to operators and overdue questions come first, then open ones.
function urgency({ open_questions: [q], mail }) {
  if (mail || q?.overdue) return 0;
  return q ? 1 : 2;
}

// loadThreads returns conversations, those with an open question before the others. The broker reads
// up to 20,000 messages for a page, so each list has at most two.
async function loadThreads(count, options) {
  const list = (open) => pages('/v1/threads', { open }, 'threads', count, 2, options);
  const [open, all, { items }] = await Promise.all([list(true), list(null), inbox(options)]);
  const mail = new Set(items.map(({ message: m }) => m.thread_id));
  const threads = [...new Map([...open.items, ...all.items].map((t) => [t.thread_id, t])).values()]
    .map((t) => ({ ...t, mail: mail.has(t.thread_id) }));
  return { threads: threads.sort((a, b) => urgency(a) - urgency(b)), more: open.more || all.more };
}

// receivers returns the agents and roles of the frame.
function receivers() {
  const { agents = [] } = frame.value ?? {};
  return ['everyone', ...new Set(agents.flatMap((a) => [a.name, 'role:' + a.role]))];
}

const addressed = [
  { name: 'to', label: 'To: an agent, role:NAME, channel:NAME, a pattern or everyone', required: true, suggest: receivers },
  { name: 'subject', label: 'Subject', required: true }, { name: 'body', label: 'Text', kind: 'area' },
];

function Conversations({ id, query }) {
  const { q, unanswered: only } = query;
  const [count, setCount] = useState(few);
  const { data, error } = useLoaded('threads', (signal) => loadThreads(count, { signal }), [count]);
  const rows = useMemo(() => {
    const wanted = (data?.threads ?? []).filter((t) => !only || unanswered(t));
    return matching(wanted, q, (t) => [t.thread_id, t.first_message.subject, t.last_message.subject, ...t.participants]);
  }, [data, q, only]);
  return html`
    <div class="tools">
      <label><input type="checkbox" checked=${!!only} data-filter="unanswered"
        onChange=${(event) => go(here({ unanswered: event.currentTarget.checked && '1' }), true)} />
        ${' '}Only unanswered</label>
      <span class="gap"></span>
      <${Action} label="Send a message" name="send" primary fields=${addressed}
        run=${({ to, ...message }) => send({ target: targetOf(to.trim()), ...message })} />
    </div>
    <${Failure} error=${error} />
    <div class="split">
      <${VirtualTable} label="Conversations" rows=${rows} columns=${rows.some(waits) ? threadColumns : threadColumns.slice(1)} keyOf=${(t) => t.thread_id}
        selected=${id} onOpen=${(t) => go(href('conversations', t.thread_id, { q, unanswered: only }))}
        onEnd=${() => data?.more && setCount(Math.min(2 * count, most))}
        empty=${data ? 'No conversation matches.' : 'Loading…'} />
      ${id && html`<${Thread} key=${id} id=${id} />`}
    </div>`;
}

// loadThread returns the newest messages of a conversation in the order in which they were sent. id is
// that of the conversation or of one of its messages.
async function loadThread(id, count, options) {
  const newest = (thread) => pages('/v1/messages', { box: 'all', thread_id: thread, newest_first: true }, 'items',
    count, 2 * count / fewMessages, options);
  const [first, mail] = await Promise.all([newest(id), inbox(options)]);
  let found = first;
  if (!found.items.length) {
    const { message } = await call('GET', messageAt(id), undefined, options);
    found = await newest(message.thread_id);
  }
  return { messages: found.items.map((item) => item.message).reverse(), thread: found.first.thread, more: found.more,
    mail: new Set(mail.items.map(({ message: m }) => m.id)) };
}

// Thread is the panel of a conversation.
function Thread({ id }) {
  const [count, setCount] = useState(fewMessages);
  const list = useRef(null);
  const { data, error } = useLoaded('thread ' + id, (signal) => loadThread(id, count, { signal }), [count]);
  useLayoutEffect(() => { list.current?.lastElementChild?.scrollIntoView(); }, [data !== null]);
  const open = new Set(data?.thread.open_questions.map((q) => q.id));
  return html`<${Panel} title=${data ? titleOf(data.messages[0]) : 'Conversation'}
      error=${error} onClose=${() => go(href('conversations', '', route.value.query))}>
    ${data && html`
      ${data.more && html`<button data-show="earlier" onClick=${() => setCount(2 * count)}>Earlier messages</button>`}
      <ol class="conversations-messages" ref=${list}>${data.messages.map((m) => html`
        <${Message} key=${m.id} message=${m} question=${open.has(m.id)} mail=${data.mail.has(m.id)} />`)}</ol>
      <${Continue} thread=${data.thread} last=${data.messages.at(-1)} />`}
  <//>`;
}

// Message shows one message of a conversation. question says that it waits for an answer, mail that operators have not finished it.
function Message({ message: m, question, mail }) {
  const payload = useMemo(() => payloadOf(m), [m.id]);
  return html`<li data-message=${m.id} class=${question ? 'question' : m.sender === 'system' && 'own'}>
    <header><b><${Name} kind="agent" name=${m.sender} /></b><span class="dim">to <bdi>${receiver(m.target)}</bdi></span>
      ${m.type !== 'message' && html`<${Badge} text=${m.type} />`}
      ${m.subject && html`<strong dir="auto">${m.subject}</strong>`}
      <a class="name at" href=${here({ open: 'message:' + m.id })}><${Time} at=${m.created_at} /></a></header>
    <${Text} text=${m.body} label="Body" kind="prose" /><${Text} text=${payload} label="Payload" />
    ${question && html`<${Receipts} message=${m} />`}
    <p class="actions">
      ${m.sender !== 'system' && html`<${Action} label="Reply" fields=${answer} run=${reply(m)} />`}
      ${mail && html`<${Action} label="Done" run=${() => rpc('MessageService/AckMessages', { ids: [m.id] })} />`}
      ${question && html`<${Resend} message=${m} /><${Cancel} message=${m} />`}</p>
  </li>`;
}

const answer = [{ name: 'body', label: 'Text', kind: 'area', required: true }];

const reply = (m) => async (message) => outcome((await call('POST', messageAt(m.id, '/reply'), { message })).result);

// Receipts says how far an open question is with its recipients.
function Receipts({ message: m }) {
  const { data } = useLoaded('receipts ' + m.id, (signal) => call('GET', messageAt(m.id), undefined, { signal }));
  return html`<p class="dim">No answer yet, due <${Time} at=${m.response_deadline} />.
    ${data?.deliveries.slice(0, 10).map((d) => html`${' '}
      <span key=${d.mailbox}><${Name} kind="mailbox" name=${d.mailbox} />${' '}
      <${State} of=${d.state} />${' '}
      ${d.read_at ? 'read' : d.offers.some(o => !o.returned_at) ? 'offered' : d.delivered_at ? 'delivered' : 'not delivered'}</span>`)}</p>`;
}

// Continue shows the outcome of a conversation, and sends into it.
function Continue({ thread: t, last }) {
  const others = t.participants.filter((name) => name !== 'system');
  const partner = last.sender === 'system' ? receiver(last.target) : last.sender;
  const open = t.open_questions.length;
  const fields = [
    { name: 'to', label: 'To', kind: 'select', options: others, value: partner, required: true },
    { name: 'body', label: 'Text', kind: 'area', required: true },
  ];
  async function resolve(values) {
    const { settled } = await rpc('MessageService/ResolveThread', { thread_id: t.thread_id, ...values });
    return `Resolved; ${counted(settled, 'open question')} settled`;
  }
  return html`<div class="conversations-end">
    ${t.resolved_at && html`<p>Resolved by <${Name} kind="agent" name=${t.resolved_by} /> <${Time} at=${t.resolved_at} />:${' '}
      <bdi>${t.outcome}</bdi></p>`}
    <p class="actions">
      ${others.length > 0 && html`<${Action} label="Send as operator" name="send-into" primary fields=${fields}
        run=${({ to, ...message }) => send({ target: targetOf(to), thread_id: t.thread_id, ...message })} />`}
      <${Action} label="Resolve" fields=${[{ name: 'outcome', label: 'Outcome', kind: 'area', required: true }]} run=${resolve}
        confirm=${open > 0 && `This settles ${counted(open, 'open question')}.`} /></p>
  </div>`;
}

export const conversations = {
  id: 'conversations', title: 'Conversations', question: 'Who waits for an answer?', key: '5', View: Conversations,
  mark: ({ totals }) => ({ n: totals.operator_mail }),
  icon: 'M2 3h9v6H6l-2.5 2.5V9H2zM13 6h1v6h-1.5v2l-2-2H8',
};
