// The fields of an object of the API, as facts, texts and lists.
import { html } from '../vendor/preact.js';
import { Badge, Fact, Name, Time } from './parts.js';
import { Text } from './text.js';

// stateKinds are the kinds of the badges of states, severities and health.
export const stateKinds = {
  ready: 'accent', claimed: 'good', blocked: 'warn', failed: 'bad', open: 'accent', revising: 'warn', escalated: 'bad', acknowledged: 'warn',
  pending: 'accent', high: 'warn', critical: 'bad', held: 'good', contested: 'warn', late: 'warn', degraded: 'warn',
};

// fields are the kinds of fields, by name. Without a kind a field is shown as text; a hidden one is not shown.
const fields = {};
for (const [kind, names] of Object.entries({
  agent: 'agent raised_by decides assignee creator opener opened_by decided_by closed_by from to_agent settled_by checked_by resolved_by',
  role: 'role to_role escalated_to', task: 'parent task_id', thread: 'thread_id', badge: 'state severity health',
  text: 'description result body payload background work_done', hidden: 'revision created_revision number message message_type outcome_type',
})) for (const name of names.split(' ')) fields[name] = kind;

const words = (name) => name[0].toUpperCase() + name.slice(1).replaceAll('_', ' ').replace(/ (at|id)$/, '');

// value shows the value of a field; in is the object that has it.
function value(name, v, within) {
  const kind = name === 'id' ? within.kind ?? (within.state && 'task') : fields[name];
  if (kind === 'badge') return html`<${Badge} kind=${stateKinds[v]} text=${v} />`;
  if (v === true) return words(name).toLowerCase();
  if (typeof v === 'object') return Array.isArray(v) ? v.join(', ') : entries(v).map(([key, one]) => html`<span key=${key}>${value(key, one, v)} </span>`);
  if (/(_at|_until|^at|^until|^deadline)$/.test(name)) return html`<${Time} at=${v} />`;
  return kind === 'hidden' || kind === 'text' || !kind ? html`<bdi>${v}</bdi>`
    : v === 'system' ? 'operator' : html`<${Name} kind=${kind} name=${v} text=${kind === 'role' ? 'role:' + v : v} />`;
}

const present = (v) => v != null && v !== '' && v !== 0 && v !== false && v.length !== 0 && (typeof v !== 'object' || Object.keys(v).length > 0);
const entries = (object) => Object.entries(object).filter(([name, v]) => fields[name] !== 'hidden' && present(v));
const isList = (v) => Array.isArray(v) && (typeof v[0] === 'object' || v.some((text) => text.length > 40));

// Facts shows the fields of an object: short ones as facts, long texts, and lists. extra has values in
// place of fields, or further ones.
export function Facts({ of, extra = {} }) {
  const all = entries({ state: of.state, ...of, title: '', ...extra });
  const long = ([name, v]) => !(name in extra) && (fields[name] === 'text' || isList(v));
  return html`
    <dl class="facts">${all.filter((one) => !long(one)).map(([name, v]) => html`<${Fact} key=${name} label=${words(name)}>
      ${name in extra ? v : value(name, v, {})}<//>`)}</dl>
    ${all.filter(long).map(([name, v]) => isList(v) ? html`<${List} key=${name} title=${words(name)} items=${v} />` : html`
      <h3 key=${name}>${words(name)}</h3><${Text} text=${typeof v === 'string' ? v : JSON.stringify(v, null, 2)} label=${words(name)} />`)}`;
}

// List shows objects, one per line; after(item) follows each.
export function List({ title, items, after }) {
  return items.length > 0 && html`<h3>${title}</h3><ol class="item-list">${items.map((item, i) => html`<li key=${i}>
    ${typeof item === 'string' ? html`<bdi>${item}</bdi>` : entries(item).map(([name, v]) => html`<span key=${name}>${
      isList(v) ? html`<${List} title=${words(name)} items=${v} />` : value(name, v, item)} </span>`)}${after?.(item)}</li>`)}</ol>`;
}
