import { html } from '../vendor/preact.js';
import { call, rpc } from './api.js';
import { useLoaded } from './load.js';
import { Action, Badge, Fact, Failure, Name, Panel, Time } from './parts.js';
import { Text } from './text.js';

// stateKinds are the kinds of the badges of the states of deliveries.
export const stateKinds = {
  pending: 'accent', claimed: 'warn', delayed: 'dim', blocked: 'warn', acked: 'good', dead: 'bad', expired: 'dim',
  cancelled: 'dim', notice: 'dim',
};

// targetName returns the kind and the name of a message's target, for Name.
export function targetName(target) {
  for (const kind of ['agent', 'role', 'channel']) {
    if (target?.[kind]) return { kind: kind === 'agent' ? 'agent' : 'mailbox', name: (kind === 'agent' ? '' : kind + ':') + target[kind] };
  }
  return { kind: '', name: target ? 'everyone' : '' };
}

// MessagePanel shows a message with its deliveries.
export function MessagePanel({ id, onClose }) {
  const { data, error } = useLoaded('message:' + id, (signal) =>
    call('GET', '/v1/messages/' + encodeURIComponent(id), undefined, { signal }));
  const title = data ? data.message.subject || '(no subject)' : 'Message';
  return html`<${Panel} title=${title} onClose=${onClose}>
    <${Failure} error=${error} />
    ${data && html`<${Message} data=${data} />`}
  <//>`;
}

function Message({ data }) {
  const { message: m, deliveries } = data;
  const open = deliveries.filter((d) => ['pending', 'delayed', 'blocked', 'notice'].includes(d.state)).length;
  const dead = deliveries.filter((d) => d.state === 'dead').length;
  return html`<div data-message=${m.id}>
    <p class="actions">
      ${open > 0 && html`<${Action} label="Cancel message" name="cancel" danger fields=${[{ name: 'reason', label: 'Reason' }]}
        confirm=${`Withdraw ${open} of ${deliveries.length} deliveries? Claimed and finished ones stay as they are.`}
        run=${async ({ reason }) => `${(await rpc('MessageService/CancelMessage', { id: m.id, reason })).cancelled} cancelled`} />`}
      ${dead > 0 && html`<${Action} label="Redrive" primary run=${async () =>
        `${(await rpc('MessageService/RedriveDeadLetters', { ids: [m.id] })).redriven} redriven`} />`}
      ${open > 0 && html`<${Action} label="Resend" run=${() => rpc('MessageService/ResendMessage', { id: m.id }).then(() => '')} />`}
    </p>
    <dl class="facts">
      <${Fact} label="From"><${Name} kind="agent" name=${m.sender} /><//>
      <${Fact} label="To"><${Name} ...${targetName(m.target)} /><//>
      <${Fact} label="Sent"><${Time} at=${m.created_at} /><//>
      <${Fact} label="Type"><${Badge} text=${m.type} /><//>
      <${Fact} label="Priority">${m.priority}<//>
      <${Fact} label="Conversation">${m.thread_id && html`<${Name} kind="thread" name=${m.thread_id} />`}<//>
      <${Fact} label="Answers">${m.in_reply_to && html`<${Name} kind="message" name=${m.in_reply_to} />`}<//>
      <${Fact} label="Task">${m.task_id && html`<${Name} kind="task" name=${m.task_id} />`}<//>
      <${Fact} label="Channel">${m.channel && html`<${Name} kind="mailbox" name=${'channel:' + m.channel} />`}<//>
      <${Fact} label="Response due">${m.requires_response && html`<${Time} at=${m.response_deadline} />`}<//>
      <${Fact} label="Expires">${m.expires_at && html`<${Time} at=${m.expires_at} />`}<//>
      <${Fact} label="Ordering key">${m.ordering_key}<//>
      ${Object.entries(m.labels || {}).map(([key, value]) => html`<${Fact} key=${key} label=${key}><bdi>${value}</bdi><//>`)}
      <${Fact} label="Files">${m.files?.length > 0 && m.files.map((f) => f.path + (f.line ? ':' + f.line : '')).join(', ')}<//>
      <${Fact} label="Artifacts">${m.artifacts?.length > 0 && m.artifacts.join(', ')}<//>
      <${Fact} label="Id"><code>${m.id}</code><//>
      <${Fact} label="Revision"><code>${m.revision}</code><//>
    </dl>
    ${m.body && html`<h3>Body</h3><${Text} text=${m.body} />`}
    ${m.payload !== null && m.payload !== '' && m.payload !== undefined && html`<h3>Payload</h3>
      <${Text} text=${JSON.stringify(m.payload, null, 2)} />`}
    <h3>Deliveries</h3>
    ${deliveries.slice(0, 200).map((d) => html`<${Delivery} key=${d.mailbox} delivery=${d} />`)}
    ${deliveries.length > 200 && html`<p class="empty">and ${deliveries.length - 200} more</p>`}
  </div>`;
}

function Delivery({ delivery: d }) {
  return html`<div class="delivery">
    <p><${Badge} kind=${stateKinds[d.state]} text=${d.state} /> <${Name} kind="mailbox" name=${d.mailbox} />
      ${d.holder && html`<span class="dim"> ${d.state === 'claimed' ? 'held by' : 'last held by'} </span><${Name} kind="agent" name=${d.holder} />`}
      ${d.state === 'claimed' && html`<span class="dim"> since </span><${Time} at=${d.claimed_at} />`}
      ${d.finished_at && html` <span class="dim"><${Time} at=${d.finished_at} /></span>`}
      ${d.attempts > 0 && html`<span class="dim"> · ${d.attempts} of ${d.max_attempts} attempts failed</span>`}</p>
    ${d.history?.map((a) => html`<p key=${a.number + a.claimed_at} class="attempt"><span class="dim">${a.number}.</span>${' '}
      <${Name} kind="agent" name=${a.agent} /> <span class="dim"><${Time} at=${a.ended_at} /></span>${' '}
      <span class="error" dir="auto">${a.error}</span></p>`)}
  </div>`;
}
