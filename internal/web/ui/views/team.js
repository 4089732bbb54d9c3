// Team: the agents, what each does and holds, and directives to them.
import { html, useMemo } from '../vendor/preact.js';
import { call, search } from '../lib/api.js';
import { frame } from '../lib/live.js';
import { useLoaded } from '../lib/load.js';
import { stateKinds } from '../lib/message.js';
import { pages } from '../lib/pages.js';
import {
  Action, Age, Badge, Count, Empty, Fact, Failure, matching, Name, Panel, Time, VirtualTable,
} from '../lib/parts.js';
import { go, href, route } from '../lib/route.js';
import { send } from '../lib/send.js';
import { canAct } from '../lib/session.js';
import { Finding } from './attention.js';

const healths = ['failed', 'late', 'degraded']; // the worst first; ok is no trouble
const statusKinds = { active: 'good', blocked: 'warn' };

// trouble is the place of an agent in the list: agents that need attention come first.
function trouble(a) {
  const at = healths.indexOf(a.health);
  if (at >= 0) return at;
  return a.halted ? 3 : a.status === 'blocked' ? 4 : a.silent_since ? 5 : 6;
}

// States shows what the broker and the agent say about its state.
function States({ agent: a }) {
  return html`<span class="team-states">
    ${healths.includes(a.health) && html`<${Badge} kind=${a.health === 'failed' ? 'bad' : 'warn'} text=${a.health} />`}
    ${a.halted && html`<${Badge} kind="warn" text="halted" />`}
    ${a.status && a.health !== 'failed' && a.status !== a.health && html`
      <${Badge} kind=${statusKinds[a.status]} text=${a.status} />`}</span>`;
}

const number = (key, title, wide) => ({
  key, title, wide, width: '74px', numeric: true, render: (a) => html`<${Count} n=${a[key]} />`,
});
const columns = [
  { key: 'name', title: 'Agent', width: 'minmax(90px, 1.2fr)', render: (a) => html`<${Name} kind="agent" name=${a.name} />` },
  { key: 'role', title: 'Role', width: 'minmax(0, .7fr)', wide: true,
    render: (a) => html`<${Name} kind="role" name=${a.role} />` },
  { key: 'state', title: 'State', width: '140px', render: (a) => html`<${States} agent=${a} />` },
  { key: 'silent', title: 'Silent', width: '76px', numeric: true,
    render: (a) => html`<${Age} since=${a.silent_since} />` },
  { key: 'activity', title: 'Does', width: 'minmax(0, 2fr)', wide: true },
  number('claims', 'Claims', true),
  number('locks', 'Locks', true),
  number('waiting', 'Waiting'),
];

// others finds agents that the frame, which has at most 500, leaves out.
async function others(query, role, options) {
  const wanted = { pattern: query && `*${query}*`, role };
  const { items } = await pages('/v1/agents', wanted, 'agents', 1000, 1, options);
  return items.map((a) => ({ ...a, silent_since: a.health === 'ok' ? a.asleep_since : a.last_seen }));
}

// View lists the agents. id is the name of the opened agent, or role:NAME for the agents of a role.
function View({ id, query: { q = '' } }) {
  const { agents = [], totals } = frame.value ?? {};
  const role = id.startsWith('role:') ? id.slice(5) : '';
  const name = role ? '' : id;
  const hidden = (totals?.agents ?? 0) - agents.length;
  const found = useLoaded(hidden > 0 && (q || role) ? `agents ${role} ${q}` : null, (signal) => others(q, role, { signal }));
  const rows = useMemo(() => {
    const known = new Set(agents.map((a) => a.name));
    const all = [...agents, ...(found.data ?? []).filter((a) => !known.has(a.name))];
    return matching(all, q, (a) => [
      a.name, a.role, a.status, a.health, a.activity, a.halted && 'halted', a.silent_since && 'silent',
    ]).filter((a) => !role || a.role === role).sort((a, b) => trouble(a) - trouble(b));
  }, [agents, found.data, q, role]);
  const none = !totals ? 'Loading…' : totals.agents ? 'No agent matches.' : 'No agent is registered.';
  return html`
    <div class="tools"><${Summary} totals=${totals} agents=${agents} />
      ${role && html`<span>Role <${Badge} text=${role} /></span> <a class="name" href=${href('team')}>Show every role</a>`}
      ${hidden > 0 && html`<span class="dim">The list has ${agents.length}; the search finds the others by name.</span>`}
    </div>
    <${Failure} error=${found.error} />
    <div class="split">
      <${VirtualTable} label="Agents" rows=${rows} columns=${columns} keyOf=${(a) => a.name}
        selected=${name} onOpen=${(a) => go(href('team', a.name, { q }))} empty=${html`<${Empty} text=${none} />`} />
      ${name && html`<${Opened} key=${name} name=${name} />`}
    </div>`;
}

// Summary says how many agents there are, and how many need attention.
function Summary({ totals: t, agents }) {
  if (!t) return null;
  const halted = agents.filter((a) => a.halted).length;
  return html`<span><${Count} n=${t.agents} /> ${t.agents === 1 ? 'agent' : 'agents'}</span>
    ${t.failed_agents > 0 && html`<${Badge} kind="bad" text=${t.failed_agents + ' failed'} />`}
    ${t.late_agents > 0 && html`<${Badge} kind="warn" text=${t.late_agents + ' late'} />`}
    ${halted > 0 && html`<${Badge} kind="warn" text=${halted + ' halted'} />`}`;
}

// load reads an agent with what concerns it. Observers may not call Explain.
async function load(name, options) {
  const get = (path, query) => call('GET', path + search(query), undefined, options);
  const [agent, { items }, { events }, { findings }] = await Promise.all([
    get('/v1/agents/' + encodeURIComponent(name), { view: 'full' }),
    get('/v1/messages', { box: 'inbox', mailbox: name, page_size: 20 }),
    get('/v1/events', { sources: name, newest_first: true, page_size: 50 }),
    canAct.value ? get('/v1/explain', { agent: name }) : { findings: [] },
  ]);
  const waiting = items.filter(({ delivery }) => delivery.state !== 'claimed');
  return { ...agent, waiting, events, findings: findings.filter((f) => f.severity !== 'info') };
}

// Opened is the panel of an agent.
function Opened({ name }) {
  const { data, error } = useLoaded('agent ' + name, (signal) => load(name, { signal }));
  return html`<${Panel} title=${name} onClose=${() => go(href('team', '', route.value.query))}>
    <${Failure} error=${error} />
    ${data && html`
      <${Actions} agent=${data.agent} />
      ${data.findings.map((f, i) => html`<${Finding} key=${i} finding=${f} />`)}
      <${Facts} ...${data} /><${Holdings} ...${data.holdings} />
      <${List} title="Waiting mail" items=${data.waiting} row=${({ message: m, delivery: d }) => html`
        <${Badge} kind=${stateKinds[d.state]} text=${d.state} /> ${message(m.id, m.subject || m.type)}${from(m.sender)}${' '}
        <span class="dim"><${Time} at=${m.created_at} /></span>`} />
      <${List} title="Checkpoints" items=${data.checkpoints} row=${(c) => html`
        <span class="dim"><${Time} at=${c.saved_at} /></span> ${c.kind} <bdi>${c.reference}</bdi>`} />
      <${List} title="History" items=${data.events} row=${(e) => html`
        <span class="dim"><${Time} at=${e.time} /></span>${' '}
        <${Name} kind="event" name=${String(e.revision)} text=${e.summary} />`} />`}
  <//>`;
}

const directives = [
  { type: 'nudge', label: 'Nudge', field: 'What should the agent look at?' },
  { type: 'halt', label: 'Halt', field: 'Why?', when: (a) => !a.halted },
  { type: 'resume', label: 'Resume', field: 'What has changed?', when: (a) => a.halted },
  { type: 'terminate', label: 'Terminate', field: 'Why?', danger: true },
];
const content = [
  { name: 'subject', label: 'Subject', required: true }, { name: 'body', label: 'Text', kind: 'area' },
];

function Actions({ agent: a }) {
  const target = { agent: a.name };
  return html`<p class="actions">
    <${Action} label="Message" primary fields=${content} run=${(values) => send({ target, ...values })} />
    ${directives.filter((d) => !d.when || d.when(a)).map((d) => html`
      <${Action} key=${d.type} label=${d.label} danger=${d.danger} fields=${[{ name: 'subject', label: d.field }]}
        confirm=${d.danger && `The broker asks ${a.name} to stop its work and to end.`}
        run=${({ subject }) => send({ target, type: d.type, reach: 'all', priority: 10, subject })} />`)}</p>`;
}

function Facts({ agent: a, unread, claimable }) {
  const { sent, received, processed } = a.messages ?? {};
  const dead = frame.value?.mailboxes.find((m) => m.mailbox === a.name)?.dead;
  return html`<dl class="facts">
    <${Fact} label="State"><${States} agent=${a} /><//>
    <${Fact} label="Reason">${a.status_reason && html`<bdi>${a.status_reason}</bdi>`}<//>
    <${Fact} label="Role">${a.role && html`<${Name} kind="role" name=${a.role} />`}<//>
    <${Fact} label="Does">${a.activity && html`<bdi>${a.activity}</bdi>`}<//>
    <${Fact} label="Progress">${a.progress > 0 && Math.round(a.progress * 100) + ' %'}<//>
    <${Fact} label="Task">${a.task_id && html`<${Name} kind="task" name=${a.task_id} />`}<//>
    <${Fact} label="Last call"><${Time} at=${a.last_seen} /><//>
    <${Fact} label="Asleep since">${a.asleep_since && html`<${Time} at=${a.asleep_since} />`}<//>
    <${Fact} label="Failed">${a.failed_at && html`<${Time} at=${a.failed_at} />`}<//>
    <${Fact} label="Mail"><${Name} kind="mailbox" name=${a.name} text=${unread + ' unread'} />, ${claimable} to claim<//>
    <${Fact} label="Dead letters">${dead > 0 && html`<a class="name" href=${href('dead', '', { mailbox: a.name })}>${dead}</a>`}<//>
    <${Fact} label="Messages">${a.messages && `${sent} sent, ${received} received, ${processed} processed`}<//>
    <${Fact} label="Registered"><${Time} at=${a.registered_at} />${a.incarnation > 1 && `, incarnation ${a.incarnation}`}<//>
    <${Fact} label="Lease">${a.lease}<//>
    <${Fact} label="Folder">${a.worktree && html`<bdi>${a.worktree}</bdi>`}<//>
    <${Fact} label="Can">${a.capabilities.join(', ')}<//>
    <${Fact} label="For">${a.description && html`<bdi>${a.description}</bdi>`}<//>
  </dl>`;
}

function List({ title, items, row }) {
  if (!items.length) return null;
  return html`<h3>${title}</h3>
    <ul class="team-list">${items.map((item, i) => html`<li key=${i}>${row(item)}</li>`)}</ul>`;
}

const message = (id, text) => html`<${Name} kind="message" name=${id} text=${text} />`;
const from = (name) => html` from <${Name} kind="agent" name=${name} />`;
const names = (kind, all) => all.map((name) => html`<${Name} key=${name} kind=${kind} name=${name} /> `);
const ends = (at) => html`ends <${Time} at=${at} />`;
const question = (q) => html`${message(q.id, q.subject || 'a question')}${from(q.sender)}${' '}
  <${Badge} kind=${q.overdue ? 'bad' : 'warn'} text=${q.overdue ? 'overdue' : 'open'} /> due <${Time} at=${q.deadline} />`;

// Holdings lists what depends on an agent, and what it waits for.
function Holdings({ claims, locks, tokens, tickets, asked, to_answer: owed, work }) {
  return html`
    <${List} title="Claims" items=${claims} row=${(c) => html`${message(c.message_id, c.subject || c.type)}
      ${from(c.sender)}, attempt ${c.attempt}, claimed <${Time} at=${c.claimed_at} />`} />
    <${List} title="Locks" items=${locks} row=${(l) => html`
      ${names('lock', l.paths)}${l.shared && 'shared, '}${ends(l.held_until)}`} />
    <${List} title="Tokens" items=${tokens} row=${(t) => html`
      ${names('token', [t.type + '/' + t.scope])}${ends(t.held_until)}`} />
    <${List} title="Waits for" items=${tickets} row=${(t) => html`
      ${names(t.token ? 'token' : 'lock', t.resources)}place ${t.position}, since <${Time} at=${t.created_at} />`} />
    <${List} title="Has to answer" items=${owed} row=${question} />
    <${List} title="Has asked" items=${asked} row=${question} />
    <${List} title="Work" items=${work} row=${(w) => html`<${Badge} text=${w.kind} />${' '}
      <${Name} kind=${w.kind} name=${w.id} text=${w.title || w.id} /> ${w.state}, ${w.relation}`} />`;
}

export const view = {
  id: 'team', title: 'Team', question: 'Who does what, who is silent, who holds what?', key: '2', View,
  icon: 'M5.5 7.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5M1 13.5c0-3 2-4.5 4.5-4.5s4.5 1.5 4.5 4.5M11 3a2.3 2.3 0 0 1 0 4.5' +
    'M12 9.2c1.9.5 3 2 3 4.3',
  mark: ({ totals: t }) => ({ n: t.failed_agents + t.late_agents, kind: t.failed_agents ? 'bad' : 'warn' }),
};
