// The parts that views are made of: names, times, panels, buttons that change something, and tables.
import { effect, html, signal, useEffect, useLayoutEffect, useRef, useState } from '../vendor/preact.js';
import { now } from './live.js';
import { canAct, here, href, route, session, token } from './session.js';

// span returns a number of milliseconds in words, such as 3h 12m.
export function span(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return seconds + 's';
  if (seconds < 3600) return Math.floor(seconds / 60) + 'm' + (seconds < 600 ? ` ${seconds % 60}s` : '');
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
  return ms > 0 ? span(ms) + ' ago' : 'in ' + span(-ms);
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
  const shown = html`<bdi>${text || (kind === 'mailbox' && name === 'system' ? 'operator' : name)}</bdi>`;
  if (!places[kind] || name === 'system') return html`<span class="name" title=${name}>${shown}</span>`;
  return html`<a class="name" href=${places[kind](name)} title=${name} data-name=${kind + ':' + name}
    onClick=${(event) => event.stopPropagation()}>${shown}</a>`;
}

// Badge shows a short text; kind is good, warn, bad, accent or dim.
export function Badge({ kind = 'dim', text }) {
  return html`<span class=${'badge ' + kind}><bdi>${text}</bdi></span>`;
}

// stateKinds are the kinds of the badges of states, severities and health.
const stateKinds = {
  ready: 'accent', claimed: 'good', blocked: 'warn', failed: 'bad', open: 'accent', revising: 'warn', escalated: 'bad',
  acknowledged: 'warn', pending: 'accent', high: 'warn', critical: 'bad', held: 'good', contested: 'warn', late: 'warn',
  degraded: 'warn', acked: 'good', dead: 'bad', halted: 'warn', busy: 'good', overdue: 'bad',
};

// State shows a state as a badge.
export function State({ of, text = of }) {
  return html`<${Badge} kind=${stateKinds[of]} text=${text} />`;
}

export function Empty({ text }) {
  return html`<p class="empty">${text}${route.value.query.q && ' The search filters only this view.'}</p>`;
}

// Failure shows the error of a call.
export function Failure({ error }) {
  return error && html`<p class="failure" role="alert"><b>${error.reason || error.code || 'ERROR'}</b> ${error.message}</p>`;
}

// Panel shows the opened item beside the view, or the error of its call. Escape closes it.
export function Panel({ title, error, onClose, children }) {
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
    <div class="content" tabindex="0" role="region" aria-label="Details">
      <${Failure} error=${error} />${children}</div>
  </aside>`;
}

// Copy shows a text, such as a command, and copies it.
export function Copy({ text }) {
  const [done, setDone] = useState(false);
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
      setTimeout(() => setDone(false), 1500);
    } catch {
      toast('The browser refuses to copy. Select the text.', 'bad');
    }
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

// useSelected subscribes a component to a value that is computed from signals. The component
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

// the action that waits for its confirmation or its fields, with a number
const dialog = signal(null);
const toasts = signal([]);
let number = 0;

// A dialog does not remain for another session or another login.
effect(() => {
  void [session.value, token.value];
  dialog.value = null;
});

// toast shows a text for some seconds; kind is good or bad.
function toast(text, kind = 'good') {
  const id = ++number;
  toasts.value = [...toasts.value, { id, text, kind }];
  setTimeout(() => { toasts.value = toasts.value.filter((t) => t.id !== id); }, kind === 'bad' ? 12e3 : 5e3);
}

export function Toasts() {
  return html`<div class="toasts" role="status">${toasts.value.map(({ id, text, kind }) => html`
    <p key=${id} class=${kind} dir="auto">${text}</p>`)}</div>`;
}

// Filter is a field whose text has an effect after Enter, or when it loses the focus. Frames that arrive
// meanwhile do not change what the user types.
export function Filter({ value, onChange, ...props }) {
  const [typed, setTyped] = useState(null);
  return html`<input value=${typed ?? value ?? ''} autocomplete="off" spellcheck=${false} ...${props}
    onInput=${(event) => setTyped(event.currentTarget.value)}
    onChange=${(event) => { onChange(event); setTyped(null); }} />`;
}

// Action is a button that calls run(values); observers do not see it. With confirm or fields, a dialog
// comes first, under the heading title. confirm is a text, or an async function that returns one, such
// as the number of the objects concerned. A field is {name, label, required, kind, options, value}; its
// kind is text, area, number, check or select, whose options are texts or {value, label}. The dialog
// shows a failure of run. Afterwards a message shows the text that run returns, or "done". If the button
// is removed because it has done its work, the part of the page around it gets the focus.
export function Action({ label, title = label, name, danger, confirm, fields, run, primary }) {
  const [busy, setBusy] = useState(false);
  // of the page, around the button, after it was pressed
  const part = useRef(null);
  useEffect(() => () => { if (document.activeElement === document.body) part.current?.focus(); }, []);
  if (!canAct.value) return null;
  async function click(event) {
    event.stopPropagation();
    if (busy) return;
    const from = event.currentTarget;
    part.current = from.closest('[tabindex]');
    if (confirm || fields?.length) {
      dialog.value = { label, title, danger, confirm, fields, run, from, part: part.current, key: ++number };
      return;
    }
    setBusy(true);
    try {
      toast(await run({}) || `${label}: done`);
    } catch (error) {
      toast(`${label}: ${error.message}`, 'bad');
    }
    setBusy(false);
  }
  const kind = danger ? 'danger' : primary ? 'primary' : '';
  return html`<button class=${'action ' + kind} aria-disabled=${busy} onClick=${click}
    data-action=${name || label.toLowerCase().replace(/[^a-z0-9]+/g, '-')}>${label}</button>`;
}

// Dialogs shows the dialog of the action that waits.
export function Dialogs() {
  const action = dialog.value;
  return action && html`<${Dialog} key=${action.key} action=${action} />`;
}

function Dialog({ action }) {
  const { label, title, danger, confirm, fields = [], run, from, part } = action;
  const element = useRef(null);
  const [text, setText] = useState(typeof confirm === 'string' ? confirm : '');
  const [state, setState] = useState({ busy: typeof confirm === 'function', error: null });

  useEffect(() => {
    element.current.showModal();
    if (typeof confirm !== 'function') return;
    confirm().then(
      (answer) => { setText(answer); setState({ busy: false, error: null }); },
      (error) => setState({ busy: true, error }));
  }, []);

  function close() {
    // the button has the focus again
    element.current?.close();
    if (!from.isConnected) part?.focus();
    if (dialog.value === action) dialog.value = null;
  }
  async function submit(event) {
    event.preventDefault();
    if (state.busy) return;
    const wrong = event.currentTarget.querySelector(':invalid');
    if (wrong) {
      wrong.focus();
      const reason = wrong.closest('label').firstChild.firstChild.textContent;
      setState({ busy: false, error: { reason, message: wrong.validationMessage } });
      return;
    }
    const form = new FormData(event.currentTarget);
    const values = {};
    for (const { name, kind } of fields) {
      const value = form.get(name);
      values[name] = kind === 'check' ? value !== null : kind === 'number' ? Number(value) : value ?? '';
    }
    setState({ busy: true, error: null });
    try {
      const answer = await run(values);
      close();
      toast(answer || `${label}: done`);
    } catch (error) {
      if (dialog.value === action) setState({ busy: false, error });
      // the dialog was closed meanwhile
      else toast(`${label}: ${error.message}`, 'bad');
    }
  }
  return html`<dialog ref=${element} aria-labelledby="dialog-title" onClose=${close}
      onKeyDown=${(event) => event.stopPropagation()}>
    <form noValidate onSubmit=${submit}>
      <h2 id="dialog-title" dir="auto">${title}</h2>
      ${text && html`<p dir="auto">${text}</p>`}
      ${fields.map((field) => html`<${Field} key=${field.name} ...${field} />`)}
      <${Failure} error=${state.error} />
      <footer>
        <button type="button" onClick=${close}>Back</button>
        <button type="submit" class=${danger ? 'danger' : 'primary'} aria-disabled=${state.busy}
          data-confirm="yes">${label}</button>
      </footer>
    </form>
  </dialog>`;
}

// Field is an input of a dialog. suggest returns values that the user may mean, for kind text.
function Field({ name, label, required, kind = 'text', options = [], value = '', suggest }) {
  const shared = { name, required, 'data-field': name };
  if (kind === 'check') {
    return html`<label class="check"><input type="checkbox" ...${shared} defaultChecked=${!!value} /> ${label}</label>`;
  }
  let control = html`<input type=${kind} ...${shared} defaultValue=${value} autocomplete="off" dir="auto" list=${suggest && 'suggested'} />
    ${suggest && html`<datalist id="suggested">${suggest().map((one) => html`<option value=${one} />`)}</datalist>`}`;
  if (kind === 'area') control = html`<textarea rows="4" ...${shared} defaultValue=${value} dir="auto"></textarea>`;
  if (kind === 'select') {
    control = html`<select ...${shared}>${options.map((option) => {
      const one = typeof option === 'object' ? option : { value: option, label: option };
      return html`<option key=${one.value} value=${one.value} selected=${one.value === value}>${one.label}</option>`;
    })}</select>`;
  }
  return html`<label class="field"><span>${label} <i>${required ? 'required' : 'optional'}</i></span>${control}</label>`;
}

// as in style.css
const rowHeight = 34;
// the width below which columns that are wide are absent
const narrow = 640;

let tables = 0;

// VirtualTable shows rows of one height, of which only the visible ones are in the document.
//
// columns: {key, title, render(row), width, numeric, wide, sort}. width is a track of a CSS grid; the
// default is an equal share. Columns that are wide are absent in a narrow table. keyOf(row) returns
// the key of a row. selected is the key of the open row; onOpen(row) opens one. select is {keys,
// change}: with it, rows have a checkbox, and change(keys) gets the Set of the new keys. sort is the
// key of the column by which the rows are sorted; onSort(key) is called by the titles of columns with
// sort. onEnd is called when the last rows are visible, and onScroll with the distance to the top.
// onFold makes the table a tree: its rows have a level, those that contain rows have expanded, and
// onFold(row) changes it. With recycle, an element shows another row when rows move: for rows that
// move often and have no button.
export function VirtualTable({
  rows, columns, keyOf, selected, onOpen, select, label, sort, onSort, onEnd, onScroll, onFold, rowClass,
  recycle, empty,
}) {
  const grid = useRef(null);
  // as measured
  const size = useRef({ top: 0, height: 0, width: 0 });
  // the key of the row under the pointer
  const pressed = useRef(null);
  const [id] = useState(() => 'table-' + ++tables);
  const [view, setView] = useState({ from: 0, count: 40, wide: innerWidth > 900 });
  const [active, setActive] = useState(null);

  // place decides which rows are visible, without reading the layout, which a change of rows makes
  // expensive.
  function place() {
    const { top, height, width } = size.current;
    const from = Math.max(0, Math.floor(top / rowHeight) - 5);
    const count = Math.ceil(height / rowHeight) + 10;
    const wide = width >= narrow;
    setView((old) => old.from === from && old.count === count && old.wide === wide ? old : { from, count, wide });
    if (onEnd && height > 0 && from + count >= rows.length) onEnd();
  }
  const placed = useRef(place);
  placed.current = place;
  function scrolled() {
    // the event of a table that was removed
    if (!grid.current) return;
    size.current.top = grid.current.scrollTop;
    place();
  }
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([{ contentRect }]) => {
      size.current.height = contentRect.height;
      size.current.width = contentRect.width;
      placed.current();
    });
    observer.observe(grid.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(place, [rows.length]);

  function move(index) {
    if (!rows.length) return;
    const to = Math.min(rows.length - 1, Math.max(0, index));
    const element = grid.current;
    const top = to * rowHeight;
    // without the header
    const room = element.clientHeight - 2 * rowHeight;
    setActive(keyOf(rows[to]));
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top > element.scrollTop + room) element.scrollTop = top - room;
    scrolled();
  }
  function onKeyDown(event) {
    if (event.target !== grid.current || event.altKey || event.ctrlKey || event.metaKey) return;
    const at = rows.findIndex((row) => keyOf(row) === active);
    const page = Math.max(1, Math.floor(grid.current.clientHeight / rowHeight) - 2);
    const steps = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: rows.length };
    if (event.key in steps) move(steps[event.key]);
    else if (at >= 0 && onFold && /^Arrow(Left|Right)$/.test(event.key)) fold(at, event.key === 'ArrowRight');
    else if (event.key === 'Enter' && at >= 0 && onOpen) onOpen(rows[at]);
    else if (event.key === ' ' && at >= 0 && select) toggle(active);
    else return;
    event.preventDefault();
  }
  // fold opens a row of a tree, or moves to the first row in it. Without open, it closes the row, or
  // moves to the row that it is in.
  function fold(at, open) {
    const { level, expanded } = rows[at];
    if (expanded === !open) onFold(rows[at]);
    else if (expanded) move(at + 1);
    else if (!open && level > 0) move(rows.findLastIndex((row, i) => i < at && row.level < level));
  }
  function toggle(key) {
    const keys = new Set(select.keys);
    keys.delete(key) || keys.add(key);
    select.change(keys);
  }

  const shown = columns.filter((column) => view.wide || !column.wide);
  const tracks = (select ? '34px ' : '') + shown.map((column) => column.width || 'minmax(0, 1fr)').join(' ');
  const style = { gridTemplateColumns: tracks };
  function click(key) {
    const row = rows.find((one) => keyOf(one) === key);
    if (!row) return;
    setActive(key);
    onOpen?.(row);
  }
  const from = Math.min(view.from, Math.max(0, rows.length - view.count));
  const visible = rows.slice(from, from + view.count);
  const all = select && rows.length > 0 && rows.every((row) => select.keys.has(keyOf(row)));
  const activeVisible = visible.some((row) => keyOf(row) === active);
  return html`<div class="table" role=${onFold ? 'treegrid' : 'grid'} tabindex="0" ref=${grid} aria-label=${label} aria-rowcount=${rows.length + 1}
      aria-activedescendant=${activeVisible ? `${id}-${active}` : undefined} onKeyDown=${onKeyDown}
      onScroll=${() => { scrolled(); onScroll?.(size.current.top); }}>
    <div class="titles" role="row" style=${style} aria-rowindex="1">
      ${select && html`<div role="columnheader"><input type="checkbox" aria-label="Select all rows" checked=${all}
        onChange=${() => select.change(new Set(all ? [] : rows.map(keyOf)))} /></div>`}
      ${shown.map((column) => html`<div key=${column.key} role="columnheader" class=${column.numeric && 'numeric'}
          aria-sort=${sort === column.key ? 'descending' : undefined}>
        ${column.sort ? html`<button class="plain" onClick=${() => onSort(column.key)}>${column.title}${
          sort === column.key ? ' ↓' : ''}</button>` : column.title}</div>`)}
    </div>
    ${rows.length === 0 ? empty && html`<${Empty} text=${empty} />` : html`<div role="rowgroup" class="rows" style=${{ height: rows.length * rowHeight + 'px' }}>
      ${visible.map((row, i) => {
        const key = keyOf(row);
        const kinds = [key === selected && 'selected', key === active && 'active', rowClass?.(row)].filter(Boolean);
        return html`<div key=${recycle ? (from + i) % view.count : key} id=${`${id}-${key}`} role="row" data-row=${key} aria-rowindex=${from + i + 2}
            aria-level=${onFold && row.level + 1} aria-expanded=${onFold && row.expanded}
            aria-selected=${key === selected} class=${kinds.join(' ')}
            style=${{ ...style, transform: `translateY(${(from + i) * rowHeight}px)` }}
            onPointerDown=${() => { pressed.current = key; }} onClick=${(event) => click(event.detail ? pressed.current : key)}>
          ${select && html`<div role="gridcell" onClick=${(event) => event.stopPropagation()}>
            <input type="checkbox" tabindex="-1" aria-label=${'Select ' + key} checked=${select.keys.has(key)}
              onChange=${() => toggle(key)} /></div>`}
          ${shown.map((column) => html`<div key=${column.key} role="gridcell" dir="auto"
            class=${column.numeric && 'numeric'}>${column.render ? column.render(row) : row[column.key]}</div>`)}
        </div>`;
      })}
    </div>`}
  </div>`;
}
