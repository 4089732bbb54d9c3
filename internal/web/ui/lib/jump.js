import { html, useRef, useState } from '../vendor/preact.js';
import { frame } from './live.js';
import { go, here, href, route } from './route.js';

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

// Jump is the search field of the page. It filters the view by the query q, and offers the agents,
// mailboxes and messages that match.
export function Jump() {
  const [text, setText] = useState(route.value.query.q || '');
  const [open, setOpen] = useState(false);
  const [chosen, setChosen] = useState(-1);
  const input = useRef(null);
  const found = open ? suggestions(text) : [];

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
    if (event.key === 'ArrowDown') setChosen(Math.min(found.length - 1, chosen + 1));
    else if (event.key === 'ArrowUp') setChosen(Math.max(-1, chosen - 1));
    else if (event.key === 'Enter' && found[chosen]) follow(found[chosen].link);
    else if (event.key === 'Enter') {
      setOpen(false);
      document.querySelector('.view [role=grid]')?.focus();
    } else if (event.key === 'Escape') {
      text ? type('') : input.current.blur();
      setOpen(false);
    } else return;
    event.preventDefault();
  }
  return html`<div class="jump" role="search">
    <input class="search" type="search" placeholder="Search  /" aria-label="Search" ref=${input} value=${text}
      role="combobox" aria-expanded=${found.length > 0} aria-controls="jump-list" aria-autocomplete="list"
      aria-activedescendant=${found[chosen] ? 'jump-' + chosen : undefined} spellcheck=${false} autocomplete="off"
      onInput=${(event) => type(event.currentTarget.value)} onKeyDown=${onKeyDown} onBlur=${() => setOpen(false)} />
    <ul id="jump-list" role="listbox" aria-label="Suggestions" hidden=${!found.length}>${found.map((item, i) => html`
      <li key=${item.link} id=${'jump-' + i} role="option" aria-selected=${i === chosen}
        onMouseDown=${(event) => { event.preventDefault(); follow(item.link); }}>
        <span class="dim">${item.kind}</span> <bdi>${item.name}</bdi></li>`)}</ul>
  </div>`;
}
