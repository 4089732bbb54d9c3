// Attention: the findings of explain, the worst first, each with what helps.
import { html } from '../vendor/preact.js';
import { rpc } from '../lib/api.js';
import { frame, history } from '../lib/live.js';
import { Action, Age, Badge, Copy, Count, Name, Spark, matching } from '../lib/parts.js';
import { href } from '../lib/route.js';

const severities = { error: ['bad', 'stuck'], warning: ['warn', 'at risk'], info: ['dim', 'note'] };

// labels are the texts of the buttons, by method. Other methods show their name in words.
const labels = {
  RedriveDeadLetters: 'Redrive', PurgeDeadLetters: 'Purge', ForceReleaseLocks: 'Force release', ReleaseLocks: 'Release',
  RevokeToken: 'Revoke', MoveMessages: 'Move messages', Drain: 'Resume delivery', ReleaseClaims: 'Release claim',
  ConfigureSession: 'Raise the limit', DeregisterAgent: 'Deregister', ResendMessage: 'Resend', CancelMessage: 'Cancel message',
};

// risky are the methods whose effect cannot be undone. They ask first.
const risky = /\/(Purge|ForceRelease|Revoke|Deregister|Cancel|Move|ReleaseLocks|ReleaseToken|ConfigureSession|Decide|CloseVote)/;

// withReason are the methods whose request has a reason that the operator may give.
const withReason = /\/(ForceReleaseLocks|RevokeToken|CancelMessage|CancelTask|MoveMessages)$/;

function labelOf(method, request) {
  const name = method.split('/').pop();
  if (name === 'SendMessages') {
    const [message] = request.messages;
    return message.type[0].toUpperCase() + message.type.slice(1) + (message.target?.agent ? ' ' + message.target.agent : '');
  }
  if (name === 'Decide' && request.verdict) return request.verdict[0].toUpperCase() + request.verdict.slice(1);
  return labels[name] || name.replace(/(?!^)[A-Z]/g, (letter) => ' ' + letter.toLowerCase());
}

function FindingAction({ finding, action }) {
  const request = action.request || {};
  const method = action.method.replace('/brokerd.v1.', '');
  const danger = risky.test(action.method);
  const fields = withReason.test(action.method) ? [{ name: 'reason', label: 'Reason', value: request.reason }] : [];
  async function run({ reason }) {
    await rpc(method, reason ? { ...request, reason } : request, { agent: action.agent });
  }
  return html`<${Action} label=${labelOf(action.method, request)} name=${method.split('/')[1]} danger=${danger} run=${run}
    primary=${!danger} fields=${fields}
    confirm=${danger || fields.length ? finding.commands[action.command] || finding.summary : undefined} />`;
}

// Subject links the object of a finding, such as "agent builder-1".
function Subject({ text }) {
  const [, kind, name] = /^(\S+) (.*)$/s.exec(text) || [null, '', text];
  return html`<h2><span class="dim">${kind}</span> <${Name} kind=${kind} name=${name} /></h2>`;
}

// Finding shows a finding of Explain, its commands, and a button for each call that does what a command
// does.
export function Finding({ finding: f }) {
  const [kind, word] = severities[f.severity] || severities.info;
  return html`<article class=${'attention-finding ' + kind} data-row=${f.subject}>
    <header><${Subject} text=${f.subject} /><${Badge} kind=${kind} text=${word} />
      ${f.since && html`<span class="dim since">for <${Age} since=${f.since} /></span>`}</header>
    <p class="summary" dir="auto">${f.summary}</p>
    ${f.reasons.length > 0 && html`<ul>${f.reasons.map((reason, i) => html`<li key=${i} dir="auto">${reason}</li>`)}</ul>`}
    ${f.actions.length > 0 && html`<p class="actions">${f.actions.map((action) => html`
      <${FindingAction} key=${action.command} finding=${f} action=${action} />`)}</p>`}
    ${f.commands.length > 0 && html`<div class="commands">${f.commands.map((c) => html`<${Copy} key=${c} text=${c} />`)}</div>`}
  </article>`;
}

function Tile({ label, n, atLeast, kind, link, detail, rate }) {
  return html`<a class=${'attention-tile ' + (n > 0 && kind || '')} href=${link}>
    <span class="dim">${label}</span><b><${Count} n=${n} atLeast=${atLeast} /></b>
    ${rate ? html`<${Spark} values=${rate} label=${label + ', last minute'} />` : html`<i class="dim">${detail}</i>`}</a>`;
}

function Tiles({ totals: t }) {
  const silent = t.late_agents + t.failed_agents;
  const series = (field) => history.value.map((totals) => totals[field]);
  return html`<div class="attention-tiles">
    <${Tile} label="Waiting" n=${t.waiting} link=${href('queues')} rate=${series('waiting')} />
    <${Tile} label="In work" n=${t.claimed} link=${href('queues')} rate=${series('claimed')} />
    <${Tile} label="Dead letters" n=${t.dead} kind="bad" link=${href('dead')} detail=${t.dead ? 'given up' : 'none'} />
    <${Tile} label="Agents" n=${t.agents} link=${href('team')} detail=${silent ? `${t.failed_agents} failed, ${t.late_agents} late` : 'all in touch'} />
    <${Tile} label="Locks and tokens" n=${t.locks + t.tokens_held} link=${href('locks')} detail=${t.tickets ? `${t.tickets} wait` : 'no waiters'} />
    <${Tile} label="Changes per second" n=${Math.round(t.revision_rate)} link=${href('timeline')} rate=${series('revision_rate')} />
  </div>`;
}

function View({ query }) {
  const f = frame.value;
  if (!f) return html`<p class="empty">Waiting for the first frame…</p>`;
  const found = matching(f.findings, query.q, (one) => [one.subject, one.summary, ...one.reasons, ...one.commands]);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Findings">
    <${Tiles} totals=${f.totals} />
    ${found.map((one) => html`<${Finding} key=${one.subject + one.since} finding=${one} />`)}
    ${f.findings.length === 0 && html`<div class="attention-calm"><svg viewBox="0 0 48 48" aria-hidden="true">
      <circle cx="24" cy="24" r="21" /><path d="M15 25l6 6 12-13" /></svg>
      <h2>Nothing needs you</h2><p class="dim">No agent is stuck, and no message waits too long.</p></div>`}
    ${f.findings.length > 0 && found.length === 0 && html`<p class="empty">No finding contains "${query.q}".</p>`}
  </div>`;
}

export const view = {
  id: 'attention', title: 'Attention', question: 'What needs me?', key: '1', View,
  icon: 'M8 2.2l6.3 11.3H1.7zM8 6.5v3.2M8 11.6v.2',
  mark: (f) => ({
    n: f.findings.filter((one) => one.severity !== 'info').length,
    kind: f.findings.some((one) => one.severity === 'error') ? 'bad' : 'warn',
  }),
};
