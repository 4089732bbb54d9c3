// The shell of the dashboard: login, navigation, keyboard, and the view of the route.
import { effect, html, render, signal, useEffect, useErrorBoundary, useRef, useState } from './vendor/preact.js';
import { call, exchange, headers, request } from './lib/api.js';
import { MessagePanel } from './lib/item.js';
import { connection, frame, history as totals, problem } from './lib/live.js';
import { Copy, Dialogs, Failure, Spark, Time, Toasts } from './lib/parts.js';
import { go, here, href, level, login, logout, route, session, sessions, token } from './lib/session.js';
import { view as locks } from './views/locks.js';
import { dead, queues } from './views/queues.js';
import { attention, team } from './views/team.js';
import { conversations, timeline } from './views/timeline.js';
import { view as work } from './views/work.js';

// The views in the order of the navigation. A view is {id, title, question, key, icon, View, mark}:
// View gets {id, query} of the route, and mark(frame) returns {n, kind} for the navigation.
export const views = [attention, team, queues, timeline, conversations, dead, locks, work];

const help = signal(false);

function App() {
  if (!token.value) return html`<${Login} />`;
  const { view: id, query } = route.value;
  const view = views.find((v) => v.id === id) || views[0];
  const [kind, opened] = (query.open || '').split(/:(.*)/s);
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById('main').focus(); }}>
      Skip to the content</a>
    <div class="shell">
      <${Side} view=${view} />
      <main id="main" tabindex="-1">
        <header class="bar"><h1>${view.title}</h1><p>${view.question}</p><${Jump} key=${view.id} /></header>
        <${Banner} />
        <div class="stage">
          <section class=${'view ' + view.id} data-view=${view.id} aria-label=${view.title} key=${view.id + session.value}>
            <${Guarded} view=${view} /></section>
          ${kind === 'message' && html`<${MessagePanel} key=${opened + session.value} id=${opened} onClose=${() => go(here({ open: '' }))} />`}
        </div>
      </main>
    </div>
    <${Dialogs} /><${Toasts} />${help.value && html`<${Help} />`}`;
}

// Guarded shows the error of a view in place of the view.
function Guarded({ view }) {
  const [error, reset] = useErrorBoundary((e) => console.error(e));
  if (error) return html`<div class="scroll"><${Failure} error=${error} /><button onClick=${reset}>Show the view again</button></div>`;
  return html`<${view.View} id=${route.value.id} query=${route.value.query} />`;
}

function Brand() {
  return html`<p class="brand"><svg viewBox="0 0 32 32" aria-hidden="true"><path d="M7 10h6l6 12h6M7 22h6l6-12h6" /></svg> brokerd</p>`;
}

function Side({ view }) {
  return html`<aside class="side" aria-label="Navigation">
    <${Brand} />
    <${Sessions} />
    <nav aria-label="Views">${views.map((v) => html`<a key=${v.id} href=${href(v.id)} title=${`${v.title}: ${v.question}`}
        aria-current=${v === view ? 'page' : undefined}>
      <svg viewBox="0 0 16 16" aria-hidden="true"><path d=${v.icon} /></svg><span class="label">${v.title}</span>
      <${Mark} view=${v} /><kbd aria-hidden="true">${v.key}</kbd></a>`)}</nav>
    <div class="foot"><${Rates} /><${Connection} />
      <p class="who"><span>${level}</span>
        <button class="plain" onClick=${() => { help.value = true; }} title="Keys (?)" aria-label="Keys">?</button>
        <button class="plain" onClick=${signOut}>Sign out</button></p></div>
  </aside>`;
}

// suggestions returns the objects of the frame whose names match a text.
function suggestions(text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return [];
  const all = [];
  const add = (kind, name, link) => all.push({ kind, name, link });
  if (/^\d+$|^[0-9a-f]{8}-[0-9a-f-]{27}$/.test(wanted)) add('message', wanted, here({ q: '', open: 'message:' + wanted }));
  for (const agent of frame.value?.agents || []) {
    if (agent.name.toLowerCase().includes(wanted)) add('agent', agent.name, href('team', agent.name));
  }
  for (const { mailbox } of frame.value?.mailboxes || []) {
    if (mailbox.toLowerCase().includes(wanted)) add('mailbox', mailbox, href('queues', mailbox));
  }
  return all.slice(0, 8);
}

// focusList moves the focus to the first list of the view.
const focusList = () => document.querySelector('.view .table, .view > .scroll')?.focus();

// Jump is the search field of the page. It filters the view by the query q, and offers the agents,
// mailboxes and messages that match.
function Jump() {
  const [text, setText] = useState(route.value.query.q || '');
  const [open, setOpen] = useState(false);
  const [chosen, setChosen] = useState(-1);
  const input = useRef(null);
  const found = open ? suggestions(text) : [];
  const { q = '' } = route.value.query;
  useEffect(() => { if (q !== text.trim()) setText(q); }, [q]);

  function type(value) {
    setText(value);
    setChosen(-1);
    setOpen(true);
    go(here({ q: value.trim() }), true);
  }
  function follow(link) {
    setText('');
    setOpen(false);
    input.current.blur();
    go(link);
  }
  function onKeyDown(event) {
    const only = found.length === 1;
    if (event.key === 'ArrowDown') setChosen(Math.min(found.length - 1, chosen + 1));
    else if (event.key === 'ArrowUp') setChosen(Math.max(-1, chosen - 1));
    else if (event.key === 'Enter' && found[only ? 0 : chosen]) follow(found[only ? 0 : chosen].link);
    else if (event.key === 'Enter') {
      setOpen(false);
      focusList();
    } else if (event.key === 'Escape') {
      text ? type('') : input.current.blur();
      setOpen(false);
    } else return;
    event.preventDefault();
  }
  return html`<div class="jump" role="search">
    <input class="search" type="search" placeholder="Filter this view, or find an agent…  /" aria-label="Search" ref=${input} value=${text}
      role="combobox" aria-expanded=${found.length > 0} aria-controls="jump-list" aria-autocomplete="list"
      aria-activedescendant=${found[chosen] ? 'jump-' + chosen : undefined} spellcheck=${false} autocomplete="off"
      onInput=${(event) => type(event.currentTarget.value)} onKeyDown=${onKeyDown} onBlur=${() => setOpen(false)} />
    <ul id="jump-list" role="listbox" aria-label="Suggestions" hidden=${!found.length}>${found.map((item, i) => html`
      <li key=${item.link} id=${'jump-' + i} role="option" aria-selected=${i === chosen}
        onMouseDown=${(event) => { event.preventDefault(); follow(item.link); }}>
        <span class="dim">${item.kind}</span> <bdi>${item.name}</bdi></li>`)}</ul>
  </div>`;
}

// Mark shows the number that a view has for the navigation.
function Mark({ view }) {
  const mark = frame.value && view.mark?.(frame.value);
  if (!mark || !mark.n) return null;
  return html`<span class=${'mark ' + (mark.kind || '')}>${mark.n > 999 ? '999+' : mark.n}</span>`;
}

function Sessions() {
  const read = () => call('GET', '/v1/sessions?page_size=1000').then((answer) => { sessions.value = answer.sessions; }, () => {});
  useEffect(() => { read(); }, [token.value]);
  const names = sessions.value.map((s) => s.name);
  if (!names.includes(session.value)) names.unshift(session.value);
  return html`<label class="session"><span class="hidden">Session</span>
    <select value=${session.value} aria-label="Session" onFocus=${read} onChange=${(event) => {
      session.value = event.currentTarget.value;
      go(href(route.value.view));
    }}>${names.map((name) => html`<option key=${name} value=${name} selected=${name === session.value}>${name}</option>`)}</select>
  </label>`;
}

const series = [['sent_rate', 'sent'], ['received_rate', 'received'], ['processed_rate', 'processed']];

function Rates() {
  return html`<div class="rates">${series.map(([field, title]) => {
    const values = totals.value.map((t) => t[field]);
    const last = values.at(-1) || 0;
    return html`<p key=${field}><span>${title}</span><${Spark} values=${values} label=${`${title} per second, last minute`} />
      <b>${last.toLocaleString('en', { maximumFractionDigits: last < 10 ? 1 : 0 })}<i>/s</i></b></p>`;
  })}</div>`;
}

const connectionWords = { live: 'live', connecting: 'connecting', broken: 'connection broken' };

function Connection() {
  const state = connection.value;
  return html`<p class=${'connection ' + state} data-connection=${state}><i aria-hidden="true"></i>${connectionWords[state]}
    ${state === 'live' && frame.value && html`<span class="dim"> rev ${frame.value.revision}</span>`}</p>`;
}

function Banner() {
  if (connection.value === 'broken') {
    return html`<p class="banner bad" role="status" data-banner="broken"><b>Connection broken:</b> ${problem.value?.message}.
      ${frame.value ? html` The page shows the state of <${Time} at=${frame.value.time} /> and tries again every second.` :
        ' The page tries again every second.'}</p>`;
  }
  if (frame.value?.closed) {
    return html`<p class="banner" role="status" data-banner="closed">This session is closed: nothing in it changes.</p>`;
  }
  return null;
}

const keys = [
  ['1 … 8', 'open a view'], ['/', 'search'], ['↓', 'go to the list'], ['↑ ↓', 'choose a row'], ['Enter', 'open the row'],
  ['← →', 'close or open a folder'], ['Space', 'select the row'], ['Esc', 'close the panel or the search'], ['?', 'show these keys'],
];

function Help() {
  const dialog = useRef(null);
  useEffect(() => { dialog.current.showModal(); }, []);
  return html`<dialog ref=${dialog} aria-labelledby="help-title" onClose=${() => { help.value = false; }}>
    <h2 id="help-title">Keys</h2>
    <dl class="facts">${keys.map(([key, text]) => html`<div class="fact" key=${key}><dt><kbd>${key}</kbd></dt><dd>${text}</dd></div>`)}</dl>
    <footer><button class="primary" autofocus onClick=${() => dialog.current.close()}>Close</button></footer>
  </dialog>`;
}

const exchanging = signal(false);
const refused = signal(null);
// the user has signed out
const left = signal(false);

function Login() {
  return html`<main class="login" data-view="login">
    <${Brand} />
    ${exchanging.value ? html`<p>Signing in…</p>` : html`
      <h1>${left.value ? 'You are signed out.' : 'Open the dashboard with a link'}</h1>
      <${Failure} error=${refused.value} />
      <p>On the machine of the broker, run this command and open the link that it prints. A link works
        once, within two minutes.</p>
      <${Copy} text="brokerctl dashboard --open" />
      <p class="dim">With <code>--observer</code>, the link only permits reading.</p>`}
  </main>`;
}

// signIn exchanges the secret of a link, which is in the hash of /login.
async function signIn() {
  const secret = location.hash.slice(1);
  history.replaceState(null, '', '/' + (secret && !secret.startsWith('/') ? '' : location.hash));
  if (!secret || secret.startsWith('/')) return;
  exchanging.value = true;
  try {
    login(await exchange(secret));
    go(href('attention'), true);
  } catch (error) {
    refused.value = error;
  }
  exchanging.value = false;
}

// signOut drops the token in all tabs, and ends it at the broker.
async function signOut() {
  const ended = request('POST', '/v1/logout', { headers: headers(), keepalive: true });
  refused.value = null;
  left.value = true;
  logout();
  try {
    await ended;
  } catch (error) {
    // the token had ended before
    if (error.status === 401) return;
    error.message = 'You are signed out here, but the broker has not ended the token: ' + error.message;
    refused.value = error;
  }
}

addEventListener('keydown', (event) => {
  const typing = event.target.closest('input, textarea, select') || document.querySelector('dialog[open]');
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || typing || !token.value) return;
  const view = views.find((v) => v.key === event.key);
  const outside = !event.target.closest('main') || event.target.id === 'main';
  if (view) go(href(view.id));
  else if (event.key === '/') document.querySelector('.jump input').select();
  else if (event.key === 'ArrowDown' && outside) focusList();
  else if (event.key === '?') help.value = true;
  else if (event.key === 'Escape' && route.value.query.open) go(here({ open: '' }));
  else if (event.key === 'Escape' && route.value.id) go(href(route.value.view, '', route.value.query));
  else return;
  event.preventDefault();
});

effect(() => {
  const count = frame.value?.findings.filter((f) => f.severity !== 'info').length;
  const view = views.find((v) => v.id === route.value.view) || views[0];
  document.title = (count ? `(${count}) ` : '') + (token.value ? view.title + ' · ' : '') + 'brokerd';
});

if (location.pathname === '/login') signIn();
render(html`<${App} />`, document.getElementById('app'));
