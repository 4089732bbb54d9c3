// Work: the votes, decisions, handoffs and blockers that wait for an answer, and the tasks as a graph.
import { html, useMemo, useState } from '../vendor/preact.js';
import { call, search } from '../lib/api.js';
import { Graph } from '../lib/graph.js';
import { stateKinds } from '../lib/item.js';
import { frame } from '../lib/live.js';
import { useLoaded } from '../lib/load.js';
import { Age, Badge, Empty, Failure, Name, Time, VirtualTable, matching } from '../lib/parts.js';
import { go, href } from '../lib/route.js';
import { Item } from '../lib/workitem.js';

const maxGraph = 200; // tasks in the graph
const maxTasks = 1000; // in the list
const maxItems = 100; // undecided ones of each kind
const unfinished = ['claimed', 'blocked', 'ready', 'waiting', 'failed'];
const finished = ['done', 'cancelled'];

const get = (signal, path, query) => call('GET', path + search(query), undefined, { signal });
const receiver = (agent, role) => agent ? { kind: 'agent', name: agent } : { kind: 'role', name: role };

// owed names who owes the next step of a decision.
function owed(d) {
  if (d.state === 'revising') return receiver(d.opened_by);
  if (d.state === 'escalated') return d.escalated_to ? receiver('', d.escalated_to) : { name: 'operator' };
  return receiver(d.agent, d.role);
}

// undecided reads what waits for an answer, the oldest first: the objects, each with {key, word, title,
// since, by, note, owes}.
async function undecided(signal) {
  const [blockers, decisions, votes, handoffs] = await Promise.all([
    get(signal, '/v1/blockers', { states: ['open', 'acknowledged'], page_size: maxItems }),
    get(signal, '/v1/decisions', { states: ['open', 'revising', 'escalated'], page_size: maxItems }),
    get(signal, '/v1/votes', { state: 'open', page_size: maxItems }),
    get(signal, '/v1/handoffs', { states: 'pending', page_size: maxItems }),
  ]);
  const items = [
    ...blockers.blockers.map((b) => ({
      ...b, key: 'blocker:' + b.id, word: 'blocker', title: b.reason.split('\n', 1)[0], since: b.raised_at, by: b.agent,
      note: b.severity, owes: b.acknowledged_by.length > 0 ? b.acknowledged_by.map((name) => receiver(name))
        : b.recipients.map((r) => receiver(r.agent, r.role)),
    })),
    ...decisions.decisions.map((d) => ({
      ...d, key: 'decision:' + d.id, word: d.kind === 'custom' ? 'decision' : d.kind, since: d.changed_at,
      by: d.opened_by, note: `round ${d.round} of ${d.max_rounds}`, owes: [owed(d)],
    })),
    ...votes.votes.map((v) => ({
      ...v, key: 'vote:' + v.id, word: 'vote', since: v.opened_at, by: v.opener,
      note: `${v.ballots} of ${v.electors} ballots`, owes: [],
    })),
    ...handoffs.handoffs.map((h) => ({
      ...h, key: 'handoff:' + h.id, word: 'handoff', since: h.created_at, by: h.from,
      note: h.items > 0 ? `${h.checked} of ${h.items} checked` : '', owes: [receiver(h.to_agent, h.to_role)],
    })),
  ];
  items.sort((a, b) => Date.parse(a.since) - Date.parse(b.since));
  return { items, more: [blockers, decisions, votes, handoffs].some((page) => page.next_page_token) };
}

const names = (list) => list.map(({ kind, name }) =>
  html`<${Name} key=${name} kind=${kind} name=${name} text=${kind === 'role' ? 'role:' + name : name} /> `);
const own = (text) => html`<bdi title=${text}>${text}</bdi>`;
const state = { key: 'state', title: 'State', width: '104px',
  render: (item) => html`<${Badge} kind=${stateKinds[item.state]} text=${item.state} />` };

const itemColumns = [
  { key: 'word', title: 'Kind', width: '72px' },
  { key: 'title', title: 'Title', width: 'minmax(130px, 3fr)', render: (i) => own(i.title) },
  state,
  { key: 'by', title: 'From', width: 'minmax(80px, 1fr)', wide: true, render: (i) => names([receiver(i.by)]) },
  { key: 'owes', title: 'Waits for', width: 'minmax(80px, 1fr)', wide: true, render: (i) => names(i.owes) },
  { key: 'note', title: 'Progress', width: '110px', wide: true },
  { key: 'since', title: 'Since', width: '72px', render: (i) => html`<${Age} since=${i.since} />` },
  { key: 'deadline', title: 'Deadline', width: '100px', wide: true, render: (i) => html`<${Time} at=${i.deadline} />` },
];

const taskColumns = [
  { key: 'id', title: 'Task', width: 'minmax(70px, 1fr)', render: (t) => own(t.id) },
  { key: 'title', title: 'Title', width: 'minmax(90px, 3fr)', render: (t) => own(t.title) },
  state,
  { key: 'agent', title: 'Agent', width: 'minmax(80px, 1fr)', wide: true, render: (t) => t.holder
    ? names([receiver(t.holder)])
    : (t.assignee || t.role) && html`<span class="dim">for </span>${names([receiver(t.assignee, t.role)])}` },
  { key: 'why', title: 'Why', width: 'minmax(80px, 2fr)', wide: true, render: (t) => own(reason(t)) },
  { key: 'since', title: 'Since', width: '72px', render: (t) => html`<${Age} since=${since(t)} />` },
];

// reason says why a task is in its state, or how far it is.
function reason(t) {
  switch (t.state) {
    case 'waiting': return t.waits_for && `after ${t.waits_for.id}, which is ${t.waits_for.state}`;
    case 'blocked': return t.block_reason;
    case 'failed': case 'cancelled': return t.error;
    case 'claimed': return (t.progress > 0 ? `${Math.round(t.progress * 100)} % ` : '') + t.note;
    default: return t.attempts > 0 && `attempt ${t.attempts + 1} of ${t.max_attempts}`;
  }
}

const since = (t) =>
  ({ claimed: t.claimed_at, blocked: t.blocked_at, ready: t.ready_at }[t.state] ?? t.finished_at ?? t.created_at);

const show = (id) => go(href('work', id));

function View({ id, query: { q = '' } }) {
  const [only, setOnly] = useState('');
  const [graph, setGraph] = useState(true);
  const newest = finished.includes(only);
  const open = useLoaded('undecided', undecided);
  const tasks = useLoaded('tasks ' + only, (signal) =>
    get(signal, '/v1/tasks', { states: only || unfinished, page_size: maxTasks, newest_first: newest }));
  const items = useMemo(() => matching(open.data?.items ?? [], q,
    (i) => [i.id, i.word, i.title, i.by, ...i.owes.map((o) => o.name)]), [open.data, q]);
  const found = useMemo(() => matching(tasks.data?.tasks ?? [], q,
    (t) => [t.id, t.title, t.holder, t.assignee, t.role]), [tasks.data, q]);
  const openTask = (t) => show('task:' + t.id);
  return html`
    <div class="split">
      <div class="work-main">
        <div class="tools"><h2>Undecided</h2><span class="dim">${items.length}${open.data?.more && '+'}</span></div>
        <${Failure} error=${open.error} />
        ${open.data && html`<div class="work-open">
          <${VirtualTable} rows=${items} columns=${itemColumns} keyOf=${(i) => i.key} selected=${id}
            onOpen=${(i) => show(i.key)} label="Undecided" empty=${html`<p class="work-none dim">
              No vote, decision, handoff or blocker waits for an answer.</p>`} /></div>`}
        <div class="tools"><h2>Tasks</h2><${Counts} /><span class="gap"></span>
          <button data-action="graph" aria-pressed=${graph} onClick=${() => setGraph(!graph)}>Graph</button>
          <select aria-label="Tasks to show" value=${only} onChange=${(e) => setOnly(e.currentTarget.value)}>
            <option value="">unfinished and failed</option>
            ${[...unfinished, ...finished].map((s) => html`<option key=${s} value=${s}>${s}</option>`)}
          </select></div>
        <${Failure} error=${tasks.error} />
        ${tasks.data && html`
          ${graph && html`<${Graph} tasks=${found} most=${maxGraph} selected=${id} onOpen=${openTask} />`}
          <${VirtualTable} rows=${found} columns=${taskColumns} keyOf=${(t) => 'task:' + t.id} selected=${id}
            onOpen=${openTask} label="Tasks" empty=${html`<${Empty} text="There are no such tasks." />`} />
          ${tasks.data.next_page_token && html`<p class="work-more dim">
            The list has the ${newest ? 'newest' : 'oldest'} ${tasks.data.tasks.length} tasks.</p>`}`}
      </div>
      ${id && html`<${Item} key=${id} id=${id} onClose=${() => show('')} />`}
    </div>`;
}

// Counts shows how many tasks are in each state.
function Counts() {
  return html`<span class="work-counts">${frame.value?.totals.work.filter((w) => w.kind === 'task').map((w) => html`
    <${Badge} key=${w.state} kind=${stateKinds[w.state]}
      text=${`${w.count}${w.count < 1000 ? '' : '+'} ${w.state}`} />`)}
  </span>`;
}

export const view = {
  id: 'work', title: 'Work', question: 'What is left, what is undecided?', key: '8', View,
  icon: 'M2.5 3.5h4v3.4h-4zM9.5 9.1h4v3.4h-4zM4.5 6.9v3.9h5M9.5 5.2h4',
  mark({ totals: { work } }) {
    const count = (...states) =>
      work.reduce((n, w) => states.includes(`${w.kind} ${w.state}`) ? n + w.count : n, 0);
    const stuck = count('task failed', 'decision escalated', 'blocker open');
    const open = count('task blocked', 'vote open', 'decision open', 'handoff pending');
    return { n: stuck || open, kind: stuck ? 'bad' : '' };
  },
};
