// Conversations: who waits for an answer, and what was said.
import { html, useLayoutEffect, useMemo, useRef, useState } from '../vendor/preact.js';
import { call, pages, rpc } from '../lib/api.js';
import {
  Cancel, counted, messageAt, outcome, payloadOf, receiver, Resend, send, targetOf, Text,
} from '../lib/item.js';
import { useLoaded } from '../lib/live.js';
import { Action, Age, Badge, Count, Failure, matching, Name, Panel, State, Time, VirtualTable } from '../lib/parts.js';
import { go, here, href, route } from '../lib/session.js';

const few = 100; // conversations that are loaded at first
const most = 800; // and at most, when the list is scrolled to its end
const fewMessages = 50; // messages of a conversation that are loaded at first

const titleOf = (m) => m.subject || m.type;

// Waits says who waits for an answer.
function Waits({ question: q, resolved }) {
  if (!q) return resolved && html`<${Badge} kind="good" text="resolved" />`;
  return html`<${State} of=${q.overdue ? 'overdue' : 'open'} />${' '}
    <${Name} kind="agent" name=${q.sender} />`;
}

const columns = [
  { key: 'waits', title: 'Waits', width: 'minmax(100px, 150px)',
    render: (t) => html`<${Waits} question=${t.open_questions[0]} resolved=${t.resolved_at} />` },
  { key: 'subject', title: 'Subject', width: 'minmax(0, 2fr)', render: (t) => titleOf(t.first_message) },
  { key: 'last_message', title: 'Last message', width: 'minmax(0, 1.5fr)', wide: true, render: (t) => t.messages > 1 && html`
    <bdi class="dim">${t.last_message.sender}</bdi> ${titleOf(t.last_message)}` },
  { key: 'participants', title: 'Between', wide: true, render: (t) => t.participants.join(', ') },
  { key: 'messages', title: 'Messages', width: '90px', wide: true, numeric: true,
    render: (t) => html`<${Count} n=${t.messages} atLeast=${t.messages >= 100} />` },
  { key: 'last_at', title: 'Last', width: '80px', numeric: true, render: (t) => html`<${Age} since=${t.last_at} />` },
];

// urgency is the place of a conversation in the list: overdue questions come first, then open ones.
function urgency({ open_questions: [q] }) {
  if (!q) return 2;
  return q.overdue ? 0 : 1;
}

// loadThreads returns conversations, those with an open question before the others. The broker reads
// up to 20,000 messages for a page, so each list has at most two.
async function loadThreads(count, options) {
  const list = (open) => pages('/v1/threads', { open }, 'threads', count, 2, options);
  const [open, all] = await Promise.all([list(true), list(null)]);
  const threads = [...new Map([...open.items, ...all.items].map((t) => [t.thread_id, t])).values()];
  return { threads: threads.sort((a, b) => urgency(a) - urgency(b)), more: open.more || all.more };
}

const addressed = [
  { name: 'to', label: 'To: an agent, role:NAME, channel:NAME, a pattern or everyone', required: true },
  { name: 'subject', label: 'Subject', required: true }, { name: 'body', label: 'Text', kind: 'area' },
];

function View({ id, query }) {
  const { q, unanswered } = query;
  const [count, setCount] = useState(few);
  const { data, error } = useLoaded('threads', (signal) => loadThreads(count, { signal }), [count]);
  const rows = useMemo(() => {
    const wanted = (data?.threads ?? []).filter((t) => !unanswered || t.open_questions.length);
    return matching(wanted, q, (t) => [t.thread_id, t.first_message.subject, t.last_message.subject, ...t.participants]);
  }, [data, q, unanswered]);
  return html`
    <div class="tools">
      <label><input type="checkbox" checked=${!!unanswered} data-filter="unanswered"
        onChange=${(event) => go(here({ unanswered: event.currentTarget.checked && '1' }), true)} />
        ${' '}Only unanswered</label>
      <span class="gap"></span>
      <${Action} label="Send a message" name="send" primary fields=${addressed}
        run=${({ to, ...message }) => send({ target: targetOf(to.trim()), ...message })} />
    </div>
    <${Failure} error=${error} />
    <div class="split">
      <${VirtualTable} label="Conversations" rows=${rows} columns=${columns} keyOf=${(t) => t.thread_id}
        selected=${id} onOpen=${(t) => go(href('conversations', t.thread_id, { q, unanswered }))}
        onEnd=${() => data?.more && setCount(Math.min(2 * count, most))}
        empty=${data ? 'No conversation matches.' : 'Loading…'} />
      ${id && html`<${Thread} key=${id} id=${id} />`}
    </div>`;
}

// loadThread returns the newest messages of a conversation in the order in which they were sent. id is
// that of the conversation or of one of its messages.
async function loadThread(id, count, options) {
  const newest = (thread) => pages('/v1/messages', { box: 'all', thread_id: thread, newest_first: true }, 'items',
    count, 2 * count / fewMessages, options);
  let found = await newest(id);
  if (!found.items.length) {
    const { message } = await call('GET', messageAt(id), undefined, options);
    found = await newest(message.thread_id);
  }
  return { messages: found.items.map((item) => item.message).reverse(), thread: found.first.thread, more: found.more };
}

// Thread is the panel of a conversation.
function Thread({ id }) {
  const [count, setCount] = useState(fewMessages);
  const list = useRef(null);
  const { data, error } = useLoaded('thread ' + id, (signal) => loadThread(id, count, { signal }), [count]);
  useLayoutEffect(() => { list.current?.lastElementChild?.scrollIntoView(); }, [data !== null]);
  const open = new Set(data?.thread.open_questions.map((q) => q.id));
  return html`<${Panel} title=${data ? titleOf(data.messages[0]) : 'Conversation'}
      error=${error} onClose=${() => go(href('conversations', '', route.value.query))}>
    ${data && html`
      ${data.more && html`<button data-show="earlier" onClick=${() => setCount(2 * count)}>Earlier messages</button>`}
      <ol class="conversations-messages" ref=${list}>${data.messages.map((m) => html`
        <${Message} key=${m.id} message=${m} question=${open.has(m.id)} />`)}</ol>
      <${Continue} thread=${data.thread} last=${data.messages.at(-1)} />`}
  <//>`;
}

// Message shows one message of a conversation. question says that it waits for an answer.
function Message({ message: m, question }) {
  const payload = useMemo(() => payloadOf(m), [m.id]);
  return html`<li data-message=${m.id} class=${question ? 'question' : m.sender === 'system' && 'own'}>
    <header><b><${Name} kind="agent" name=${m.sender} /></b><span class="dim">to <bdi>${receiver(m.target)}</bdi></span>
      ${m.type !== 'message' && html`<${Badge} text=${m.type} />`}
      ${m.subject && html`<strong dir="auto">${m.subject}</strong>`}
      <a class="name at" href=${here({ open: 'message:' + m.id })}><${Time} at=${m.created_at} /></a></header>
    <${Text} text=${m.body} label="Body" kind="prose" /><${Text} text=${payload} label="Payload" />
    ${question && html`<${Receipts} message=${m} />`}
    <p class="actions">
      ${m.sender !== 'system' && html`<${Action} label="Reply" fields=${answer} run=${reply(m)} />`}
      ${question && html`<${Resend} message=${m} /><${Cancel} message=${m} />`}</p>
  </li>`;
}

const answer = [{ name: 'body', label: 'Text', kind: 'area', required: true }];

const reply = (m) => async (message) => outcome((await call('POST', messageAt(m.id, '/reply'), { message })).result);

// Receipts says how far an open question is with its recipients.
function Receipts({ message: m }) {
  const { data } = useLoaded('receipts ' + m.id, (signal) => call('GET', messageAt(m.id), undefined, { signal }));
  return html`<p class="dim">No answer yet, due <${Time} at=${m.response_deadline} />.
    ${data?.deliveries.slice(0, 10).map((d) => html`${' '}
      <span key=${d.mailbox}><${Name} kind="mailbox" name=${d.mailbox} />${' '}
      <${State} of=${d.state} />${' '}
      ${d.read_at ? 'read' : d.delivered_at ? 'delivered' : 'not delivered'}</span>`)}</p>`;
}

// Continue shows the outcome of a conversation, and sends into it.
function Continue({ thread: t, last }) {
  const others = t.participants.filter((name) => name !== 'system');
  const partner = last.sender === 'system' ? receiver(last.target) : last.sender;
  const open = t.open_questions.length;
  const fields = [
    { name: 'to', label: 'To', kind: 'select', options: others, value: partner, required: true },
    { name: 'body', label: 'Text', kind: 'area', required: true },
  ];
  async function resolve(values) {
    const { settled } = await rpc('MessageService/ResolveThread', { thread_id: t.thread_id, ...values });
    return `Resolved; ${counted(settled, 'open question')} settled`;
  }
  return html`<div class="conversations-end">
    ${t.resolved_at && html`<p>Resolved by <${Name} kind="agent" name=${t.resolved_by} /> <${Time} at=${t.resolved_at} />:${' '}
      <bdi>${t.outcome}</bdi></p>`}
    <p class="actions">
      ${others.length > 0 && html`<${Action} label="Send as operator" name="send-into" primary fields=${fields}
        run=${({ to, ...message }) => send({ target: targetOf(to), thread_id: t.thread_id, ...message })} />`}
      <${Action} label="Resolve" fields=${[{ name: 'outcome', label: 'Outcome', kind: 'area', required: true }]} run=${resolve}
        confirm=${open > 0 && `This settles ${counted(open, 'open question')}.`} /></p>
  </div>`;
}

export const view = {
  id: 'conversations', title: 'Conversations', question: 'Who waits for an answer?', key: '5', View,
  icon: 'M2 3h9v6H6l-2.5 2.5V9H2zM13 6h1v6h-1.5v2l-2-2H8',
};
