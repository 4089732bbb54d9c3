// The parts that views are made of.
import { effect, html, useEffect, useRef, useState } from '../vendor/preact.js';
import { now } from './live.js';
import { here, href } from './route.js';

export { Action, ask, Dialogs, Toasts, toast } from './action.js';
export { VirtualTable } from './table.js';

// span returns a number of milliseconds in words, such as 3h 12m.
export function span(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return seconds + 's';
  if (seconds < 3600) return Math.floor(seconds / 60) + 'm ' + (seconds < 600 ? seconds % 60 + 's' : '');
  if (seconds < 86400) return Math.floor(seconds / 3600) + 'h ' + Math.floor(seconds / 60) % 60 + 'm';
  return Math.floor(seconds / 86400) + 'd ' + Math.floor(seconds / 3600) % 24 + 'h';
}

const clock = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
const digits = new Intl.NumberFormat('en');

function exact(at) {
  return `${clock.format(Date.parse(at))} (${at})`;
}

// relative returns a time in words, in the past or in the future.
function relative(at, current) {
  const ms = current - Date.parse(at);
  if (Math.abs(ms) < 1000) return 'now';
  return ms > 0 ? span(ms).trim() + ' ago' : 'in ' + span(-ms).trim();
}

// Time shows a time relative to the broker's clock; the title has the exact one.
export function Time({ at }) {
  return at && html`<time datetime=${at} title=${exact(at)}>${relative(at, now.value)}</time>`;
}

// Age shows how long ago a time was.
export function Age({ since }) {
  return since && html`<time datetime=${since} title=${exact(since)}>${span(now.value - Date.parse(since))}</time>`;
}

// Count shows a number; with atLeast it is a lower bound.
export function Count({ n, atLeast }) {
  return html`<span class=${n ? 'count' : 'count none'}>${digits.format(n || 0)}${atLeast && '+'}</span>`;
}

// places has the link to an object of each kind.
const work = (kind) => (name) => href('work', kind + ':' + name);
const places = {
  agent: (name) => href('team', name),
  role: (name) => href('team', 'role:' + name),
  mailbox: (name) => href('queues', name),
  message: (name) => here({ open: 'message:' + name }),
  event: (name) => href('timeline', name),
  thread: (name) => href('conversations', name),
  lock: (name) => href('locks', 'lock:' + name),
  token: (name) => href('locks', 'token:' + name),
  task: work('task'),
  decision: work('decision'),
  blocker: work('blocker'),
  handoff: work('handoff'),
  vote: work('vote'),
};

// Name shows the name of an object as a link to it. kind is a key of places; another kind has no link.
// The direction of the text ends with the name.
export function Name({ kind, name, text }) {
  if (!name) return null;
  const shown = html`<bdi>${text || name}</bdi>`;
  if (!places[kind] || name === 'system') return html`<span class="name" title=${name}>${shown}</span>`;
  return html`<a class="name" href=${places[kind](name)} title=${name} data-name=${kind + ':' + name}
    onClick=${(event) => event.stopPropagation()}>${shown}</a>`;
}

// Badge shows a short text; kind is good, warn, bad, accent or dim.
export function Badge({ kind = 'dim', text }) {
  return html`<span class=${'badge ' + kind}><bdi>${text}</bdi></span>`;
}

export function Empty({ text }) {
  return html`<p class="empty">${text}</p>`;
}

// Failure shows the error of a call.
export function Failure({ error }) {
  return error && html`<p class="failure" role="alert"><b>${error.reason || error.code || 'ERROR'}</b> ${error.message}</p>`;
}

// Search is a field that filters what a view shows.
export function Search({ value, onInput, label = 'Filter' }) {
  return html`<input class="search" type="search" placeholder=${label} aria-label=${label} value=${value}
    spellcheck=${false} autocomplete="off" onInput=${(event) => onInput(event.currentTarget.value)} />`;
}

// Panel shows the opened item beside the view. Escape closes it.
export function Panel({ title, onClose, children }) {
  const panel = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    panel.current?.focus({ preventScroll: true });
    return () => before?.isConnected && before.focus({ preventScroll: true });
  }, []);
  function onKeyDown(event) {
    if (event.key !== 'Escape' || event.defaultPrevented) return;
    event.preventDefault();
    onClose();
  }
  return html`<aside class="panel" aria-label="Opened item" tabindex="-1" ref=${panel} onKeyDown=${onKeyDown}>
    <header><h2 dir="auto">${title}</h2>
      <button class="plain" aria-label="Close" title="Close (Esc)" onClick=${onClose}>✕</button></header>
    <div class="content" tabindex="0" role="region" aria-label="Details">${children}</div>
  </aside>`;
}

// Copy shows a text, such as a command, and copies it.
export function Copy({ text }) {
  const [done, setDone] = useState(false);
  async function copy() {
    await navigator.clipboard.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  }
  return html`<span class="copy"><code dir="ltr">${text}</code>
    <button class="plain" aria-label=${'Copy ' + text} onClick=${copy}>${done ? '✓' : 'Copy'}</button></span>`;
}

// Spark draws a series of numbers as a line.
export function Spark({ values, label }) {
  const top = Math.max(1, ...values);
  const points = values.map((v, i) => `${(60 - values.length + i) * 2},${19 - 18 * v / top}`).join(' ');
  return html`<svg class="spark" viewBox="0 0 120 20" role="img" aria-label=${label} preserveAspectRatio="none">
    <polyline points=${points} /></svg>`;
}

// Fact is one line of a list of facts; without a value it is absent.
export function Fact({ label, children }) {
  if (children === 0 || children === '' || children === false || children == null) return null;
  return html`<div class="fact"><dt>${label}</dt><dd>${children}</dd></div>`;
}

// useSignalValue subscribes a component to a value that is computed from signals. The component
// renders again only when the value changes.
export function useSelected(select) {
  const [value, set] = useState(select);
  useEffect(() => effect(() => set(select())), []);
  return value;
}

// matching returns the items of which one of the texts contains the query.
export function matching(items, query, texts) {
  const wanted = (query || '').trim().toLowerCase();
  if (!wanted) return items;
  return items.filter((item) => texts(item).some((text) => text && text.toLowerCase().includes(wanted)));
}
