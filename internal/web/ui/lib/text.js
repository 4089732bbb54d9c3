import { html, useMemo, useState } from '../vendor/preact.js';

const shown = 4096; // characters of a long text that are visible at first
const piece = 8192; // characters of a text that the browser lays out together

// cut returns where a piece of a text ends: after a line if one ends in its second half.
function cut(text, start, length) {
  const end = start + length;
  if (end >= text.length) return text.length;
  const line = text.lastIndexOf('\n', end - 1) + 1;
  if (line > start + length / 2) return line;
  return /[\ud800-\udbff]/.test(text[end - 1]) ? end - 1 : end;
}

function pieces(text) {
  const all = [];
  for (let start = 0, end; start < text.length; start = end) {
    end = cut(text, start, piece);
    all.push(text.slice(start, end));
  }
  return all;
}

// Text shows a text of an agent. Of a long one it shows the beginning and, on request, all in a box
// that scrolls, of which the browser lays out only the visible pieces. kind is mono or prose.
export function Text({ text, label, kind = 'mono' }) {
  const [all, setAll] = useState(false);
  const long = text.length > shown;
  const parts = useMemo(() => (all ? pieces(text) : [text.slice(0, cut(text, 0, shown))]), [text, all]);
  if (!text) return null;
  return html`<div class=${'text ' + kind} tabindex="0" role="group" aria-label=${label}>
      ${parts.map((part, i) => html`<div key=${i} dir="auto">${part}</div>`)}
    </div>
    ${long && html`<button data-show="all" aria-expanded=${all} onClick=${() => setAll(!all)}>
      ${all ? 'Show the beginning' : 'Show all ' + counted(text.length, 'character')}</button>`}`;
}

// counted returns a number with a noun.
export function counted(n, noun) {
  return `${n.toLocaleString('en')} ${noun}${n === 1 ? '' : 's'}`;
}
