// Work: the votes, decisions, handoffs and blockers that wait for an answer, and the tasks as a graph.
import { html, useMemo, useState } from '../vendor/preact.js';
import { call, search } from '../lib/api.js';
import { Facts, List } from '../lib/item.js';
import { frame, useLoaded } from '../lib/live.js';
import { Action, Age, Empty, Failure, matching, Name, Panel, State, Time, VirtualTable } from '../lib/parts.js';
import { go, href } from '../lib/session.js';

// tasks in the graph
const maxGraph = 200;
// tasks in the list
const maxTasks = 1000;
// undecided ones of each kind
const maxItems = 100;
const unfinished = ['claimed', 'blocked', 'ready', 'waiting', 'failed'];
const finished = ['done', 'cancelled'];

const get = (signal, path, query) => call('GET', path + search(query), undefined, { signal });
const receiver = (agent, role) => agent ? { kind: 'agent', name: agent } : { kind: 'role', name: role };

// owed names who owes the next step.
function owed(d) {
  if (d.state === 'revising') return receiver(d.opener);
  if (d.state === 'escalated') return d.escalated_to ? receiver('', d.escalated_to) : { name: 'operator' };
  return receiver(d.agent, d.role);
}

// undecided reads what waits for an answer, the oldest first, each with {key, word, title,
// since, by, note, owes}.
async function undecided(signal) {
  const [blockers, decisions, votes, handoffs] = await Promise.all([
    get(signal, '/v1/blockers', { states: ['open', 'acknowledged'], oldest_first: true, page_size: maxItems }),
    get(signal, '/v1/decisions', { states: ['open', 'revising', 'escalated'], page_size: maxItems }),
    get(signal, '/v1/votes', { states: 'open', page_size: maxItems }),
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
      by: d.opener, note: `round ${d.round} of ${d.max_rounds}`, owes: [owed(d)],
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
  render: (item) => html`<${State} of=${item.state} />` };

const itemColumns = [
  { key: 'word', title: 'Kind', width: '72px' },
  { key: 'title', title: 'Title', width: 'minmax(130px, 3fr)', render: (i) => own(i.title) },
  state,
  { key: 'by', title: 'From', width: 'minmax(80px, 1fr)', wide: true, render: (i) => names([receiver(i.by)]) },
  { key: 'owes', title: 'Waits for', width: 'minmax(80px, 1fr)', wide: true, render: (i) => names(i.owes) },
  { key: 'note', title: 'Progress', width: '128px', wide: true },
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
    get(signal, '/v1/tasks', { states: only || unfinished, page_size: maxTasks, oldest_first: !newest }));
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
            onOpen=${(i) => show(i.key)} label="Undecided" empty="No vote, decision, handoff or blocker waits for an answer." /></div>`}
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
            onOpen=${openTask} label="Tasks" empty=${q || only ? 'No task matches.' : 'There are no unfinished or failed tasks.'} />
          ${tasks.data.next_page_token && html`<p class="work-more dim">
            The list has the ${newest ? 'newest' : 'oldest'} ${tasks.data.tasks.length} tasks.</p>`}`}
      </div>
      ${id && html`<${Item} key=${id} id=${id} onClose=${() => show('')} />`}
    </div>`;
}

// Counts shows how many tasks are in each state.
function Counts() {
  return html`<span class="work-counts">${frame.value?.totals.work.filter((w) => w.kind === 'task').map((w) => html`
    <${State} key=${w.state} of=${w.state}
      text=${`${w.count}${w.count < 1000 ? '' : '+'} ${w.state}`} />`)}
  </span>`;
}

const kinds = { task: Task, decision: Decision, vote: Vote, handoff: Handoff, blocker: Blocker };

// Item is the panel of an opened task, decision, vote, handoff or blocker, by an id such as
// task:schema or vote:v-4711.
function Item({ id, onClose }) {
  const [kind, name = ''] = id.split(/:(.*)/s);
  const Body = kinds[kind];
  const at = `/v1/${kind}s/` + encodeURIComponent(name);
  const { data, error, reload } = useLoaded(Body && id, (signal) =>
    call('GET', at + search({ view: kind === 'task' ? 'full' : '' }), undefined, { signal }));
  const item = data?.[kind];
  // button makes the change that its name says. The field `as` is the agent in whose name an operator
  // acts; request(values) returns the request if it is not the values.
  function button(name, label, { request = (values) => values, ...props } = {}) {
    async function run({ as, ...values }) {
      await call('POST', `${at}/${name}`, request(values), { agent: as });
      reload();
    }
    return html`<${Action} label=${label} name=${name} run=${run} ...${props} />`;
  }
  return html`<${Panel} title=${item?.title || item?.reason?.split('\n', 1)[0] || name} error=${error} onClose=${onClose}>
    ${!Body && html`<${Empty} text="There is no such object." />`}
    ${item && html`<div data-item=${id}><${Body} item=${item} answer=${data} button=${button} /></div>`}
  <//>`;
}

const text = (name, label, required = false) => ({ name, label, required });
const area = (name, label) => ({ name, label, kind: 'area' });
const select = (name, label, options) => ({ name, label, options, kind: 'select', required: true });
const why = text('reason', 'Reason');
const counts = 'The broker records that agent as the author, and the call counts as its activity.';

function Task({ item: t, answer, button }) {
  const held = t.state === 'claimed' || t.state === 'blocked';
  return html`
    <p class="actions">
      ${t.state === 'failed' && button('retry', 'Retry', { primary: true })}
      ${held && button('release', 'Release', {
        fields: [why], confirm: `${t.holder} loses the task. It becomes ready again, and no attempt counts.`,
      })}
      ${(held || t.state === 'waiting' || t.state === 'ready') && button('cancel', 'Cancel task', {
        danger: true, confirm: `Cancel the task ${t.id}. This cannot be undone.`,
        fields: [why, { name: 'cascade', label: 'Also its unfinished dependents and subtasks', kind: 'check' }],
      })}
    </p>
    <${Facts} extra=${{
      holder: t.holder && html`<${Name} kind="agent" name=${t.holder} />`,
      progress: t.progress > 0 && html`<progress value=${t.progress} aria-label="Progress"></progress>`,
    }} of=${{ ...t, depends_on: null, labels: Object.entries(t.labels).map(([key, value]) => `${key}=${value}`) }} />
    ${['Dependencies', 'Dependents', 'Subtasks', 'History', 'References'].map((list) => html`
      <${List} key=${list} title=${list} items=${answer[list.toLowerCase()]} />`)}`;
}

function Decision({ item: d, button }) {
  const escalated = d.state === 'escalated';
  const due = escalated || d.state === 'open';
  // Before an escalation, an operator decides in the name of an agent that may decide.
  const agents = d.agent ? [d.agent]
    : (frame.value?.agents ?? []).filter((a) => a.role === d.role && a.name !== d.opener).map((a) => a.name);
  const fields = [select('verdict', 'Verdict', d.verdicts), area('reason', 'Comment')];
  if (!escalated) fields.unshift(select('as', 'In the name of', agents));
  if (d.verdicts.includes('defer')) fields.push({ name: 'until', label: 'Until, for defer', kind: 'datetime-local' });
  const request = ({ until, ...v }) =>
    ({ ...v, round: d.round, until: v.verdict === 'defer' && until ? new Date(until).toISOString() : undefined });
  return html`
    <p class="actions">
      ${due && (escalated || agents.length > 0) && button('decide', 'Decide', {
        primary: true, fields, request,
        confirm: escalated ? 'It has escalated: operators decide it.' : 'An agent owes this verdict. ' + counts,
      })}
      ${(due || d.state === 'revising') && button('cancel', 'Cancel decision', {
        danger: true, fields: [why], confirm: `End ${d.id} without a verdict.`,
      })}
    </p>
    <${Facts} of=${{ ...d, ...d.content, content: null, agent: null, decides: d.agent }} />`;
}

function Vote({ item: v, answer, button }) {
  const open = v.state === 'open';
  const electors = answer.ballots.filter((b) => !b.left)
    .map((b) => ({ value: b.agent, label: b.agent + (b.option && `, who has voted: ${b.option}`) }));
  return html`
    <p class="actions">
      ${open && electors.length > 0 && button('cast', 'Cast ballot', {
        primary: true, confirm: 'Only electors vote. ' + counts,
        fields: [
          select('as', 'In the name of', electors), select('option', 'Option', v.tally.map((o) => o.option)), why,
        ],
      })}
      ${open && button('close', 'Close vote', {
        danger: true, fields: [why],
        confirm: `${v.ballots} of ${v.electors} electors have voted; the quorum is ${v.required}.`,
      })}
    </p>
    <${List} title="Options" items=${v.tally.map((o) => ({ ...o, ballots: String(o.ballots) }))} after=${(o) => html`
      <meter max=${v.electors} value=${o.ballots} aria-label=${o.option}></meter>`} />
    <${Facts} of=${{ ...v, tally: null }} />
    <${List} title="Ballots" items=${answer.ballots} after=${(b) => !b.option && !b.left && 'has not voted'} />`;
}

function Handoff({ item: h, button }) {
  const pending = h.state === 'pending';
  const check = (i) => (pending || h.state === 'accepted') && button('check', i.checked ? 'Uncheck' : 'Check', {
    request: () => ({ number: i.number, uncheck: i.checked }),
  });
  return html`
    <p class="actions">
      ${pending && button('reject', 'Reject handoff', { danger: true, fields: [text('notes', 'Reason', true)] })}
      ${pending && button('cancel', 'Cancel handoff', { danger: true, fields: [text('notes', 'Reason')] })}
    </p>
    <${Facts} of=${{ ...h, ...h.content, content: null, checklist: null }} />
    <${List} title="Checklist" items=${h.checklist} after=${check} />`;
}

function Blocker({ item: b, button }) {
  return html`
    <p class="actions">
      ${b.state === 'open' && button('acknowledge', 'Acknowledge', { fields: [text('note', 'Note')] })}
      ${b.state !== 'resolved' && button('resolve', 'Resolve', {
        primary: true, fields: [area('resolution', 'How it was resolved')],
      })}
    </p>
    <${Facts} of=${{
      ...b, agent: null, raised_by: b.agent, reason: null, description: b.reason, time_blocked: null,
    }} />`;
}

// of a node, in pixels
const width = 176;
const height = 52;
const columnGap = 44;
const rowGap = 12;

// layers arranges tasks from left to right: each is one column after the last of its dependencies,
// near their rows. A dependency that follows from the others has no edge. Tasks without a dependency
// or dependent among the given ones are left out. Dependencies have no cycles.
function layers(tasks) {
  const nodes = new Map(tasks.map((task) => [task.id, { task, column: -1, row: 0, before: [], all: new Set() }]));
  const connected = new Set();
  function place(node) {
    if (node.column >= 0) return;
    node.column = 0;
    const direct = node.task.depends_on.map((id) => nodes.get(id)).filter(Boolean);
    for (const earlier of direct) {
      place(earlier);
      connected.add(earlier).add(node);
      node.column = Math.max(node.column, earlier.column + 1);
      for (const one of earlier.all) node.all.add(one);
    }
    node.before = direct.filter((one) => !node.all.has(one));
    for (const earlier of direct) node.all.add(earlier);
  }
  for (const node of nodes.values()) place(node);
  const columns = [];
  for (const node of connected) (columns[node.column] ??= []).push(node);
  for (const column of columns) {
    const middle = (node) => node.before.reduce((sum, b) => sum + b.row, 0) / (node.before.length || 1);
    column.sort((a, b) => middle(a) - middle(b) || a.task.created_revision - b.task.created_revision);
    column.forEach((node, row) => { node.row = row; });
  }
  return columns;
}

const left = (node) => node.column * (width + columnGap);
const top = (node) => node.row * (height + rowGap);

function edge(from, to) {
  const [x1, y1, x2, y2] = [left(from) + width, top(from) + height / 2, left(to), top(to) + height / 2];
  return `M${x1},${y1}C${x1 + columnGap / 2},${y1} ${x2 - columnGap / 2},${y2} ${x2},${y2}`;
}

// Graph draws tasks and their dependencies. The list of tasks has the same for the keyboard and for
// screen readers.
function Graph({ tasks, most, selected, onOpen }) {
  const columns = useMemo(() => layers(tasks.slice(0, most)), [tasks, most]);
  if (columns.length === 0) return null;
  const nodes = columns.flat();
  const w = columns.length * (width + columnGap) - columnGap;
  const h = Math.max(...columns.map((column) => column.length)) * (height + rowGap) - rowGap;
  const open = (node) => 'task:' + node.task.id === selected;
  return html`
    <div class="work-graph" tabindex="0" role="group" aria-label="Graph of the dependencies">
      <svg width=${w} height=${h} role="img"
        aria-label=${`${nodes.length} tasks and their dependencies; the list has each`}>
        ${nodes.flatMap((to) => to.before.map((from) => html`<path key=${`${from.task.id} ${to.task.id}`}
          class=${`work-edge${open(from) || open(to) ? ' work-near' : ''}`} d=${edge(from, to)} />`))}
        ${nodes.map((node) => html`<${Node} key=${node.task.id} node=${node} open=${open(node)} onOpen=${onOpen} />`)}
      </svg>
    </div>`;
}

function Node({ node, open, onOpen }) {
  const { task } = node;
  return html`
    <svg x=${left(node)} y=${top(node)} width=${width} height=${height} data-node=${task.id}
      class=${`work-node work-${task.state}${open ? ' work-selected' : ''}`} onClick=${() => onOpen(task)}>
      <title>${task.id}: ${task.title}</title>
      <rect x="1" y="1" width=${width - 2} height=${height - 2} rx="5" />
      <rect class="work-bar" x="1" y="1" width="5" height=${height - 2} rx="2" />
      <foreignObject x="14" y="4" width=${width - 20} height=${height - 6}>
        <div class="work-text"><b dir="auto">${task.title}</b>
          <span><i class="work-state">${task.state}</i> ${task.holder || task.id}</span></div>
      </foreignObject>
    </svg>`;
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
