// Queues: the mailboxes of the session, and the messages in each.
// Dead letters: what failed and why, and redrive and purge of one, of some, or of all that match.
import { html, useMemo, useRef, useState } from '../vendor/preact.js';
import { call, pages, search } from '../lib/api.js';
import { counted, Facts, messageAt, payloadOf, Text } from '../lib/item.js';
import { frame, now, useLoaded } from '../lib/live.js';
import {
  Action, Age, Badge, Count, Empty, Failure, Filter, matching, Name, Panel, State, Time, VirtualTable,
} from '../lib/parts.js';
import { go, here, href, route, session } from '../lib/session.js';

// mailboxes that are loaded at first
const fewMailboxes = 1000;
// and at most, when the list is scrolled to its end or searched
const mostMailboxes = 20_000;
// messages of a mailbox that are loaded at first
const fewMessages = 100;

// byOrder compares two mailboxes as the broker orders them.
const byOrder = {
  waiting: (a, b) => b.waiting - a.waiting,
  oldest: (a, b) => {
    const [x, y] = [a.oldest_at || '9', b.oldest_at || '9'];
    return x < y ? -1 : x > y ? 1 : 0;
  },
};

// live returns the listed mailboxes with the newest figures of the frame, in order.
function live(listed, shown, order) {
  const all = new Map(listed.map((m) => [m.mailbox, m]));
  for (const m of shown?.mailboxes ?? []) all.set(m.mailbox, { ...m, oldest_at: m.oldest });
  return [...all.values()].sort(byOrder[order]);
}

// Share draws a number beside the largest one of its column.
function Share({ n, most }) {
  return html`<span class="queues-share"><${Count} n=${n} />
    <i><b style=${{ width: `${most ? Math.max(n ? 2 : 0, 100 * n / most) : 0}%` }}></b></i></span>`;
}

function columns(most) {
  return [
    { key: 'mailbox', title: 'Mailbox', width: 'minmax(120px, 1.4fr)', render: (m) => html`<bdi title=${m.mailbox}>${m.mailbox}</bdi>` },
    { key: 'waiting', title: 'Waiting', width: 'minmax(84px, 1fr)', sort: true, render: (m) => html`<${Share} n=${m.waiting} most=${most} />` },
    { key: 'claimed', title: 'In work', width: '76px', numeric: true, wide: true, render: (m) => html`<${Count} n=${m.claimed} />` },
    {
      key: 'dead', title: 'Dead', width: '64px', numeric: true,
      render: (m) => m.dead ? html`<${Badge} kind="bad" text=${m.dead >= 1000 ? '1,000+' : m.dead} />` : html`<${Count} n=${0} />`,
    },
    { key: 'oldest', title: 'Oldest', width: '92px', numeric: true, sort: true, render: (m) => html`<${Age} since=${m.oldest_at} />` },
  ];
}

function Queues({ id, query }) {
  const order = query.sort === 'waiting' ? 'waiting' : 'oldest';
  const [wanted, setWanted] = useState(fewMailboxes);
  const count = query.q ? mostMailboxes : wanted;
  const { data, error, loading } = useLoaded('mailboxes ' + order, (signal) =>
    pages('/v1/mailboxes', { order }, 'mailboxes', count, mostMailboxes / fewMailboxes, { signal }), [count]);
  const current = frame.value;
  const rows = useMemo(() => matching(live(data?.items ?? [], current, order), query.q, (m) => [m.mailbox]),
    [data, current, order, query.q]);
  const most = useMemo(() => rows.reduce((max, m) => Math.max(max, m.waiting), 0), [rows]);
  const shown = useMemo(() => columns(most), [most]);
  const totals = current?.totals;
  return html`
    <${Failure} error=${error} />
    <div class="tools"><span class="dim">${totals && html`<b><${Count} n=${totals.waiting} /></b> wait, <b><${Count} n=${totals.claimed} /></b> in work,
      ${' '}<b><${Count} n=${totals.dead} /></b> dead letters, in <b><${Count} n=${data?.items.length} atLeast=${data?.more} /></b> mailboxes`}</span></div>
    <div class="split">
      <${VirtualTable} label="Mailboxes" rows=${rows} columns=${shown} keyOf=${(m) => m.mailbox} selected=${id} sort=${order} recycle
        onSort=${(key) => go(here({ sort: key === 'oldest' ? '' : key }))} onOpen=${(m) => go(href('queues', m.mailbox, { ...query, open: '' }))}
        onEnd=${() => data?.more && !loading && setWanted(Math.min(wanted + fewMailboxes, mostMailboxes))}
        empty=${loading ? '' : query.q ? 'No mailbox has this name.' : 'No mailbox holds a message.'} />
      ${id && html`<${MailboxPanel} key=${id} name=${id} known=${rows.find((m) => m.mailbox === id)}
        onClose=${() => go(href('queues', '', query))} />`}
    </div>`;
}

const messageColumns = [
  { key: 'state', title: 'State', width: '84px', render: (m) => html`<${State} of=${m.state} />` },
  { key: 'subject', title: 'Message', render: (m) => html`<span title=${m.subject}><bdi>${m.subject}</bdi>
    <span class="dim"> from <bdi>${m.sender}</bdi></span></span>` },
  { key: 'age', title: 'Age', width: '72px', numeric: true, render: (m) => html`<${Age} since=${m.sent} />` },
];

// short is the part of a message that a list needs: a page of them can have 3 MiB.
function short({ message: m, delivery: d }) {
  const error = (d.history.at(-1)?.error ?? '').slice(0, 500);
  return {
    key: m.revision + '@' + d.mailbox, id: m.id, state: d.state, mailbox: d.mailbox, subject: m.subject || m.type,
    type: m.type, sender: m.sender, sent: m.created_at, holder: d.holder, attempts: d.attempts + (d.attempts < d.max_attempts ? ', fatal' : ''), died: d.finished_at, error,
  };
}

// messages reads messages of a mailbox. Large ones make a page short.
async function messages(path, query, count, signal) {
  const { items, more } = await pages(path, query, 'items', count, 2 * count / fewMessages, { signal });
  return { more, rows: items.map(short) };
}

function MailboxPanel({ name, known, onClose }) {
  const [wanted, setWanted] = useState(fewMessages);
  const waiting = useLoaded('mailbox ' + name, (signal) =>
    messages('/v1/messages', { box: 'inbox', mailbox: name }, wanted, signal), [wanted]);
  const dead = useLoaded('dead ' + name, (signal) => messages('/v1/dead-letters', { mailbox: name }, fewMessages, signal));
  const rows = [...dead.data?.rows ?? [], ...waiting.data?.rows ?? []];
  const [kind, taker] = name.includes(':') ? name.split(/:(.*)/s) : ['agent', name];
  return html`<${Panel} title=${name} error=${waiting.error || dead.error} onClose=${onClose}>
    <p class="actions">${known?.dead > 0 && html`<${Change} verb="redrive" name="redrive" label="Redrive dead letters"
      requests=${() => [{ mailbox: name }]} which=${'of ' + name} after=${dead.reload} />`}</p>
    <${Facts} of=${{ taken_by: taker, waiting: known?.waiting, in_work: known?.claimed, oldest_at: known?.oldest_at }} extra=${{
      taken_by: html`<${Name} kind=${kind} name=${taker} text=${kind === 'agent' ? taker : `${kind} ${taker}`} />`,
    }} />
    <div class="queues-messages"><${VirtualTable} label="Messages" rows=${rows} columns=${messageColumns}
      keyOf=${keyOf} onOpen=${(m) => go(here({ open: 'message:' + m.id }))}
      onEnd=${() => waiting.data?.more && !waiting.loading && setWanted(wanted + fewMessages)}
      empty=${waiting.loading ? '' : 'No unfinished message is in this mailbox.'} /></div>
  <//>`;
}

export const queues = {
  id: 'queues', title: 'Queues', question: 'Where does work get old?', key: '3', View: Queues,
  icon: 'M2 4h12M2 8h9M2 12h6',
};

// dead letters that are loaded at first
const fewLetters = 100;
// and at most, when the list is scrolled to its end
const mostLetters = 1600;

// A dead letter is a message in a mailbox. Its key is REVISION@MAILBOX.
const keyOf = (row) => row.key;
const partsOf = (key) => key.split(/@(.*)/s);

const agent = (name) => html`<${Name} kind="agent" name=${name} />`;
const letterColumns = [
  { key: 'died', title: 'Died', width: '80px', numeric: true, render: (row) => html`<${Age} since=${row.died} />` },
  { key: 'mailbox', title: 'Mailbox', width: 'minmax(90px, .8fr)', wide: true, render: (row) => html`<${Name} kind="mailbox" name=${row.mailbox} />` },
  { key: 'subject', title: 'Message', width: 'minmax(0, 1.4fr)' },
  { key: 'type', title: 'Type', width: 'minmax(72px, .5fr)', wide: true },
  { key: 'sender', title: 'From', width: 'minmax(0, .6fr)', wide: true, render: (row) => agent(row.sender) },
  { key: 'holder', title: 'Last holder', width: 'minmax(92px, .6fr)', wide: true, render: (row) => agent(row.holder) },
  { key: 'attempts', title: 'Attempts', width: '84px', wide: true, numeric: true },
  { key: 'error', title: 'Last error', width: 'minmax(0, 2fr)', render: (row) => html`<span class="error">${row.error}</span>` },
];

// The filters of the route: the field of DeadLetterFilter that each sets, and the part of a row to
// which it applies.
const filters = [
  { name: 'mailbox', label: 'Mailbox', of: 'mailbox' },
  { name: 'type', label: 'Type', field: 'types', of: 'type' },
  { name: 'from', label: 'From', field: 'senders', of: 'sender' },
  { name: 'holder', label: 'Last holder', field: 'holders', of: 'holder' },
  { name: 'error', label: 'Error contains', field: 'error' },
];
const times = [
  { hours: '', label: 'at any time' }, { hours: '1', label: 'in the last hour' }, { hours: '24', label: 'in the last day' },
  { hours: '168', label: 'in the last week' },
];

// choice returns the filters of a route as fields of a request.
function choice(query) {
  const filter = {};
  for (const { name, field } of filters) {
    if (field && query[name]) filter[field] = field === 'error' ? query[name] : [query[name]];
  }
  if (query.since) filter.from_time = new Date(now.peek() - query.since * 3600e3).toISOString();
  return { mailbox: query.mailbox ?? '', filter };
}

const restricts = (query) => Boolean(query.since || filters.some(({ name }) => query[name]));

// inWords says what the filters of a route choose.
function inWords(query) {
  const chosen = filters.filter(({ name }) => query[name]).map(({ name, label }) => `with ${label.toLowerCase()} "${query[name]}"`);
  if (query.since) chosen.push('that died ' + times.find(({ hours }) => hours === query.since)?.label);
  return chosen.join(', ') || 'of the session';
}

async function load(query, count, options) {
  const { mailbox, filter } = choice(query);
  const chosen = { mailbox, ...filter };
  const [{ items, more }, total] = await Promise.all([
    pages('/v1/dead-letters', chosen, 'items', count, 10, options),
    call('GET', '/v1/dead-letters' + search({ ...chosen, count: true, page_size: 1 }), undefined, options),
  ]);
  return { rows: items.map(short), more, total: { n: total.count, atLeast: total.count_at_least } };
}

const letters = ({ n, atLeast }) => (atLeast ? 'at least ' : '') + counted(n, 'dead letter');

// change redrives or purges the dead letters of some requests and returns their number. One call of
// the broker changes at most 1,000, and all calls are for the session of the first. A dry run limits the
// requests to the dead letters that it has counted.
async function change(verb, requests, dry) {
  const options = { session: session.peek() };
  const done = { n: 0, atLeast: false };
  for (const request of requests) {
    let token = '';
    do {
      const answer = await call('POST', '/v1/dead-letters/' + verb, { ...request, dry_run: dry, page_token: token }, options);
      done.n += answer.redriven ?? answer.purged;
      done.atLeast ||= answer.at_least;
      if (answer.to_time) request.filter = { ...request.filter, to_time: answer.to_time };
      token = answer.next_page_token;
    } while (token);
  }
  return done;
}

const effects = {
  redrive: 'The broker redelivers them, and their attempts start again.',
  purge: 'The broker removes them. No call restores them.',
};

// Change is a button that redrives or purges. Its confirmation has the number of a dry run. requests
// returns what to change, and which says it in words, such as "of reviewer".
export function Change({ verb, label, name, requests, which, after }) {
  // the requests of the confirmation
  const asked = useRef();
  async function confirm() {
    asked.current = requests();
    return `${letters(await change(verb, asked.current, true))} ${which}. ${effects[verb]}`;
  }
  async function run() {
    try {
      return `${letters(await change(verb, asked.current, false))} ${which} ${verb === 'purge' ? 'purged' : 'redriven'}`;
    } finally {
      after?.();
    }
  }
  return html`<${Action} label=${label} name=${name} danger=${verb === 'purge'} primary=${verb !== 'purge'}
    confirm=${confirm} run=${run} />`;
}

// Changes are the buttons of both verbs. labels are texts in front of which the verb stands.
function Changes({ name, label, ...rest }) {
  return html`<${Change} verb="redrive" label=${'Redrive' + label} name=${'redrive' + name} ...${rest} />
    <${Change} verb="purge" label=${'Purge' + label} name=${'purge' + name} ...${rest} />`;
}

// named returns requests for dead letters by their keys: at most 1,000 of one mailbox in each.
function named(keys) {
  const boxes = Map.groupBy(keys, (key) => partsOf(key)[1]);
  return [...boxes].flatMap(([mailbox, all]) => {
    const ids = all.map((key) => partsOf(key)[0]);
    return Array.from({ length: Math.ceil(ids.length / 1000) }, (_, i) => ({ mailbox, ids: ids.slice(i * 1000, i * 1000 + 1000) }));
  });
}

function Filters({ query, rows }) {
  const set = (name) => (event) => go(here({ [name]: event.currentTarget.value.trim() }), true);
  return html`<div class="tools dead-filters">
    ${filters.map(({ name, label, of }) => html`<label key=${name}><span>${label}</span>
      <${Filter} value=${query[name]} list=${of && 'dead-' + name} data-filter=${name} onChange=${set(name)} />
      ${of && html`<datalist id=${'dead-' + name}>${[...new Set(rows.map((row) => row[of]))].slice(0, 100).map((value) => html`
        <option key=${value} value=${value} />`)}</datalist>`}</label>`)}
    <label><span>Died</span><select data-filter="since" onChange=${set('since')}>
      ${times.map(({ hours, label }) => html`
        <option key=${hours} value=${hours} selected=${hours === (query.since ?? '')}>${label}</option>`)}</select></label>
    ${restricts(query) && html`<a class="name" href=${href('dead')}>Show all</a>`}
  </div>`;
}

function Dead({ id, query }) {
  const { q = '', open: _, ...chosen } = query;
  const [count, setCount] = useState(fewLetters);
  const [keys, setKeys] = useState(new Set());
  const { data, error, reload } = useLoaded('dead ' + JSON.stringify(chosen),
    (signal) => load(chosen, count, { signal }), [count]);
  const all = data?.rows ?? [];
  const rows = useMemo(() => matching(all, q, (row) =>
    [row.subject, row.type, row.sender, row.mailbox, row.holder, row.error]), [data, q]);
  const picked = rows.map(keyOf).filter((key) => keys.has(key));
  const none = !data ? 'Loading…' : restricts(chosen) || q ? 'No dead letter matches.' : 'There are no dead letters.';
  function after() {
    setKeys(new Set());
    reload();
  }
  return html`
    <${Filters} query=${chosen} rows=${all} />
    <div class="tools">
      <span data-count=${data?.total.n}>${data && letters(data.total)}</span>
      ${data?.more && count === mostLetters && html`<span class="dim">The list has the newest ${all.length}.</span>`}<span class="gap"></span>
      ${picked.length > 0 && html`<${Changes} name="-selected" label=${` ${picked.length} selected`} which="of your selection"
        requests=${() => named(picked)} after=${after} />`}
      ${!picked.length && !q && data?.total.n > 0 && html`<${Changes} name="-all" label=${restricts(chosen) ? ' all that match' : ' all'}
        which=${inWords(chosen)} requests=${() => [restricts(chosen) ? choice(chosen) : { all: true }]} after=${after} />`}
    </div>
    <${Failure} error=${error} />
    <div class="split">
      <${VirtualTable} label="Dead letters" rows=${rows} columns=${letterColumns} keyOf=${keyOf} selected=${id}
        select=${{ keys, change: setKeys }} onOpen=${(item) => go(href('dead', keyOf(item), { ...chosen, q }))}
        onEnd=${() => data?.more && setCount(Math.min(2 * count, mostLetters))} empty=${none} />
      ${id && html`<${Opened} key=${id} id=${id} />`}
    </div>`;
}

// Opened is the panel of a dead letter: why the broker gave it up, and what it says.
function Opened({ id }) {
  const [revision, mailbox] = partsOf(id);
  const { data, error } = useLoaded('letter ' + id, (signal) =>
    call('GET', messageAt(revision), undefined, { signal }));
  const delivery = data?.deliveries.find((d) => d.mailbox === mailbox);
  const title = data ? data.message.subject || data.message.type : 'Dead letter';
  return html`<${Panel} title=${title} error=${error} onClose=${() => go(href('dead', '', route.value.query))}>
    ${data && !delivery && html`<${Empty} text="This mailbox did not receive the message." />`}
    ${delivery && html`<${Letter} id=${id} message=${data.message} delivery=${delivery} />`}
  <//>`;
}

function Letter({ id, message: m, delivery: d }) {
  const payload = useMemo(() => payloadOf(m), [m.id]);
  return html`
    <p class="actions">${d.state === 'dead'
      ? html`<${Changes} name="" label="" requests=${() => named([id])} which=${'of ' + d.mailbox} />`
      : html`<${State} of=${d.state} /> It is no longer a dead letter.`}</p>
    <h3>Why</h3>
    <p>${d.attempts < d.max_attempts ? 'The last holder has refused it for good (a fatal nack).'
      : `All ${d.max_attempts} attempts have failed.`}</p>
    ${d.history.map((a) => html`<div class="dead-attempt" key=${a.claimed_at}>
      <p>Attempt ${a.number} by ${agent(a.agent)}, ended <${Time} at=${a.ended_at} /></p>
      <${Text} text=${a.error} label=${'Error of attempt ' + a.number} /></div>`)}
    ${!d.history.length && html`<p class="dim">No agent has attempted it.</p>`}
    <${Facts} of=${{
      mailbox: d.mailbox, from: m.sender, sent_at: m.created_at, type: m.type, died_at: d.state === 'dead' && d.finished_at,
      attempts: `${d.attempts} of ${d.max_attempts}`, task_id: m.task_id, message_id: '', thread_id: m.thread_id,
      body: m.body, payload,
    }} extra=${{ message_id: html`<${Name} kind="message" name=${m.id} text=${'message ' + m.revision} />` }} />`;
}

export const dead = {
  id: 'dead', title: 'Dead letters', question: 'What failed, and why?', key: '6', View: Dead,
  icon: 'M2 4h12v8H2zM2 4l6 4.5L14 4M6 10.5l-1 1M10 10.5l1 1',
  mark: ({ totals }) => ({ n: totals.dead, kind: 'bad' }),
};
