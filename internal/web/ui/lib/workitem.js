// The panel of an opened task, decision, vote, handoff or blocker.
import { html } from '../vendor/preact.js';
import { call, search } from './api.js';
import { Facts, List } from './item.js';
import { frame } from './live.js';
import { useLoaded } from './load.js';
import { Action, Empty, Failure, Name, Panel } from './parts.js';

const kinds = { task: Task, decision: Decision, vote: Vote, handoff: Handoff, blocker: Blocker };

// Item shows the object of an id, such as task:schema or vote:v-4711.
export function Item({ id, onClose }) {
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
  return html`<${Panel} title=${item?.title || item?.reason?.split('\n', 1)[0] || name} onClose=${onClose}>
    <${Failure} error=${error} />
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
    : (frame.value?.agents ?? []).filter((a) => a.role === d.role && a.name !== d.opened_by).map((a) => a.name);
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
