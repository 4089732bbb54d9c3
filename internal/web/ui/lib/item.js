// The fields of an object of the API, as facts, texts and lists.
import { html } from '../vendor/preact.js';
import { Badge, Fact, Name, Time } from './parts.js';
import { Text } from './text.js';

// stateKinds are the kinds of the badges of states, severities and health.
export const stateKinds = {
  ready: 'accent', claimed: 'good', blocked: 'warn', failed: 'bad', open: 'accent', revising: 'warn', escalated: 'bad',
  acknowledged: 'warn', pending: 'accent', high: 'warn', critical: 'bad', held: 'good', contested: 'warn', late: 'warn',
  degraded: 'warn',
};

// fields are the kinds of fields, by name. A field without a kind is text.
const fields = {};
for (const [kind, names] of Object.entries({
  agent: 'agent raised_by decides assignee creator opener opened_by decided_by closed_by from to_agent settled_by ' +
    'checked_by resolved_by',
  role: 'role to_role escalated_to passed_to_role', task: 'parent task_id', thread: 'thread_id',
  badge: 'state severity',
  long: 'description result body payload background work_done',
  hidden: 'revision created_revision number message message_type outcome_type',
})) for (const name of names.split(' ')) fields[name] = kind;

const words = (name) => name[0].toUpperCase() + name.slice(1).replaceAll('_', ' ').replace(/ (at|id)$/, '');
const present = (v) => v && v.length !== 0 && (typeof v !== 'object' || Object.keys(v).length > 0);
const entries = (object) => Object.entries(object).filter(([name, v]) => fields[name] !== 'hidden' && present(v));
const isList = (v) => Array.isArray(v) && (typeof v[0] === 'object' || v.some((text) => text.length > 40));

// value shows the value of a field of an object.
function value(name, v, object) {
  const kind = name === 'id' ? object.kind ?? (object.state && 'task') : fields[name];
  if (kind === 'badge') return html`<${Badge} kind=${stateKinds[v]} text=${v} />`;
  if (v === true) return words(name).toLowerCase();
  if (Array.isArray(v)) return html`<bdi>${v.join(', ')}</bdi>`;
  if (typeof v === 'object') return html`<${Line} of=${v} />`;
  if (/(_at|_until|^at|^until|^deadline)$/.test(name)) return html`<${Time} at=${v} />`;
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
