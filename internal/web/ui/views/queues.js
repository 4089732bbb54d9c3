// Queues: the mailboxes of the session, and the messages in each.
import { html, useMemo, useState } from '../vendor/preact.js';
import { call, rpc, search } from '../lib/api.js';
import { frame } from '../lib/live.js';
import { useLoaded } from '../lib/load.js';
import { stateKinds } from '../lib/message.js';
import {
  Action, Age, Badge, Count, Empty, Fact, Failure, Name, Panel, Time, VirtualTable, matching,
} from '../lib/parts.js';
import { go, here, href } from '../lib/route.js';

const pageSize = 1000;

// pages reads pages of a list: `wanted` of them, or fewer if there are no more.
async function pages(path, query, wanted, field, signal) {
  const all = { items: [], more: false };
  let token = '';
  for (let i = 0; i < wanted; i++) {
    const page = await call('GET', path + search({ ...query, page_token: token }), undefined, { signal });
    all.items.push(...page[field]);
    token = page.next_page_token;
    if (!token) break;
  }
  all.more = token !== '';
  return all;
}

// byOrder compares two mailboxes as the broker orders them.
const byOrder = {
  waiting: (a, b) => b.waiting - a.waiting,
  oldest: (a, b) => {
    const [x, y] = [a.oldest_at || '9', b.oldest_at || '9'];
    return x < y ? -1 : x > y ? 1 : 0;
  },
};

// live returns the listed mailboxes with the newest figures of the frame, in order.
function live(listed, current, order) {
  const newest = new Map((current?.mailboxes || []).map((m) => [m.mailbox, m]));
  const all = listed.map((m) => {
    const now = newest.get(m.mailbox);
    newest.delete(m.mailbox);
    return now ? { ...m, waiting: now.waiting, claimed: now.claimed, dead: now.dead, oldest_at: now.oldest } : m;
  });
  for (const m of newest.values()) all.push({ ...m, oldest_at: m.oldest });
  return all.sort(byOrder[order]);
}

// Share draws a number beside the largest one of its column.
function Share({ n, most }) {
  return html`<span class="queues-share"><${Count} n=${n} />
    <i><b style=${{ width: `${most ? Math.max(n ? 2 : 0, 100 * n / most) : 0}%` }}></b></i></span>`;
}

function columns(most) {
  return [
    { key: 'mailbox', title: 'Mailbox', width: 'minmax(120px, 1.4fr)', render: (m) => html`<bdi title=${m.mailbox}>${m.mailbox}</bdi>` },
    { key: 'waiting', title: 'Waiting', width: 'minmax(84px, 1fr)', sort: true, render: (m) => html`<${Share} n=${m.waiting} most=${most} />` },
    { key: 'claimed', title: 'In work', width: '76px', numeric: true, wide: true, render: (m) => html`<${Count} n=${m.claimed} />` },
    {
      key: 'dead', title: 'Dead', width: '64px', numeric: true,
      render: (m) => m.dead ? html`<${Badge} kind="bad" text=${m.dead >= 1000 ? '1,000+' : m.dead} />` : html`<${Count} n=${0} />`,
    },
    { key: 'oldest', title: 'Oldest', width: '92px', numeric: true, sort: true, render: (m) => html`<${Age} since=${m.oldest_at} />` },
  ];
}

function View({ id, query }) {
  const order = query.sort === 'waiting' ? 'waiting' : 'oldest';
  const [wanted, setWanted] = useState(1);
  const { data, error, loading } = useLoaded('mailboxes ' + order, (signal) =>
    pages('/v1/mailboxes', { order, page_size: pageSize }, query.q ? 20 : wanted, 'mailboxes', signal), [wanted, !!query.q]);
  const current = frame.value;
  const rows = useMemo(() => matching(live(data?.items || [], current, order), query.q, (m) => [m.mailbox]),
    [data, current, order, query.q]);
  const most = useMemo(() => rows.reduce((max, m) => Math.max(max, m.waiting), 0), [rows]);
  const shown = useMemo(() => columns(most), [most]);
  const totals = current?.totals;
  return html`
    <${Failure} error=${error} />
    <div class="tools"><span class="dim">${totals && html`<b><${Count} n=${totals.waiting} /></b> wait, <b><${Count} n=${totals.claimed} /></b> in work,
      ${' '}<b><${Count} n=${totals.dead} /></b> dead letters, in <b><${Count} n=${data?.items.length} atLeast=${data?.more} /></b> mailboxes`}</span></div>
    <div class="split">
      <${VirtualTable} label="Mailboxes" rows=${rows} columns=${shown} keyOf=${(m) => m.mailbox} selected=${id} sort=${order} recycle
        onSort=${(key) => go(here({ sort: key === 'oldest' ? '' : key }))} onOpen=${(m) => go(href('queues', m.mailbox, { ...query, open: '' }))}
        onEnd=${() => { if (data?.more) setWanted(Math.ceil(data.items.length / pageSize) + 1); }}
        empty=${!loading && html`<${Empty} text=${query.q ? 'No mailbox has this name.' : 'No mailbox holds a message.'} />`} />
      ${id && html`<${MailboxPanel} key=${id} name=${id} known=${rows.find((m) => m.mailbox === id)}
        onClose=${() => go(href('queues', '', query))} />`}
    </div>`;
}

const messageColumns = [
  { key: 'state', title: 'State', width: '84px', render: ({ delivery: d }) => html`<${Badge} kind=${stateKinds[d.state]} text=${d.state} />` },
  {
    key: 'subject', title: 'Message',
    render: ({ message: m }) => html`<span title=${m.subject}><bdi>${m.subject || m.type}</bdi> <span class="dim">from <bdi>${m.sender}</bdi></span></span>`,
  },
  { key: 'age', title: 'Age', width: '72px', numeric: true, render: ({ message: m }) => html`<${Age} since=${m.created_at} />` },
];

function MailboxPanel({ name, known, onClose }) {
  const [wanted, setWanted] = useState(1);
  const waiting = useLoaded('mailbox ' + name, (signal) =>
    pages('/v1/messages', { box: 'inbox', mailbox: name, page_size: 100 }, wanted, 'items', signal), [wanted]);
  const dead = useLoaded('dead ' + name, (signal) => pages('/v1/dead-letters', { mailbox: name, page_size: 100 }, 1, 'items', signal));
  const rows = [...dead.data?.items || [], ...waiting.data?.items || []];
  const agent = !name.includes(':');
  async function redrive() {
    let redriven = 0;
    let token = '';
    do {
      const answer = await rpc('MessageService/RedriveDeadLetters', { mailbox: name, page_token: token });
      redriven += answer.redriven;
      token = answer.next_page_token;
    } while (token);
    dead.reload();
    return `${redriven} redriven`;
  }
  async function count() {
    const answer = await rpc('MessageService/RedriveDeadLetters', { mailbox: name, dry_run: true });
    return `Redeliver ${answer.at_least ? 'at least ' : ''}${answer.redriven} dead letters of ${name}? Their attempts start again.`;
  }
  return html`<${Panel} title=${name} onClose=${onClose}>
    <${Failure} error=${waiting.error || dead.error} />
    <p class="actions">${known?.dead > 0 && html`<${Action} label="Redrive dead letters" name="redrive" primary confirm=${count} run=${redrive} />`}</p>
    <dl class="facts">
      <${Fact} label="Taken by"><${Name} kind=${agent ? 'agent' : name.split(':')[0]} name=${agent ? name : name.slice(name.indexOf(':') + 1)}
        text=${agent ? name : `${name.split(':')[0]} ${name.slice(name.indexOf(':') + 1)}`} /><//>
      <${Fact} label="Waiting">${known?.waiting > 0 && html`<${Count} n=${known.waiting} />`}<//>
      <${Fact} label="In work">${known?.claimed > 0 && html`<${Count} n=${known.claimed} />`}<//>
      <${Fact} label="Oldest">${known?.oldest_at && html`<${Time} at=${known.oldest_at} />`}<//>
    </dl>
    <div class="queues-messages"><${VirtualTable} label="Messages" rows=${rows} columns=${messageColumns}
      keyOf=${({ message: m, delivery: d }) => m.revision + d.state} onOpen=${({ message: m }) => go(here({ open: 'message:' + m.id }))}
      onEnd=${() => { if (waiting.data?.more) setWanted(Math.floor(waiting.data.items.length / 100) + 1); }}
      empty=${!waiting.loading && html`<${Empty} text="No unfinished message is in this mailbox." />`} /></div>
  <//>`;
}

export const view = {
  id: 'queues', title: 'Queues', question: 'Where does work get old?', key: '3', View,
  icon: 'M2 4h12M2 8h9M2 12h6',
};
