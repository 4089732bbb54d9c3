import { html, useMemo } from '../vendor/preact.js';

const width = 176; // of a node, in pixels
const height = 52;
const columnGap = 44;
const rowGap = 12;

// layers arranges tasks from left to right: each is one column after the last of its dependencies,
// near their rows. A dependency that follows from the others has no edge. Tasks without a dependency
// or dependent among the given ones are left out. Dependencies have no cycles.
function layers(tasks) {
  const nodes = new Map(tasks.map((task) => [task.id, { task, column: -1, row: 0, before: [], all: new Set() }]));
  const connected = new Set();
  function place(node) {
    if (node.column >= 0) return;
    node.column = 0;
    const direct = node.task.depends_on.map((id) => nodes.get(id)).filter(Boolean);
    for (const earlier of direct) {
      place(earlier);
      connected.add(earlier).add(node);
      node.column = Math.max(node.column, earlier.column + 1);
      for (const one of earlier.all) node.all.add(one);
    }
    node.before = direct.filter((one) => !node.all.has(one));
    for (const earlier of direct) node.all.add(earlier);
  }
  for (const node of nodes.values()) place(node);
  const columns = [];
  for (const node of connected) (columns[node.column] ??= []).push(node);
  for (const column of columns) {
    const middle = (node) => node.before.reduce((sum, b) => sum + b.row, 0) / (node.before.length || 1);
    column.sort((a, b) => middle(a) - middle(b) || a.task.created_revision - b.task.created_revision);
    column.forEach((node, row) => { node.row = row; });
  }
  return columns;
}

const left = (node) => node.column * (width + columnGap);
const top = (node) => node.row * (height + rowGap);

function edge(from, to) {
  const [x1, y1, x2, y2] = [left(from) + width, top(from) + height / 2, left(to), top(to) + height / 2];
  return `M${x1},${y1}C${x1 + columnGap / 2},${y1} ${x2 - columnGap / 2},${y2} ${x2},${y2}`;
}

// Graph draws tasks and their dependencies. The list of tasks has the same for the keyboard and for
// screen readers.
export function Graph({ tasks, most, selected, onOpen }) {
  const columns = useMemo(() => layers(tasks.slice(0, most)), [tasks, most]);
  if (columns.length === 0) return null;
  const nodes = columns.flat();
  const w = columns.length * (width + columnGap) - columnGap;
  const h = Math.max(...columns.map((column) => column.length)) * (height + rowGap) - rowGap;
  const open = (node) => 'task:' + node.task.id === selected;
  return html`
    <div class="work-graph" tabindex="0" role="group" aria-label="Graph of the dependencies">
      <svg width=${w} height=${h} role="img"
        aria-label=${`${nodes.length} tasks and their dependencies; the list has each`}>
        ${nodes.flatMap((to) => to.before.map((from) => html`<path key=${`${from.task.id} ${to.task.id}`}
          class=${`work-edge${open(from) || open(to) ? ' work-near' : ''}`} d=${edge(from, to)} />`))}
        ${nodes.map((node) => html`<${Node} key=${node.task.id} node=${node} open=${open(node)} onOpen=${onOpen} />`)}
      </svg>
    </div>`;
}

function Node({ node, open, onOpen }) {
  const { task } = node;
  return html`
    <svg x=${left(node)} y=${top(node)} width=${width} height=${height} data-node=${task.id}
      class=${`work-node work-${task.state}${open ? ' work-selected' : ''}`} onClick=${() => onOpen(task)}>
      <title>${task.id}: ${task.title}</title>
      <rect x="1" y="1" width=${width - 2} height=${height - 2} rx="5" />
      <rect class="work-bar" x="1" y="1" width="5" height=${height - 2} rx="2" />
      <text x="14" y="20" class="work-title">${task.title}</text>
      <text x="14" y="40"><tspan class="work-state">${task.state}</tspan> ${task.holder || task.id}</text>
    </svg>`;
}
