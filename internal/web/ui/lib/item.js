// The fields of an object of the API as facts, texts and lists, and the panel of a message.
import { html, useMemo, useState } from '../vendor/preact.js';
import { call, rpc } from './api.js';
import { useLoaded } from './live.js';
import { Action, Fact, Name, Panel, State, Time } from './parts.js';

// fields are the kinds of fields, by name. A field without a kind is text.
const fields = {};
for (const [kind, names] of Object.entries({
  agent: 'agent raised_by decides assignee creator opener decided_by closed_by from to_agent settled_by ' +
    'checked_by resolved_by',
  role: 'role to_role escalated_to passed_to_role', task: 'parent task_id', thread: 'thread_id', mailbox: 'mailbox channel',
  message: 'message_id answers',
  badge: 'state severity',
  long: 'description result body payload background work_done',
  hidden: 'revision created_revision number message message_type outcome_type',
})) for (const name of names.split(' ')) fields[name] = kind;

// words writes the name of a field for people.
export const words = (name) => name[0].toUpperCase() + name.slice(1).replaceAll('_', ' ').replace(/ (at|id)$/, '');
const present = (v) => v && v.length !== 0 && (typeof v !== 'object' || Object.keys(v).length > 0);
const entries = (object) => Object.entries(object).filter(([name, v]) => fields[name] !== 'hidden' && present(v));
const isList = (v) => Array.isArray(v) && (typeof v[0] === 'object' || v.some((text) => text.length > 40));

// value shows the value of a field of an object.
function value(name, v, object) {
  const kind = name === 'id' ? object.kind ?? (object.state && 'task') : fields[name];
  if (kind === 'badge') return html`<${State} of=${v} />`;
  if (v === true) return words(name).toLowerCase();
  if (Array.isArray(v)) return html`<bdi>${v.join(', ')}</bdi>`;
  if (typeof v === 'object') return html`<${Line} of=${v} />`;
  if (/(_at|_until|_since|_deadline|^at|^until|^deadline)$/.test(name)) return html`<${Time} at=${v} />`;
  if (!kind || kind === 'long') return html`<bdi>${v}</bdi>`;
  if (v === 'system') return 'operator';
  return html`<${Name} kind=${kind} name=${v} text=${kind === 'role' ? 'role:' + v : v} />`;
}

// Line shows the fields of an object one after the other.
function Line({ of }) {
  return entries(of).map(([name, v]) => isList(v) ? html`<${List} key=${name} title=${words(name)} items=${v} />`
    : html`<span key=${name}>${value(name, v, of)} </span>`);
}

// Facts shows the fields of an object other than its title: short ones as facts, long texts, and
// lists. extra has what is shown in place of a field.
export function Facts({ of, extra = {} }) {
  const all = entries({ state: of.state, ...of, title: '', ...extra });
  const long = ([name, v]) => !(name in extra) && (fields[name] === 'long' || isList(v));
  return html`
    <dl class="facts">${all.filter((one) => !long(one)).map(([name, v]) => html`
      <${Fact} key=${name} label=${words(name)}>
        ${name in extra ? v : v === true ? 'yes' : value(name, v, {})}<//>`)}</dl>
    ${all.filter(long).map(([name, v]) => isList(v)
      ? html`<${List} key=${name} title=${words(name)} items=${v} />` : html`
      <h3 key=${name}>${words(name)}</h3>
      <${Text} text=${typeof v === 'string' ? v : JSON.stringify(v, null, 2)} label=${words(name)} />`)}`;
}

// List shows texts or objects, one per line; after(item) follows each.
export function List({ title, items, after }) {
  return items.length > 0 && html`<h3>${title}</h3><ol class="item-list">${items.map((item, i) => html`<li key=${i}>
    ${typeof item === 'string' ? html`<bdi>${item}</bdi>` : html`<${Line} of=${item} />`}${after?.(item)}</li>`)}</ol>`;
}

// characters of a long text that are visible at first
const shown = 4096;
// characters of a text that the browser lays out together
const piece = 8192;

// cut returns where a piece of a text ends: after a line if one ends in its second half.
function cut(text, start, length) {
  const end = start + length;
  if (end >= text.length) return text.length;
  const line = text.lastIndexOf('\n', end - 1) + 1;
  if (line > start + length / 2) return line;
  return /[\ud800-\udbff]/.test(text[end - 1]) ? end - 1 : end;
}

function pieces(text) {
  const all = [];
  for (let start = 0, end; start < text.length; start = end) {
    end = cut(text, start, piece);
    all.push(text.slice(start, end));
  }
  return all;
}

// Text shows a text of an agent. Of a long one it shows the beginning and, on request, all in a box
// that scrolls, of which the browser lays out only the visible pieces. kind is mono or prose.
export function Text({ text, label, kind = 'mono' }) {
  const [all, setAll] = useState(false);
  const long = text.length > shown;
  const parts = useMemo(() => (all ? pieces(text) : [text.slice(0, cut(text, 0, shown))]), [text, all]);
  if (!text) return null;
  return html`<div class=${'text ' + kind} tabindex="0" role="group" aria-label=${label}>
      ${parts.map((part, i) => html`<div key=${i} dir="auto">${part}</div>`)}
    </div>
    ${long && html`<button data-show="all" aria-expanded=${all} onClick=${() => setAll(!all)}>
      ${all ? 'Show the beginning' : 'Show all ' + counted(text.length, 'character')}</button>`}`;
}

// counted returns a number with a noun.
export function counted(n, noun) {
  return `${n.toLocaleString('en')} ${noun}${n === 1 ? '' : 's'}`;
}

// payloadOf returns the payload of a message as a text.
export const payloadOf = ({ payload }) => payload == null || payload === '' ? '' : JSON.stringify(payload, null, 2);

// messageAt returns the path of a message, with an action.
export const messageAt = (id, action = '') => '/v1/messages/' + encodeURIComponent(id) + action;

// MessagePanel shows a message with its deliveries.
export function MessagePanel({ id, onClose }) {
  const { data, error } = useLoaded('message:' + id, (signal) => call('GET', messageAt(id), undefined, { signal }));
  const title = data ? data.message.subject || '(no subject)' : 'Message';
  return html`<${Panel} title=${title} error=${error} onClose=${onClose}>${data && html`<${Message} ...${data} />`}<//>`;
}

function Message({ message: m, deliveries }) {
  const open = deliveries.some((d) => ['pending', 'delayed', 'blocked', 'notice'].includes(d.state));
  const to = receiver(m.target);
  const { agent, role, channel } = m.target ?? {};
  return html`<div data-message=${m.id}>
    <p class="actions">
      ${open && html`<${Cancel} message=${m} label="Cancel message" />`}
      ${deliveries.some((d) => d.state === 'dead') && html`<${Action} label="Redrive" primary run=${async () =>
        `${counted((await rpc('MessageService/RedriveDeadLetters', { ids: [m.id] })).redriven, 'dead letter')} redriven`} />`}
      ${open && html`<${Resend} message=${m} />`}
    </p>
    <${Facts} of=${{
      from: m.sender, to, sent_at: m.created_at, type: m.type, type_as_sent: m.type_as_sent, priority: m.priority, thread_id: m.thread_id,
      answers: m.in_reply_to, task_id: m.task_id, channel: m.channel && 'channel:' + m.channel,
      response_deadline: m.requires_response && m.response_deadline, expires_at: m.expires_at,
      ordering_key: m.ordering_key, labels: Object.entries(m.labels).map(([key, value]) => `${key}=${value}`),
      files: m.files, artifacts: m.artifacts, id: m.id, sent_revision: m.revision, body: m.body, payload: payloadOf(m),
    }} extra=${{ to: html`<${Name} kind=${agent ? 'agent' : (role || channel) && 'mailbox'} name=${to} />` }} />
    <h3>Deliveries</h3>
    ${deliveries.slice(0, 200).map((d) => html`<${Delivery} key=${d.mailbox} delivery=${d} />`)}
    ${deliveries.length > 200 && html`<p class="empty">and ${deliveries.length - 200} more</p>`}
  </div>`;
}

// Resend is the button that delivers a message again.
export function Resend({ message: m }) {
  return html`<${Action} label="Resend" run=${async () => {
    const { resent } = await call('POST', messageAt(m.id, '/resend'), {});
    return resent ? 'Sent again to ' + counted(resent, 'recipient') : 'No agent has it unclaimed in its own mailbox';
  }} />`;
}

// Cancel is the button that withdraws a message.
export function Cancel({ message: m, label = 'Cancel' }) {
  return html`<${Action} label=${label} name="cancel" danger fields=${[{ name: 'reason', label: 'Reason' }]}
    confirm="No agent receives the message from now on. Claimed and finished deliveries stay as they are."
    run=${async (values) => {
      const { cancelled, kept } = await call('POST', messageAt(m.id, '/cancel'), values);
      return `${counted(cancelled, 'recipient')} withdrawn, ${kept} kept`;
    }} />`;
}

function Delivery({ delivery: d }) {
  return html`<div class="delivery">
    <p><${State} of=${d.state} /> <${Name} kind="mailbox" name=${d.mailbox} />
      ${d.holder && html`<span class="dim"> ${d.state === 'claimed' ? 'held by' : 'last held by'} </span><${Name} kind="agent" name=${d.holder} />`}
      ${d.state === 'claimed' && html`<span class="dim"> since </span><${Time} at=${d.claimed_at} />`}
      ${d.finished_at && html` <span class="dim"><${Time} at=${d.finished_at} /></span>`}
      ${d.attempts > 0 && html`<span class="dim"> · ${d.attempts} of ${d.max_attempts} attempts failed</span>`}</p>
    ${d.history?.map((a) => html`<p key=${a.number + a.claimed_at} class="attempt"><span class="dim">${a.number}.</span>${' '}
      <${Name} kind="agent" name=${a.agent} /> <span class="dim"><${Time} at=${a.ended_at} /></span>${' '}
      <span class="error" dir="auto">${a.error}</span></p>`)}
  </div>`;
}

// receiver writes the target of a message in the grammar of brokerctl.
export function receiver(target) {
  if (target?.everyone) return 'everyone';
  if (target?.role) return 'role:' + target.role;
  if (target?.channel) return 'channel:' + target.channel;
  return target?.agent || target?.pattern || '';
}

// targetOf reads that grammar: NAME, role:NAME, channel:NAME, a pattern, everyone.
export function targetOf(text) {
  const [, kind, name] = /^(role|channel):(.*)$/s.exec(text) ?? [];
  if (kind) return { [kind]: name };
  if (['everyone', 'all', 'ALL', '*'].includes(text)) return { everyone: true };
  return /[*?]/.test(text) ? { pattern: text } : { agent: text };
}

// outcome says what the broker did with a message. It fails if a mailbox is full.
export function outcome({ recipient_count, refused_count, warnings }) {
  if (refused_count > 0) {
    throw new Error(`the message did not reach ${refused_count} of ${recipient_count} mailboxes, which are full`);
  }
  return ['Sent', ...warnings].join('; ');
}

// send sends a message as the operator and says what the broker did with it.
export async function send(message) {
  const { results } = await call('POST', '/v1/messages', { messages: [message] });
  return outcome(results[0]);
}
