import { html, useLayoutEffect, useRef, useState } from '../vendor/preact.js';

const rowHeight = 34; // as in style.css
const narrow = 640; // the width below which columns that are wide are absent

let tables = 0;

// VirtualTable shows rows of one height, of which only the visible ones are in the document.
//
// columns: {key, title, render(row), width, numeric, wide, sort}. width is a track of a CSS grid; the
// default is an equal share. Columns that are wide are absent in a narrow table. keyOf(row) returns
// the key of a row. selected is the key of the open row; onOpen(row) opens one. select is {keys,
// change}: with it, rows have a checkbox, and change(keys) gets the Set of the new keys. sort is the
// key of the column by which the rows are sorted; onSort(key) is called by the titles of columns with
// sort. onEnd is called when the last rows are visible, and onScroll with the distance to the top.
// onFold makes the table a tree: its rows have a level, those with others below have expanded, and
// onFold(row) changes it. With recycle, an element shows another row when rows move: for rows that move often and have no
// button.
export function VirtualTable({
  rows, columns, keyOf, selected, onOpen, select, label, sort, onSort, onEnd, onScroll, onFold, rowClass,
  recycle, empty,
}) {
  const grid = useRef(null);
  const size = useRef({ top: 0, height: 0, width: 0 }); // as measured
  const pressed = useRef(null); // the key of the row under the pointer
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
    if (!grid.current) return; // the event of a table that was removed
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
    const room = element.clientHeight - 2 * rowHeight; // without the header
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
  // fold opens a row of a tree, or moves to the first row below it; or closes it, or moves to the row above.
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
    ${rows.length === 0 ? empty && html`<p class="empty">${empty}</p>` : html`<div role="rowgroup" class="rows" style=${{ height: rows.length * rowHeight + 'px' }}>
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
