// Locks and turns: who blocks whom, the tokens, and the locked paths as a tree.
import { html, useMemo, useState } from '../vendor/preact.js';
import { call, pages, rpc, search } from '../lib/api.js';
import { Facts } from '../lib/item.js';
import { frame, useLoaded } from '../lib/live.js';
import {
  Action, Age, Badge, Empty, Failure, matching, Name, Panel, State, Time, useSelected, VirtualTable,
} from '../lib/parts.js';
import { go, href } from '../lib/session.js';

// locks in the tree
const maxLocks = 2000;
// a tree of so many locks starts expanded
const openTree = 200;
const maxTokens = 1000;
// contested tokens whose queues the view loads
const maxQueues = 10;
// blocks, and waiters of a block
const maxShown = 20;

const tokenName = (t) => `${t.type}/${t.scope}`;

// A block is a held lock or token: its fields, {id, name}, and the waiters in the order of the queue.
const lockBlock = (lock) => ({ ...lock, id: 'fence:' + lock.fence, name: lock.paths[0], waiters: [] });
const tokenBlock = (token, waiters = []) =>
  ({ ...token, id: 'token:' + tokenName(token), name: tokenName(token), waiters });

function blocksOf(tickets, held, tokens) {
  const blocks = new Map();
  for (const ticket of tickets) {
    for (const o of ticket.obstacles) {
      if (o.waiting) continue;
      const lock = held.get(o.revision) ?? { ...o, fence: o.revision, paths: [o.resource] };
      const block = blocks.get(o.revision) ?? { ...lockBlock(lock), name: o.resource };
      blocks.set(o.revision, block);
      if (block.waiters.at(-1) !== ticket) block.waiters.push(ticket);
    }
  }
  const first = (block) => Math.min(...block.waiters.map((w) => Date.parse(w.created_at)));
  return [...blocks.values(), ...tokens.filter((t) => t.waiters.length > 0)].sort((a, b) => first(a) - first(b));
}

// filterOf is the filter of the broker that a search becomes if the tree does not have all locks.
function filterOf(text) {
  if (frame.peek()?.agents.some((a) => a.name === text)) return { agent: text };
  return /[/.*]/.test(text) ? { path: text } : {};
}

// take revokes a token, or takes locks from their owners, and says which agent has them now. With a
// ticket, it ends the wait of that request.
export async function take(request) {
  if (request.type) {
    await rpc('TokenService/RevokeToken', request);
    if (request.ticket) return leftQueue;
    const { token } = await rpc('TokenService/GetToken', { type: request.type, scope: request.scope });
    return freed('Token ' + tokenName(token), token.agent);
  }
  const { released } = await rpc('LockService/ForceReleaseLocks', request);
  const paths = released.flatMap((lock) => lock.paths);
  if (!paths.length) return leftQueue;
  const { locks } = await call('GET', '/v1/locks' + search({ path: paths[0] }));
  return freed('Lock ' + paths.join(', '), locks.find((lock) => lock.paths.includes(paths[0]))?.agent);
}

const leftQueue = 'The request has left the queue';
const freed = (what, agent) => `${what} freed` + (agent ? `; ${agent} has it now` : '');

async function load(signal, filter) {
  const get = (path, query) => call('GET', path + search(query), undefined, { signal });
  const token = ({ type, scope }) => rpc('TokenService/GetToken', { type, scope }, { signal });
  const [{ tickets }, locks, tokens, queues] = await Promise.all([
    get('/v1/locks', { waiting: true, page_size: 1000 }),
    pages('/v1/locks', filter, 'locks', maxLocks, 2, { signal }),
    pages('/v1/tokens', {}, 'tokens', maxTokens, 1, { signal }),
    get('/v1/tokens', { state: 'contested', page_size: maxQueues }).then((page) => Promise.all(page.tokens.map(token))),
  ]);
  const held = new Map(locks.items.map((l) => [l.fence, l]));
  const contested = queues.map((q) => tokenBlock(q.token, q.tickets));
  return { locks: locks.items, tokens, blocks: blocksOf(tickets, held, contested) };
}

// A row of the table is {id, label, level, own} for a lock or token, or {id, label, level, count, waiting,
// expanded} for a directory.
const byLabel = (a, b) => (a.label > b.label) - (a.label < b.label);

function treeOf(locks) {
  const directory = (id, label) => ({ id, label, count: 0, waiting: 0, directories: new Map(), leaves: [] });
  const root = directory('Paths', 'Paths');
  for (const lock of locks) {
    for (const path of lock.paths) {
      const segments = path.split('/');
      const label = segments.pop() || '(all below)';
      let at = root;
      for (const segment of ['', ...segments]) {
        if (segment) {
          const id = at === root ? segment + '/' : at.id + segment + '/';
          const next = at.directories.get(segment) ?? directory(id, segment + '/');
          at.directories.set(segment, next);
          at = next;
        }
        at.count++;
        at.waiting += lock.waiting;
      }
      at.leaves.push({ id: `fence:${lock.fence}`, key: `${lock.fence}:${path}`, label, own: lock });
    }
  }
  return root;
}

// addRows adds the visible rows of a directory. One whose only content is a directory shares its row.
function addRows(rows, directory, level, isOpen) {
  let at = directory;
  let label = at.label;
  while (level > 0 && at.leaves.length === 0 && at.directories.size === 1) {
    [at] = at.directories.values();
    label += at.label;
  }
  const expanded = isOpen(at);
  rows.push({ ...at, key: at.id, label, level, expanded });
  if (!expanded) return;
  for (const next of [...at.directories.values()].sort(byLabel)) addRows(rows, next, level + 1, isOpen);
  for (const leaf of at.leaves.sort(byLabel)) rows.push({ ...leaf, level: level + 1 });
}

const keyOf = (row) => encodeURI(row.key);
const show = (id) => go(href('locks', id));

function View({ id, query: { q = '' } }) {
  const [toggled, setToggled] = useState(() => new Map());
  const total = useSelected(() => frame.value?.totals.locks ?? 0);
  const filter = total > maxLocks ? filterOf(q) : {};
  const { data, error, reload } = useLoaded('locks', (signal) => load(signal, filter), [filter.agent, filter.path]);
  const rows = useMemo(() => {
    if (!data) return [];
    const all = [];
    const isOpen = (at) => toggled.get(at.id) ?? (at.top || at.waiting > 0 || data.locks.length <= openTree);
    const leaves = matching(data.tokens.items, q, (t) => [tokenName(t), t.agent, t.reason])
      .map((t) => ({ id: 'token:' + tokenName(t), key: tokenName(t), label: tokenName(t), own: t }));
    const tokens = { id: 'Tokens', label: 'Tokens', top: true, count: leaves.length, directories: new Map(), leaves };
    if (leaves.length > 0) addRows(all, tokens, 0, isOpen);
    const locks = filter.path ? data.locks : matching(data.locks, q, (l) => [...l.paths, l.agent, l.holder, l.reason]);
    if (locks.length > 0) addRows(all, { ...treeOf(locks), top: true }, 0, isOpen);
    return all;
  }, [data, q, toggled, filter.path]);
  const blocks = matching(data?.blocks ?? [], q, (b) => [b, ...b.waiters].flatMap((one) => [one.name, one.agent, one.reason]));
  const open = (row) => row.own ? show(row.id) : setToggled(new Map(toggled).set(row.id, !row.expanded));
  return html`
    <${Failure} error=${error} />
    ${data && html`<div class="split">
      <div class="locks-main">
        <div class="locks-blocks" tabindex="0" role="region" aria-label="Who blocks whom">
          ${blocks.length === 0 && html`<p class="dim">${data.blocks.length ? 'No such request waits.' : 'No request waits for a lock or a token.'}</p>`}
          ${blocks.slice(0, maxShown).map((b) => html`<${Block} key=${b.id} block=${b} reload=${reload} />`)}
          ${blocks.length > maxShown && html`<p class="dim">and ${blocks.length - maxShown} more</p>`}
        </div>
        <${VirtualTable} rows=${rows} columns=${columns(open)} keyOf=${keyOf}
          selected=${id && rows.filter((r) => r.own && r.id === id).map(keyOf)[0]} onOpen=${open} onFold=${open} label="Locks and turns"
          empty=${q ? `No lock or token contains "${q}".` : 'There are no locks and tokens.'} />
        ${total > data.locks.length && !filter.path && !filter.agent && html`<p class="locks-more dim">
          The tree has the oldest ${data.locks.length} of ${total} locks. Search for an agent's name or a path, such as
          src/, to see its locks.</p>`}
      </div>
      ${id && html`<${Item} key=${id} id=${id} data=${data} reload=${reload} />`}
    </div>`}`;
}

const away = ['late', 'degraded', 'failed'];
const agentOf = ({ agent }) => frame.value?.agents.find((a) => a.name === agent);

// Heard shows the last call of an owner that is silent.
function Heard({ of }) {
  const { state, silent_since: at } = agentOf(of) ?? {};
  return at && html`<${Badge} kind=${away.includes(state) ? 'warn' : 'dim'} text=${html`last call <${Time} at=${at} />`} />`;
}

// Holder shows the owner of a grant or a request, and whether the agent is late or has failed.
function Holder({ of }) {
  const role = of.passed_to_role;
  if (!of.agent) return role && html`<${Name} kind="role" name=${role} text=${'role:' + role} />`;
  const state = agentOf(of)?.state;
  return html`<${Name} kind="agent" name=${of.agent} />${of.holder && html` <bdi class="dim">${of.holder}</bdi>`}
    ${away.includes(state) && html` <${State} of=${state} />`}`;
}

// Take is the button that takes a lock or a token from its owner, or ends the wait of a request.
function Take({ block: b, label = b.type ? 'Revoke' : 'Force release', reload }) {
  async function run({ reason }) {
    const said = await take({ ...b.type ? { type: b.type, scope: b.scope, ticket: b.ticket } : { revisions: [b.fence ?? b.ticket] }, reason });
    reload();
    return said;
  }
  const whose = b.agent || 'role:' + b.passed_to_role;
  return html`<${Action} label=${label} title=${b.ticket ? `${label} of ${whose}` : `${label} ${b.name}`} danger run=${run}
    fields=${[{ name: 'reason', label: 'Reason, for ' + whose, required: true }]}
    confirm=${b.ticket ? `The request of ${whose} leaves the queue.`
      : `${whose} loses ${b.paths?.join(', ') ?? b.name}. The next request in the queue gets it.`} />`;
}

function Block({ block: b, reload }) {
  return html`
    <article class="locks-block" data-block=${b.id}>
      <header>
        <h2><span class="dim">${b.type ? 'token' : 'lock'}</span>
          ${' '}<a class="name" href=${href('locks', b.id)}><bdi>${b.name}</bdi></a></h2>
        <span class="locks-held"><span class="dim">held by</span> <${Holder} of=${b} />
          <span class="dim">${b.granted_at && html` for <${Age} since=${b.granted_at} />,`} ends <${Time} at=${b.held_until} /></span> <${Heard} of=${b} /></span>
        <${Take} block=${b} reload=${reload} />
      </header>
      ${b.reason && html`<p dir="auto"><span class="dim">Reason:</span> <bdi>${b.reason}</bdi></p>`}
      <${Waiters} of=${b} />
    </article>`;
}

// Waiters lists the requests that wait for a block. With reload, an operator can end the wait of one.
function Waiters({ of, reload }) {
  const behind = (w) => [...new Set(w.obstacles?.filter((o) => o.waiting).map((o) => o.agent))].join(', ');
  return html`
    <ol class="locks-waiters">${of.waiters.slice(0, maxShown).map((w) => html`
      <li key=${w.ticket}><${Holder} of=${w} /> <span class="dim">waits <${Age} since=${w.created_at} />
        ${behind(w) && html` behind <bdi>${behind(w)}</bdi>`}, reason:${!w.reason && ' none'}</span> <bdi>${w.reason}</bdi>
        ${' '}${reload && html`<${Take} block=${{ type: of.type, scope: of.scope, ...w }} label="End the wait" reload=${reload} />`}</li>`)}
    </ol>
    ${of.waiters.length > maxShown && html`<p class="dim">and ${of.waiters.length - maxShown} more</p>`}`;
}

const columns = (open) => [
  { key: 'path', title: 'Path or token', width: 'minmax(130px, 3fr)', render: (r) => html`
    <span style=${{ paddingInlineStart: `${r.level * 14}px` }}>
      ${r.own ? html`<bdi title=${r.label}>${r.label}</bdi>` : html`
      <button class="plain locks-toggle" tabindex="-1" aria-expanded=${r.expanded} aria-label=${r.label}
        onClick=${(event) => { event.stopPropagation(); open(r); }}>${r.expanded ? '▾' : '▸'}</button>
      <bdi>${r.label}</bdi> <span class="dim">${r.count}</span>`}</span>` },
  { key: 'agent', title: 'Agent', width: 'minmax(90px, 2fr)', render: (r) => r.own && html`<${Holder} of=${r.own} />` },
  { key: 'state', title: 'State', width: '100px', wide: true, render: ({ own }) => own && html`
    <${State} of=${own.state ?? (own.waiting ? 'contested' : 'held')} />${own.mode === 'shared' && ' shared'}` },
  { key: 'waiting', title: 'Waiting', width: '72px', numeric: true, render: (r) => (r.own ?? r).waiting || '' },
  { key: 'age', title: 'For', width: '70px', render: (r) => html`<${Age} since=${r.own?.granted_at} />` },
  { key: 'left', title: 'Ends', width: '104px', wide: true, render: (r) => html`<${Time} at=${r.own?.held_until} />` },
  { key: 'fence', title: 'Fence', width: '64px', numeric: true, wide: true, render: (r) => r.own?.fence || '' },
  { key: 'reason', title: 'Reason', width: 'minmax(80px, 2fr)', wide: true, render: (r) => r.own?.reason },
];

// Item is the opened lock, token or path: fence:NUMBER, token:TYPE/SCOPE or lock:PATH.
function Item({ id, data, reload }) {
  const [kind, name = ''] = id.split(/:(.*)/s);
  const loaded = useLoaded(kind !== 'fence' ? id : null, (signal) => {
    const query = search({ path: name, page_size: maxShown });
    if (kind === 'lock') return call('GET', '/v1/locks' + query, undefined, { signal });
    const [type, scope] = name.split(/\/(.*)/s);
    return rpc('TokenService/GetToken', { type, scope }, { signal });
  });
  const locks = (kind === 'lock' ? loaded.data?.locks : data.locks.filter((l) => 'fence:' + l.fence === id)) ?? [];
  const grants = locks.map((l) => data.blocks.find((b) => b.fence === l.fence) ?? lockBlock(l));
  if (kind === 'fence' && !locks.length) grants.push(...data.blocks.filter((b) => b.id === id));
  if (loaded.data?.token) grants.push(tokenBlock(loaded.data.token, loaded.data.tickets));
  const again = () => { reload(); loaded.reload(); };
  return html`
    <${Panel} title=${kind === 'token' ? 'Token ' + name : 'Lock ' + (grants[0]?.name ?? name)} error=${loaded.error} onClose=${() => show('')}>
      ${!loaded.loading && !loaded.error && grants.length === 0 && html`<${Empty} text="No agent holds it now." />`}
      ${grants.map((b) => html`<section key=${b.fence} class="locks-item">
        <p class="actions">${b.fence > 0 && html`<${Take} block=${b} reload=${again} />`}</p>
        <${Facts} of=${{ ...b, id: null, name: null, kind: null, waiters: null, longest_hold: b.longest_hold ?? b.max_hold, max_hold: null }} extra=${{
          agent: b.agent && html`<${Holder} of=${b} />`, holder: null,
        }} />
        <h3>Waiting requests</h3>
        ${b.waiters.length > 0 ? html`<${Waiters} of=${b} reload=${again} />` : 'none'}</section>`)}
    <//>`;
}

export const view = {
  id: 'locks', title: 'Locks and turns', question: 'Who blocks whom?', key: '7', View,
  icon: 'M4 7.2h8v6.3H4zM5.6 7.2V5a2.4 2.4 0 0 1 4.8 0v2.2',
  mark: (f) => ({ n: f.totals.tickets, kind: 'warn' }),
};
