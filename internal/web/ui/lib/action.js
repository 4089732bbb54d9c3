// Buttons that change something, their dialogs, and the short messages that follow.
import { html, signal, useEffect, useRef, useState } from '../vendor/preact.js';
import { canAct } from './session.js';

const dialog = signal(null); // the action that waits for its confirmation or its fields
const toasts = signal([]);
let number = 0;

// toast shows a text for some seconds; kind is good or bad.
export function toast(text, kind = 'good') {
  const id = ++number;
  toasts.value = [...toasts.value, { id, text, kind }];
  setTimeout(() => { toasts.value = toasts.value.filter((t) => t.id !== id); }, kind === 'bad' ? 12e3 : 5e3);
}

export function Toasts() {
  return html`<div class="toasts" role="status">${toasts.value.map(({ id, text, kind }) => html`
    <p key=${id} class=${kind} dir="auto">${text}</p>`)}</div>`;
}

// ask opens the dialog of an action without a button.
export function ask(action) {
  dialog.value = action;
}

// Action is a button that calls run(values); observers do not see it. With confirm or fields, a dialog
// comes first. confirm is a text, or an async function that returns one, such as the number of the
// objects concerned. A field is {name, label, required, kind, options, value}; its kind is text,
// area, number, check or select, whose options are texts or {value, label}. The dialog shows a failure
// of run. Afterwards a message shows the text that run returns, or "done".
export function Action({ label, name, danger, confirm, fields, run, primary }) {
  const [busy, setBusy] = useState(false);
  if (!canAct.value) return null;
  async function click(event) {
    event.stopPropagation();
    if (confirm || fields?.length) return ask({ label, danger, confirm, fields, run });
    setBusy(true);
    try {
      toast(await run({}) || `${label}: done`);
    } catch (error) {
      toast(`${label}: ${error.message}`, 'bad');
    }
    setBusy(false);
  }
  const kind = danger ? 'danger' : primary ? 'primary' : '';
  return html`<button class=${'action ' + kind} disabled=${busy} onClick=${click}
    data-action=${name || label.toLowerCase().replace(/[^a-z0-9]+/g, '-')}>${label}</button>`;
}

// Dialogs shows the dialog of the action that waits.
export function Dialogs() {
  const action = dialog.value;
  return action && html`<${Dialog} key=${number} action=${action} />`;
}

function Dialog({ action }) {
  const { label, danger, confirm, fields = [], run } = action;
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
    element.current?.close();
    if (dialog.value === action) dialog.value = null;
  }
  async function submit(event) {
    event.preventDefault();
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
      setState({ busy: false, error });
    }
  }
  return html`<dialog ref=${element} aria-labelledby="dialog-title" onClose=${close}
      onKeyDown=${(event) => event.stopPropagation()}>
    <form onSubmit=${submit}>
      <h2 id="dialog-title">${label}</h2>
      ${text && html`<p dir="auto">${text}</p>`}
      ${fields.map((field) => html`<${Field} key=${field.name} ...${field} />`)}
      ${state.error && html`<p class="failure" role="alert"><b>${state.error.reason}</b> ${state.error.message}</p>`}
      <footer>
        <button type="button" onClick=${close}>Back</button>
        <button type="submit" class=${danger ? 'danger' : 'primary'} disabled=${state.busy}
          data-confirm="yes">${label}</button>
      </footer>
    </form>
  </dialog>`;
}

function Field({ name, label, required, kind = 'text', options = [], value = '' }) {
  const shared = { name, required, 'data-field': name };
  if (kind === 'check') {
    return html`<label class="check"><input type="checkbox" ...${shared} defaultChecked=${!!value} /> ${label}</label>`;
  }
  let control = html`<input type=${kind} ...${shared} defaultValue=${value} autocomplete="off" dir="auto" />`;
  if (kind === 'area') control = html`<textarea rows="4" ...${shared} defaultValue=${value} dir="auto"></textarea>`;
  if (kind === 'select') {
    control = html`<select ...${shared}>${options.map((option) => {
      const one = typeof option === 'object' ? option : { value: option, label: option };
      return html`<option key=${one.value} value=${one.value} selected=${one.value === value}>${one.label}</option>`;
    })}</select>`;
  }
  return html`<label class="field"><span>${label}${required ? '' : html` <i>optional</i>`}</span>${control}</label>`;
}
