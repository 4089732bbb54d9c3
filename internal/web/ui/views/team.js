// Attention: the findings of explain, the worst first, each with what helps.
// Team: the agents, what each does and holds, and directives to them.
import { html, useMemo } from '../vendor/preact.js';
import { call, pages, rpc, search } from '../lib/api.js';
import { Facts, send, words } from '../lib/item.js';
import { frame, history, useLoaded } from '../lib/live.js';
import {
  Action, Age, Badge, Copy, Count, Empty, Failure, matching, Name, Panel, Spark, State, Time, VirtualTable,
} from '../lib/parts.js';
import { canAct, go, href, route } from '../lib/session.js';
import { take } from './locks.js';
import { Change } from './queues.js';

const severities = { error: ['bad', 'stuck'], warning: ['warn', 'at risk'], info: ['dim', 'note'] };

// labels are the texts of buttons whose method does not say what it does here. Others show it in words.
const labels = { Drain: 'Resume delivery', DeleteState: 'Delete the report' };

// risky are the methods that take something away for good. Their buttons are red.
const risky = /\/(Purge|Force|Revoke|Deregister|Delete|Cancel|Move|Release[LT]|Configure|Decide|Close)/;

// withReason are the methods whose request has a reason that the operator may give.
const withReason = /\/(Force|Revoke|Cancel[MT]|Move)/;

function labelOf({ summary, reasons }, { method, request, agent }) {
  const name = method.split('/').pop();
  if (/^Release[LT]/.test(name)) return 'End the wait of ' + agent;
  if (request.to) return 'Move to ' + request.to;
  if (request.settings) return 'Raise the limit to ' + request.settings.mailbox_limit;
  const message = request.messages?.[0];
  if (message) return `${words(message.type)} ${Object.values(message.target)}`;
  if (request.verdict) return words(request.verdict);
  let of = agent && ' of ' + agent;
  if (/^(Revoke|Force)/.test(name)) { // only the sentences say who holds it
    const grant = new RegExp(`^(\\S+) holds .*fence (${request.revisions?.join('|') ?? '\\d+'})\\b`, 'm');
    const holder = grant.exec([summary, ...reasons].join('\n'));
    of = holder ? ' from ' + holder[1] : '';
  }
  return (labels[name] || name.replace(/Token|Locks/, '').replace(/\B[A-Z]/g, (letter) => ' ' + letter.toLowerCase())) + of;
}

// Help is the button that makes a call of a finding, or the program that makes it. A call that only shows something, or
// for which the operator would have to type a time, has none.
function Help({ finding, of }) {
  const { request, agent, missing, program } = of;
  if (program[0]) {
    return html`<${Copy} text=${program.map(shellWord).join(' ')} /> <i class="dim">brokerctl agent run starts it</i>`;
  }
  if (/\/(Get|List|Explain)/.test(of.method) || missing.includes('until')) return null;
  const method = of.method.replace('/brokerd.v1.', '');
  const danger = risky.test(method);
  const label = labelOf(finding, of);
  const name = method.split('/').pop();
  if (/^(Redrive|Purge)/.test(name)) {
    return html`<${Change} verb=${name.startsWith('Purge') ? 'purge' : 'redrive'} label=${label} name=${name}
      requests=${() => [request]} which=${'of ' + (request.mailbox || finding.subject)} />`;
  }
  const fields = missing.map((path) => ({
    name: path, label: words(path.split('.').pop()), required: true, kind: /body/.test(path) ? 'area' : 'text',
  }));
  if (withReason.test(method)) fields.push({ name: 'reason', label: 'Reason', value: request.reason });
  async function run(values) {
    let wanted = request;
    for (const [path, value] of Object.entries(values)) {
      const [field, inner] = path.split('.');
      if (value) wanted = { ...wanted, [field]: inner ? { ...wanted[field], [inner]: value } : value };
    }
    if (/^(Revoke|Force)/.test(name)) return take(wanted);
    await rpc(method, wanted, { agent });
  }
  return html`<${Action} label=${label} title=${`${label}: ${finding.subject}`} name=${name} danger=${danger} run=${run}
    primary=${!danger} fields=${fields} confirm=${finding.summary} />`;
}

// shellWord writes a word of a program as a shell reads it.
const shellWord = (w) => /^[\w./=-]+$/.test(w) ? w : `'${w.replaceAll("'", `'\\''`)}'`;

// Subject links the object of a finding, such as "agent builder-1".
function Subject({ text }) {
  const [, kind, name] = /^(\S+) (.*)$/s.exec(text) || [null, '', text];
  return html`<h2><span class="dim">${kind}</span> <${Name} kind=${kind} name=${name} /></h2>`;
}

// Said shows a text of Explain with its messages as links and its past times as ages.
function Said({ text }) {
  return text.replace(/at [-\d: ]+ UTC \(([^)]* ago)\)/g, '$1').replace(/since [-\d: ]+ UTC \(([^)]*) ago\)/g, 'for $1').split(/\b(message \d+)/).map((part, i) =>
    i % 2 ? html`<${Name} kind="message" name=${part.slice(8)} text=${part} />` : part);
}

// Finding shows a finding of Explain, a button for each call that changes something, and the programs to start.
function Finding({ finding: f }) {
  const [kind, word] = severities[f.severity] || severities.info;
  return html`<article class=${'attention-finding ' + kind} data-row=${f.subject}>
    <header><${Subject} text=${f.subject} /><${Badge} kind=${kind} text=${word} />
      ${f.since && html`<span class="dim since">for <${Age} since=${f.since} /></span>`}</header>
    <p class="summary" dir="auto"><${Said} text=${f.summary} /></p>
    ${f.reasons.length > 0 && html`<ul>${f.reasons.map((reason, i) => html`<li key=${i} dir="auto"><${Said} text=${reason} /></li>`)}</ul>`}
    <p class="actions">${f.calls.map((c, i) => html`<${Help} key=${i} finding=${f} of=${c} />`)}</p>
  </article>`;
}

function Tile({ label, n, atLeast, kind, link, detail, rate }) {
  return html`<a class=${'attention-tile ' + (n > 0 && kind || '')} href=${link}>
    <span class="dim">${label}</span><b><${Count} n=${n} atLeast=${atLeast} /></b>
    ${rate ? html`<${Spark} values=${rate} label=${label + ', last minute'} />` : html`<i class="dim">${detail}</i>`}</a>`;
}

function Tiles({ totals: t }) {
  const away = ['failed', 'late', 'stopped'].map((of) => [t[of + '_agents'], of]).filter(([n]) => n).map((part) => part.join(' '));
  const series = (field) => history.value.map((totals) => totals[field]);
  return html`<div class="attention-tiles">
    <${Tile} label="Waiting" n=${t.waiting} link=${href('queues')} rate=${series('waiting')} />
    <${Tile} label="In work" n=${t.claimed} link=${href('queues')} rate=${series('claimed')} />
    <${Tile} label="Dead letters" n=${t.dead} kind="bad" link=${href('dead')} detail=${t.dead ? 'given up' : 'none'} />
    <${Tile} label="Agents" n=${t.agents} link=${href('team')} detail=${away.join(', ') || 'all in touch'} />
    <${Tile} label="Locks and turns" n=${t.locks + t.tokens_held} link=${href('locks')} detail=${t.tickets ? `${t.tickets} wait` : 'no waiters'} />
    <${Tile} label="Changes per second" n=${Math.round(t.revision_rate)} link=${href('timeline')} rate=${series('revision_rate')} />
  </div>`;
}

// First says what to do with a broker that has no agent.
function First() {
  return html`<div class="attention-first">
    <p><${Copy} text="brokerctl setup claude-code --agent claude-1 --role lead" /> <i class="dim">connects a coding agent</i></p>
    <p><${Copy} text="brokerctl demo --dashboard" /> <i class="dim">shows a team at work</i></p></div>`;
}

function Attention({ query }) {
  const f = frame.value;
  if (!f) return html`<p class="empty">Waiting for the first frame…</p>`;
  const found = matching(f.findings, query.q, (one) => [one.subject, one.summary, ...one.reasons]);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Findings">
    <${Tiles} totals=${f.totals} />
    ${found.map((one) => html`<${Finding} key=${one.subject + one.since} finding=${one} />`)}
    ${f.findings.length === 0 && html`<div class="attention-calm"><svg viewBox="0 0 48 48" aria-hidden="true">
      <circle cx="24" cy="24" r="21" /><path d="M15 25l6 6 12-13" /></svg>
      <h2>Nothing needs you</h2><p class="dim">No agent is stuck, and no message waits too long.</p>
      ${f.totals.agents === 0 && html`<${First} />`}</div>`}
    ${f.findings.length > 0 && found.length === 0 && html`<${Empty} text=${`No finding contains "${query.q}".`} />`}
  </div>`;
}

export const attention = {
  id: 'attention', title: 'Attention', question: 'What needs me?', key: '1', View: Attention,
  icon: 'M8 2.2l6.3 11.3H1.7zM8 6.5v3.2M8 11.6v.2',
  mark: (f) => ({
    n: f.findings.filter((one) => one.severity !== 'info').length,
    kind: f.findings.some((one) => one.severity === 'error') ? 'bad' : 'warn',
  }),
};

// The order of the list: agents that need attention come first, those that have ended last.
const states = ['failed', 'degraded', 'late', 'halted', 'blocked', '', 'stopped', 'completed'];

function place(a) {
  const at = states.indexOf(a.state);
  return Math.min(at < 0 ? 5 : at, a.halted ? 3 : 9);
}

function States({ agent: a }) {
  return html`<span class="team-states"><${State} of=${a.state} />${a.halted && html`<${State} of="halted" />`}</span>`;
}

const number = (key, title, wide) => ({
  key, title, wide, width: '74px', numeric: true, render: (a) => html`<${Count} n=${a[key]} />`,
});
const columns = [
  { key: 'name', title: 'Agent', width: 'minmax(90px, 1.2fr)', render: (a) => html`<${Name} kind="agent" name=${a.name} />` },
  { key: 'role', title: 'Role', width: 'minmax(0, .7fr)',
    render: (a) => html`<${Name} kind="role" name=${a.role} />` },
  { key: 'state', title: 'State', width: 'minmax(84px, 140px)', render: (a) => html`<${States} agent=${a} />` },
  { key: 'silent', title: 'Silent', width: '76px', numeric: true, wide: true,
    render: (a) => html`<${Age} since=${a.silent_since} />` },
  { key: 'activity', title: 'Does', width: 'minmax(0, 2fr)' },
  number('claims', 'Claims', true),
  number('locks', 'Locks', true),
  number('waiting', 'Mail', true),
];

// others finds agents that the frame, which has at most 500, leaves out.
async function others(query, role, options) {
  const wanted = { pattern: query && `*${query}*`, role };
  const { items } = await pages('/v1/agents', wanted, 'agents', 1000, 1, options);
  return items.map((a) => ({ ...a, silent_since: a.health === 'ok' ? a.asleep_since : a.last_seen }));
}

// Team lists the agents. id is the name of the opened agent, or role:NAME for the agents of a role.
function Team({ id, query: { q = '' } }) {
  const { agents = [], totals } = frame.value ?? {};
  const role = id.startsWith('role:') ? id.slice(5) : '';
  const name = role ? '' : id;
  const hidden = (totals?.agents ?? 0) - agents.length;
  const found = useLoaded(hidden > 0 && (q || role) ? `agents ${role} ${q}` : null, (signal) => others(q, role, { signal }));
  const rows = useMemo(() => {
    const known = new Set(agents.map((a) => a.name));
    const all = [...agents, ...(found.data ?? []).filter((a) => !known.has(a.name))];
    return matching(all, q, (a) => [
      a.name, a.role, a.state, a.activity, a.halted && 'halted', a.silent_since && 'silent',
    ]).filter((a) => !role || a.role === role).sort((a, b) => place(a) - place(b));
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
        selected=${name} onOpen=${(a) => go(href('team', a.name, { q }))} empty=${none} />
      ${name && html`<${Opened} key=${name} name=${name} />`}
    </div>`;
}

// Summary says how many agents there are, and how many need attention.
function Summary({ totals: t, agents }) {
  if (!t) return null;
  const halted = agents.filter((a) => a.halted).length;
  return html`<span><${Count} n=${t.agents} /> ${t.agents === 1 ? 'agent' : 'agents'}</span>
    ${t.failed_agents > 0 && html`<${State} of="failed" text=${t.failed_agents + ' failed'} />`}
    ${t.late_agents > 0 && html`<${State} of="late" text=${t.late_agents + ' late'} />`}
    ${halted > 0 && html`<${State} of="halted" text=${halted + ' halted'} />`}`;
}

// load reads an agent with what concerns it. Observers may not call Explain: they see the findings that the
// frame has about the agent and its mailbox.
async function load(name, options) {
  const get = (path, query) => call('GET', path + search(query), undefined, options);
  const [agent, { items }, { events }, { findings }] = await Promise.all([
    get('/v1/agents/' + encodeURIComponent(name), { view: 'full' }),
    get('/v1/messages', { box: 'inbox', mailbox: name, page_size: 20 }),
    get('/v1/events', { sources: name, newest_first: true, page_size: 50 }),
    canAct.value ? get('/v1/explain', { agent: name })
      : { findings: frame.peek()?.findings.filter((f) => [`agent ${name}`, `mailbox ${name}`].includes(f.subject)) ?? [] },
  ]);
  const waiting = items.filter(({ delivery }) => delivery.state !== 'claimed');
  const holding = findings.flatMap((f) => f.reasons).map((reason) => /^(\S+) holds (.*) until /.exec(reason) ?? []);
  for (const ticket of agent.holdings.tickets) {
    const holders = holding.filter(([, , what]) => ticket.resources.includes(what)).map(([, holder]) => holder);
    ticket.holders = [...new Set(holders)];
  }
  return { ...agent, waiting, events, findings: findings.filter((f) => f.severity !== 'info') };
}

// Opened is the panel of an agent.
function Opened({ name }) {
  const { data, error } = useLoaded('agent ' + name, (signal) => load(name, { signal }));
  return html`<${Panel} title=${name} error=${error} onClose=${() => go(href('team', '', route.value.query))}>
    ${data && html`
      <${Actions} agent=${data.agent} />
      ${data.findings.map((f, i) => html`<${Finding} key=${i} finding=${f} />`)}
      <${About} ...${data} /><${Holdings} ...${data.holdings} />
      <${List} title="Waiting mail" items=${data.waiting} row=${({ message: m, delivery: d }) => html`
        <${State} of=${d.state} /> ${message(m.id, m.subject || m.type)}${from(m.sender)}${' '}
        <span class="dim"><${Time} at=${m.created_at} /></span>`} />
      <${List} title="Checkpoints" items=${data.checkpoints} row=${(c) => html`
        <span class="dim"><${Time} at=${c.saved_at} /></span> ${c.kind} <bdi>${c.reference}</bdi>`} />
      <${List} title="History" items=${data.events} row=${(e) => html`
        <span class="dim"><${Time} at=${e.time} /></span>${' '}
        <${Name} kind="event" name=${String(e.revision)} text=${e.summary} />`} />`}
  <//>`;
}

const directives = [
  { type: 'nudge', label: 'Nudge', field: 'What should the agent look at?',
    effect: 'receives a nudge before its other mail. Its work continues.' },
  { type: 'halt', label: 'Halt', field: 'Why?', when: (a) => !a.halted,
    effect: 'receives only directives until you resume it.' },
  { type: 'resume', label: 'Resume', field: 'What has changed?', when: (a) => a.halted, effect: 'receives its mail again.' },
  { type: 'terminate', label: 'Terminate', field: 'Why?', danger: true,
    effect: 'is asked to stop its work and to end.' },
];
const content = [
  { name: 'subject', label: 'Subject', required: true }, { name: 'body', label: 'Text', kind: 'area' },
];

function Actions({ agent: a }) {
  const target = { agent: a.name };
  return html`<p class="actions">
    <${Action} label="Message" title=${'Message to ' + a.name} primary fields=${content}
      confirm=${`It goes to the mailbox of ${a.name}, as a message of the operator.`} run=${(values) => send({ target, ...values })} />
    ${directives.filter((d) => !d.when || d.when(a)).map((d) => html`
      <${Action} key=${d.type} label=${d.label} title=${`${d.label} ${a.name}`} danger=${d.danger} fields=${[{ name: 'subject', label: d.field }]}
        confirm=${`${a.name} ${d.effect}`}
        run=${({ subject }) => send({ target, type: d.type, reach: 'all', priority: 10, subject })} />`)}</p>`;
}

// About shows what the broker knows about an agent.
function About({ agent: a, unread, claimable }) {
  const { sent, received, processed } = a.messages ?? {};
  const dead = frame.value?.mailboxes.find((m) => m.mailbox === a.name)?.dead;
  return html`<${Facts} of=${{
    reason: a.status_reason, role: a.role, does: a.activity, progress: a.progress > 0 && Math.round(a.progress * 100) + ' %',
    task_id: a.task_id, last_call_at: a.last_seen, asleep_since: '', failed_at: a.failed_at, stopped_at: a.stopped_at, mail: '', dead_letters: '',
    messages: a.messages && `${sent} sent, ${received} received, ${processed} processed`, registered_at: a.registered_at,
    incarnation: a.incarnation > 1 && a.incarnation, lease: a.lease, folder: a.worktree, can: a.capabilities.join(', '),
    for: a.description,
  }} extra=${{
    state: html`<${States} agent=${a} />`,
    asleep_since: a.asleep_since && html`<${Time} at=${a.asleep_since} />${' '}
      <span class="dim">(no call but empty heartbeats)</span>`,
    mail: html`<${Name} kind="mailbox" name=${a.name} text=${unread + ' unread'} />, ${claimable} to claim`,
    dead_letters: dead > 0 && html`<a class="name" href=${href('dead', '', { mailbox: a.name })}>${dead}</a>`,
  }} />`;
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
  <${State} of=${q.overdue ? 'overdue' : 'open'} /> due <${Time} at=${q.deadline} />`;

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
      ${names(t.token ? 'token' : 'lock', t.resources)}place ${t.position}, since <${Time} at=${t.created_at} />
      ${t.holders.length > 0 && html`, held by ${names('agent', t.holders)}`}`} />
    <${List} title="Has to answer" items=${owed} row=${question} />
    <${List} title="Has asked" items=${asked} row=${question} />
    <${List} title="Work" items=${work} row=${(w) => html`<${Badge} text=${w.kind} />${' '}
      <${Name} kind=${w.kind} name=${w.id} text=${w.title || w.id} /> ${w.state}, ${w.relation}`} />`;
}

export const team = {
  id: 'team', title: 'Team', question: 'Who does what, who is silent, who holds what?', key: '2', View: Team,
  icon: 'M5.5 7.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5M1 13.5c0-3 2-4.5 4.5-4.5s4.5 1.5 4.5 4.5M11 3a2.3 2.3 0 0 1 0 4.5' +
    'M12 9.2c1.9.5 3 2 3 4.3',
  mark: ({ totals: t }) => ({ n: t.failed_agents + t.late_agents, kind: t.failed_agents ? 'bad' : 'warn' }),
};
