// Timeline: the events of the session, the newest first.
import { html, useEffect, useRef, useState } from '../vendor/preact.js';
import { call } from '../lib/api.js';
import { frame } from '../lib/live.js';
import { useLoaded } from '../lib/load.js';
import { Log } from '../lib/log.js';
import { Age, Badge, Empty, Fact, Failure, Name, Panel, Time, VirtualTable, matching } from '../lib/parts.js';
import { go, here, href } from '../lib/route.js';

const severities = ['debug', 'info', 'warning', 'error', 'critical'];
const kinds = { debug: 'dim', info: 'dim', warning: 'warn', error: 'bad', critical: 'bad' };

const words = (text) => (text || '').split(/[\s,]+/).filter(Boolean);

const unless = (render) => (row) => row.gap ? null : render(row);

// The rows have no links: rows that move would take the focus with them. The panel has the links.
const columns = [
  { key: 'time', title: 'Age', width: '76px', render: unless((e) => html`<span class="dim"><${Age} since=${e.time} /></span>`) },
  {
    key: 'type', title: 'Type', width: 'minmax(0, 1.2fr)',
    render: (e) => e.gap ? html`<b>Load…</b>` :
      html`<span class=${'timeline-type ' + kinds[e.severity]}><i aria-hidden="true"></i>${e.type}</span>`,
  },
  { key: 'source', title: 'Source', width: 'minmax(0, .8fr)', wide: true, render: unless((e) => html`<bdi>${e.source}</bdi>`) },
  {
    key: 'summary', title: 'What happened', width: 'minmax(0, 2.6fr)',
    render: (e) => e.gap ? html`<span class="dim">more events, up to ${(e.until - e.after).toLocaleString('en')}</span>` : html`<bdi>${e.summary}</bdi>`,
  },
  { key: 'revision', title: 'Revision', width: '96px', numeric: true, wide: true, render: unless((e) => html`<span class="dim">${e.revision}</span>`) },
];

const keyOf = (row) => row.gap ? 'gap' + row.after : String(row.revision);

function View({ id, query }) {
  const [rows, setRows] = useState([]);
  const [held, setHeld] = useState(false); // the list stands still
  const log = useRef(null);
  const filter = { types: words(query.types), sources: words(query.sources), lowest_severity: query.severity };
  const chosen = JSON.stringify(filter);

  useEffect(() => {
    const current = new Log(filter, setRows);
    log.current = current;
    setRows([]);
    setHeld(false);
    return () => current.close();
  }, [chosen]);
  const newest = frame.value;
  useEffect(() => { if (newest && !held) log.current.add(newest); }, [newest, chosen, held]);

  const fresh = held && newest ? log.current.fresh(newest) : 0;
  const found = matching(rows, query.q, (e) => e.gap ? [] : [e.type, e.source, e.summary, String(e.revision)]);
  const set = (name) => (event) => go(here({ [name]: event.currentTarget.value.trim() }), true);
  return html`
    <div class="tools">
      <input type="search" class="search" placeholder="Types, such as task.*" aria-label="Types" value=${query.types || ''}
        list="timeline-types" onChange=${set('types')} />
      <datalist id="timeline-types">${['agent', 'blocker', 'decision', 'handoff', 'lock', 'message', 'state', 'task', 'token', 'vote']
        .map((name) => html`<option key=${name} value=${name + '.*'} />`)}</datalist>
      <input type="search" class="search" placeholder="Sources, such as lead" aria-label="Sources" value=${query.sources || ''}
        onChange=${set('sources')} />
      <select aria-label="Lowest severity" value=${query.severity || ''} onChange=${set('severity')}>
        <option value="">any severity</option>
        ${severities.slice(1).map((name) => html`<option key=${name} value=${name} selected=${name === query.severity}>${name} and above</option>`)}
      </select>
      <span class="gap"></span>
      <button aria-pressed=${held} data-action="hold" onClick=${() => setHeld(!held)}>
        ${held ? 'Held' + (fresh > 0 ? `, ${fresh}${fresh >= 40 ? ' or more' : ''} new` : '') : 'Hold'}</button>
    </div>
    <div class="split">
      <${VirtualTable} label="Events" rows=${found} columns=${columns} keyOf=${keyOf} selected=${id} recycle
        onOpen=${(row) => row.gap ? log.current.fill(row) : go(href('timeline', String(row.revision), query))}
        rowClass=${(row) => row.gap && 'timeline-gap'}
        onScroll=${(top) => { if (top > 60) setHeld(true); else if (top === 0 && !id) setHeld(false); }}
        onEnd=${() => log.current?.more()}
        empty=${newest && html`<${Empty} text="No event matches." />`} />
      ${id && html`<${EventPanel} key=${id} revision=${id} onClose=${() => go(href('timeline', '', query))} />`}
    </div>`;
}

function EventPanel({ revision, onClose }) {
  const { data, error } = useLoaded('event:' + revision, async (signal) => {
    const at = Number(revision);
    const page = await call('GET', `/v1/events?after_revision=${at - 1}&until_revision=${at}`, undefined, { signal });
    return page.events;
  });
  return html`<${Panel} title=${data?.[0]?.type || 'Event ' + revision} onClose=${onClose}>
    <${Failure} error=${error} />
    ${data?.length === 0 && html`<${Empty} text="There is no event with this revision, or it was removed." />`}
    ${data?.map((e, i) => html`<${Event} key=${i} event=${e} />`)}
  <//>`;
}

// objects returns what an event is about, as pairs of kind and name.
function objects(e) {
  const all = [];
  const add = (kind, name) => { if (name) all.push([kind, String(name)]); };
  const details = e.details || {};
  const [area] = e.type.split('.');
  if (e.type === 'message.sent') add('message', e.revision);
  if (area === 'message' && e.type !== 'message.sent') {
    const claims = [details.claim, ...(Array.isArray(details.claims) ? details.claims : [])].filter((c) => typeof c === 'string');
    for (const claim of claims.slice(0, 16)) add('message', claim.split('.')[0]);
  }
  for (const name of area === 'message' ? e.related : []) if (/^\d+$/.test(name)) add('message', name);
  for (const mailbox of [details.mailbox, ...(Array.isArray(details.mailboxes) ? details.mailboxes.slice(0, 8) : [])]) add('mailbox', mailbox);
  add('agent', details.agent);
  add('thread', details.thread);
  add('task', e.task_id || details.task_id);
  for (const kind of ['decision', 'blocker', 'handoff', 'vote']) add(kind, details[kind + '_id']);
  if (area === 'lock') for (const path of Array.isArray(details.paths) ? details.paths.slice(0, 16) : []) add('lock', path);
  if (area === 'token') add('token', details.token);
  const seen = new Set();
  return all.filter(([kind, name]) => !seen.has(kind + name) && seen.add(kind + name));
}

function Event({ event: e }) {
  return html`
    <p dir="auto">${e.summary}</p>
    <dl class="facts">
      <${Fact} label="Severity"><${Badge} kind=${kinds[e.severity]} text=${e.severity} /><//>
      <${Fact} label="Time"><${Time} at=${e.time} /><//>
      <${Fact} label="Source"><${Name} kind="agent" name=${e.source} /> <span class="dim">${e.source_role}</span><//>
      <${Fact} label="Revision"><code>${e.revision}</code><//>
      ${objects(e).map(([kind, name]) => html`<${Fact} key=${kind + name} label=${kind[0].toUpperCase() + kind.slice(1)}>
        <${Name} kind=${kind} name=${name} /><//>`)}
    </dl>
    ${e.details && html`<h3>Details</h3><pre class="text" tabindex="0" dir="auto">${JSON.stringify(e.details, null, 2)}</pre>`}`;
}

export const view = {
  id: 'timeline', title: 'Timeline', question: 'What just happened?', key: '4', View,
  icon: 'M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 1 0 8 1.8M8 4.8V8l2.4 1.6',
};
