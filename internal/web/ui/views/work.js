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

const maxTasks = 200; // in the graph, and in the list at first
const maxItems = 100; // undecided ones of each kind
const unfinished = ['claimed', 'blocked', 'ready', 'waiting', 'failed'];

const get = (signal, path, query) => call('GET', path + search(query), undefined, { signal });
const receiver = (agent, role) => agent ? { kind: 'agent', name: agent } : { kind: 'role', name: role };

// owed names who owes the next step of a decision.
function owed(d) {
  if (d.state === 'revising') return receiver(d.opened_by);
  if (d.state === 'escalated') return d.escalated_to ? receiver('', d.escalated_to) : { name: 'operator' };
  return receiver(d.agent, d.role);
}

// undecided reads what waits for an answer, the oldest first: {id, kind, title, state, since, from, note, owes}.
async function undecided(signal) {
  const [blockers, decisions, votes, handoffs] = await Promise.all([
    get(signal, '/v1/blockers', { states: ['open', 'acknowledged'], page_size: maxItems }),
    get(signal, '/v1/decisions', { states: ['open', 'revising', 'escalated'], page_size: maxItems }),
    get(signal, '/v1/votes', { state: 'open', page_size: maxItems }),
    get(signal, '/v1/handoffs', { states: 'pending', page_size: maxItems }),
  ]);
  const items = [
    ...blockers.blockers.map((b) => ({
      id: 'blocker:' + b.id, kind: 'blocker', title: b.reason.split('\n', 1)[0], state: b.state, since: b.raised_at, from: b.agent, note: b.severity,
      owes: b.acknowledged_by.length > 0 ? b.acknowledged_by.map((name) => receiver(name)) : b.recipients.map((r) => receiver(r.agent, r.role)),
    })),
    ...decisions.decisions.map((d) => ({
      id: 'decision:' + d.id, kind: d.kind === 'custom' ? 'decision' : d.kind, title: d.title, state: d.state, since: d.changed_at, from: d.opened_by,
      note: `round ${d.round} of ${d.max_rounds}`, owes: [owed(d)], deadline: d.deadline,
    })),
    ...votes.votes.map((v) => ({
      id: 'vote:' + v.id, kind: 'vote', title: v.title, state: v.state, since: v.opened_at, from: v.opener, note: `${v.ballots} of ${v.electors} ballots`,
      owes: [], deadline: v.deadline,
    })),
    ...handoffs.handoffs.map((h) => ({
      id: 'handoff:' + h.id, kind: 'handoff', title: h.title, state: h.state, since: h.created_at, from: h.from,
      note: h.items > 0 ? `${h.checked} of ${h.items} checked` : '', owes: [receiver(h.to_agent, h.to_role)],
    })),
  ];
  items.sort((a, b) => Date.parse(a.since) - Date.parse(b.since));
  return { items, more: [blockers, decisions, votes, handoffs].some((page) => page.next_page_token !== '') };
}

const names = (list) => list.map(({ kind, name }) => html`<${Name} key=${name} kind=${kind} name=${name} text=${kind === 'role' ? 'role:' + name : name} /> `);
const state = (item) => html`<${Badge} kind=${stateKinds[item.state]} text=${item.state} />`;

// Columns with extra are absent beside an open panel.
const itemColumns = [
  { key: 'kind', title: 'Kind', width: '72px', render: (i) => i.kind },
  { key: 'title', title: 'Title', width: 'minmax(90px, 3fr)', render: (i) => html`<bdi>${i.title}</bdi>` },
  { key: 'state', title: 'State', width: '104px', render: state },
  { key: 'from', extra: true, title: 'From', width: 'minmax(80px, 1fr)', wide: true, render: (i) => names([receiver(i.from)]) },
  { key: 'owes', title: 'Waits for', width: 'minmax(80px, 1fr)', wide: true, render: (i) => names(i.owes) },
  { key: 'note', title: 'Progress', width: '130px', wide: true, render: (i) => i.note },
  { key: 'since', title: 'Since', width: '72px', render: (i) => html`<${Age} since=${i.since} />` },
  { key: 'deadline', extra: true, title: 'Deadline', width: '112px', wide: true, render: (i) => html`<${Time} at=${i.deadline} />` },
];

const taskColumns = [
  { key: 'id', title: 'Task', width: 'minmax(70px, 1fr)', render: (t) => html`<bdi>${t.id}</bdi>` },
  { key: 'title', title: 'Title', width: 'minmax(90px, 3fr)', render: (t) => html`<bdi>${t.title}</bdi>` },
  { key: 'state', title: 'State', width: '88px', render: state },
  { key: 'agent', title: 'Agent', width: 'minmax(80px, 1fr)', wide: true,
    render: (t) => t.holder ? names([receiver(t.holder)]) : (t.assignee || t.role) && html`<span class="dim">for </span>${names([receiver(t.assignee, t.role)])}` },
  { key: 'why', extra: true, title: 'Why', width: 'minmax(80px, 2fr)', wide: true, render: reason },
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

const since = (t) => ({ claimed: t.claimed_at, blocked: t.blocked_at, ready: t.ready_at }[t.state] ?? t.finished_at ?? t.created_at);

const show = (id) => go(href('work', id));

function View({ id, query }) {
  const text = query.q ?? '';
  const [only, setOnly] = useState('');
  const [count, setCount] = useState(maxTasks);
  const [graph, setGraph] = useState(true);
  const open = useLoaded('undecided', undecided);
  const tasks = useLoaded('tasks ' + only, (signal) => get(signal, '/v1/tasks', {
    states: only || unfinished, page_size: count, newest_first: only === 'done' || only === 'cancelled',
  }), [count]);
  const items = useMemo(() => matching(open.data?.items ?? [], text, (i) => [i.id, i.kind, i.title, i.from, ...i.owes.map((o) => o.name)]),
    [open.data, text]);
  const found = useMemo(() => matching(tasks.data?.tasks ?? [], text, (t) => [t.id, t.title, t.holder, t.assignee, t.role]), [tasks.data, text]);
  const beside = (columns) => columns.filter((column) => !(id && column.extra));
  return html`
    <div class="split">
      <div class="work-main">
        <div class="tools"><h2>Undecided</h2><span class="dim">${items.length}${open.data?.more && '+'}</span></div>
        <${Failure} error=${open.error} />
        ${open.data && html`<div class="work-open"><${VirtualTable} rows=${items} columns=${beside(itemColumns)} keyOf=${(i) => i.id} selected=${id}
          onOpen=${(i) => show(i.id)} label="Undecided" empty=${html`<p class="work-none dim">No vote, decision, handoff or blocker waits for an answer.</p>`} /></div>`}
        <div class="tools"><h2>Tasks</h2><${Counts} /><span class="gap"></span>
          <button data-action="graph" aria-pressed=${graph} onClick=${() => setGraph(!graph)}>Graph</button>
          <select aria-label="Tasks to show" value=${only} onChange=${(e) => { setOnly(e.currentTarget.value); setCount(maxTasks); }}>
            <option value="">unfinished and failed</option>
            ${[...unfinished, 'done', 'cancelled'].map((s) => html`<option key=${s} value=${s}>${s}</option>`)}
          </select></div>
        <${Failure} error=${tasks.error} />
        ${tasks.data && html`
          ${graph && html`<${Graph} tasks=${found} most=${maxTasks} selected=${id} onOpen=${(t) => show('task:' + t.id)} />`}
          <${VirtualTable} rows=${found} columns=${beside(taskColumns)} keyOf=${(t) => 'task:' + t.id} selected=${id} onOpen=${(t) => show('task:' + t.id)}
            label="Tasks" empty=${html`<${Empty} text=${text ? `No task contains "${text}".` : 'There are no such tasks.'} />`} />
          ${tasks.data.next_page_token && html`<p class="work-more dim">The list has the ${only === 'done' || only === 'cancelled' ? 'newest' : 'oldest'} ${tasks.data.tasks.length} tasks.
            ${count < 1000 && html` <button data-action="more" onClick=${() => setCount(1000)}>Load 1000</button>`}</p>`}`}
      </div>
      ${id && html`<${Item} key=${id} id=${id} onClose=${() => show('')} />`}
    </div>`;
}

// Counts shows how many tasks are in each state.
function Counts() {
  return html`<span class="work-counts">${frame.value?.totals.work.filter((w) => w.kind === 'task').map((w) => html`
    <${Badge} key=${w.state} kind=${stateKinds[w.state]} text=${`${w.count}${w.count >= 1000 ? '+' : ''} ${w.state}`} /> `)}</span>`;
}

export const view = {
  id: 'work', title: 'Work', question: 'What is left, what is undecided?', key: '8', View,
  icon: 'M2.5 3.5h4v3.4h-4zM9.5 9.1h4v3.4h-4zM4.5 6.9v3.9h5M9.5 5.2h4',
  mark: (f) => {
    const count = (...states) => f.totals.work.reduce((n, w) => states.includes(`${w.kind} ${w.state}`) ? n + w.count : n, 0);
    const failed = count('task failed', 'decision escalated', 'blocker open');
    return { n: failed || count('task blocked', 'vote open', 'decision open', 'handoff pending'), kind: failed ? 'bad' : '' };
  },
};
