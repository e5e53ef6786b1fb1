// Parts that several views show.  A state is a word with a shape before it; colour comes third.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from './vendor/hooks.js';
import { choose, count, html, lasting, link, place } from './base.js';

const SHAPES = { error: '▲', warning: '◆', note: '●', well: '✓', unknown: '?', late: '◷' };

export const Mark = ({ kind, children }) => html`<span class=${`mark ${kind}`}><span aria-hidden="true">${SHAPES[kind]}</span> ${children}</span>`;

export const STATES = ['ready', 'not ready', 'terminating', 'stopped'];
export const stateClass = (state) => state.replace(' ', '-');

export const State = ({ state }) => html`<span class="state"><i class=${`cell ${stateClass(state)}`} aria-hidden="true"></i> ${state}</span>`;

export function Panel({ title, aside, children, id }) {
  return html`<section class="panel" aria-labelledby=${`h-${id}`}>
    <header><h2 id=${`h-${id}`}>${title}</h2>${aside && html`<span class="aside">${aside}</span>`}</header>
    ${children}
  </section>`;
}

// What is large is drawn in pieces, a few milliseconds of a frame, so that nothing holds the page up.  *work* of the same
// *owner* takes the place of what still waits; what was begun goes to the end, so that each has its turn.
const turns = new Map();
const TURN_MS = 5;

export function inTurn(owner, work) {
  if (!turns.size) requestAnimationFrame(turn);
  if (turns.keys().next().value === owner) turns.delete(owner);
  turns.set(owner, work);
}

function turn() {
  const end = performance.now() + TURN_MS;
  const [[owner, work]] = turns;
  while (!work.next().done) if (performance.now() > end) return requestAnimationFrame(turn);
  turns.delete(owner);
  if (turns.size) requestAnimationFrame(turn);
}

// Drawn after what is above it.
export function Later({ children }) {
  const [due, setDue] = useState(false);
  useEffect(() => inTurn({}, (function* () { setDue(true); })()), []);
  return due && children;
}

// What the server answers to a question that is asked once; '' asks nothing, null is on its way.
export function useAnswer(path) {
  const [answer, setAnswer] = useState(null);
  useEffect(() => {
    setAnswer(null);
    if (!path) return undefined;
    const abort = new AbortController();
    fetch(path, { signal: abort.signal, cache: 'no-store' })
      .then(async (response) => setAnswer(response.ok ? await response.json() : { problem: await response.text() }))
      .catch((error) => abort.signal.aborted || setAnswer({ problem: String(error.message) }));
    return () => abort.abort();
  }, [path]);
  return answer;
}

export const Waiting = ({ children = 'asking' }) => html`<p class="quiet">${children} …</p>`;

export function Copy({ text, label = 'copy' }) {
  const [done, setDone] = useState(false);
  const copy = () => {
    navigator.clipboard.writeText(text).then(() => setDone(true), () => setDone(false));
    setTimeout(() => setDone(false), 2000);
  };
  return html`<button type="button" class="copy" onClick=${copy} aria-label=${`copy: ${text}`}>${done ? 'copied' : label}</button>`;
}

// Where the object of a finding is looked at.
export function Subject({ subject }) {
  const name = `${subject.kind} ${subject.namespace ? `${subject.namespace}/` : ''}${subject.name}`;
  const known = { Service: ['service', subject.namespace, subject.name], Node: ['nodes'] }[subject.kind];
  return known ? html`<a href=${link(known)}><bdi>${name}</bdi></a>` : html`<bdi class="quiet">${name}</bdi>`;
}

export function Finding({ finding, open, bare, others = [] }) {
  return html`<div class=${`finding ${finding.severity}`}><details open=${open}>
    <summary><${Mark} kind=${finding.severity}>${finding.tooYoung ? 'young' : finding.severity}<//> <span class="code">${finding.code}</span> <bdi class="sentence">${finding.sentence}</bdi></summary>
    <dl class="facts">
      ${finding.tooYoung && html`<dt>young</dt><dd>${Math.floor(finding.tooYoung.ageSeconds)} s old; judged after ${finding.tooYoung.judgedAfterSeconds} s</dd>`}
      ${finding.certainty !== 'certain' && html`<dt>sure</dt><dd>${finding.certainty}</dd>`}
      ${finding.evidence.map((entry) => html`<dt>seen</dt><dd><bdi>${entry.object.kind} ${entry.object.namespace ? entry.object.namespace + '/' : ''}${entry.object.name} ${entry.field}</bdi> <bdi class="mono">${entry.value}</bdi>
        ${entry.writer && html`<span class="quiet">, written by <bdi>${entry.writer}</bdi> at ${entry.written}</span>`}</dd>`)}
      ${others.length > 0 && html`<dt>also</dt><dd class="subjects">${others.map((subject) => html`<${Subject} subject=${subject} /> `)}${finding.alike > others.length + 1 && html`<span class="quiet">and ${finding.alike - others.length - 1} more</span>`}</dd>`}
      ${finding.effect && html`<dt>so</dt><dd><bdi>${finding.effect}</bdi></dd>`}
      ${finding.remedy && html`<dt>remedy</dt><dd><bdi class="mono">${finding.remedy}</bdi> <${Copy} text=${finding.remedy} /></dd>`}
    </dl>
  </details>${!bare && html`<span class="subject"><${Subject} subject=${finding.subject} />${finding.alike > 1 && html` <span class="quiet">and ${finding.alike - 1} more</span>`}</span>`}</div>`;
}

export function Command({ command }) {
  return html`<div class="command"><span class="quiet" aria-hidden="true">$</span> <bdi class="mono" id="command">${command}</bdi> <${Copy} text=${command} /></div>`;
}

export function Spark({ values }) {
  if (!values || !values.length) return html`<span class="quiet">–</span>`;
  const top = Math.max(...values);
  const step = 60 / values.length;
  const bars = values.map((value, at) => (value ? `M${(at * step).toFixed(1)} 16v-${Math.max(2, (value / top) * 15).toFixed(1)}h${(step - 0.5).toFixed(1)}V16z` : '')).join('');
  const sum = values.reduce((a, b) => a + b, 0);
  return html`<svg class="spark" viewBox="0 0 60 16" width="60" height="16" role="img" aria-label=${`${count(sum, 'change')} in 5 minutes`}><path d=${bars} /></svg>`;
}

// The key / goes to it.
export function Filter({ label, name = 'q' }) {
  const value = place().query.get(name) || '';
  return html`<input type="search" class="filter" data-filter aria-label=${label} placeholder="/ filter" value=${value} onInput=${(event) => choose({ [name]: event.target.value })} />`;
}

const ROW = 28;
const MARGIN = 6;

// Rows as they are needed: 40 of 20,000.  *columns*: {name, title, from, to (widths that show it), size, cell, number};
// *rank*: 0, 1 or 2 of a row; the least come first where nothing is sorted.
export function Table({ label, table, columns, filter = '', onOpen, id, scope = '', rank }) {
  const box = useRef();
  const [view, setView] = useState({ top: 0, height: 0, width: 0 });
  const [active, setActive] = useState(0);
  const sort = place().query.get(`sort${scope}`) || '';

  useLayoutEffect(() => {
    const measure = () => box.current && setView((old) => ({ ...old, height: box.current.clientHeight, width: box.current.clientWidth }));
    const watch = new ResizeObserver(measure);
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);

  const order = useMemo(() => ordered(table, filter, sort, rank), [table, table.version, filter, sort]);
  const rows = order ? order.length : table.length;
  const at = Math.min(active, Math.max(0, rows - 1));
  const shown = columns.filter((column) => (!column.from || view.width >= column.from) && !(view.width >= column.to));
  const template = { gridTemplateColumns: shown.map((column) => column.size || '1fr').join(' ') };
  const first = Math.max(0, Math.floor(view.top / ROW) - MARGIN);
  const last = Math.min(rows, Math.ceil((view.top + view.height) / ROW) + MARGIN);
  const visible = [];
  for (let position = first; position < last; position++) visible.push(position);
  const rowOf = (position) => (order ? order[position] : position);

  const move = (to) => {
    const next = Math.max(0, Math.min(rows - 1, to));
    setActive(next);
    const top = next * ROW;
    const node = box.current;
    if (top < node.scrollTop) node.scrollTop = top;
    else if (top + 2 * ROW > node.scrollTop + node.clientHeight) node.scrollTop = top + 2 * ROW - node.clientHeight;
  };
  const onKey = (event) => {
    const page = Math.max(1, Math.floor(view.height / ROW) - 2);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: rows - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      move(to);
    } else if (event.key === 'Enter' && onOpen && rows && event.target === box.current) {
      event.preventDefault();
      onOpen(rowOf(at));
    }
  };
  const head = (column) => {
    const way = sort === column.name ? 'ascending' : sort === `-${column.name}` ? 'descending' : undefined;
    return html`<div role="columnheader" class=${column.number ? 'number' : ''} aria-sort=${way}>
      ${column.fixed ? column.title : html`<button type="button" onClick=${() => choose({ [`sort${scope}`]: way === 'ascending' ? `-${column.name}` : way ? '' : column.name })}>${column.title}<span aria-hidden="true">${way === 'ascending' ? ' ↑' : way ? ' ↓' : ''}</span></button>`}
    </div>`;
  };
  return html`<div class="vtable" role="grid" aria-label=${label} aria-rowcount=${rows + 1} aria-colcount=${shown.length} tabindex="0" ref=${box} id=${id}
      aria-activedescendant=${rows ? `${id}-${at}` : undefined} onKeyDown=${onKey} onScroll=${(event) => setView({ ...view, top: event.currentTarget.scrollTop, height: event.currentTarget.clientHeight })}>
    <div role="rowgroup" class="heads"><div role="row" aria-rowindex="1" style=${template}>${shown.map(head)}</div></div>
    <div role="rowgroup" class="rows" style=${{ height: `${rows * ROW}px` }}>
      ${visible.map((position) => {
        const row = rowOf(position);
        return html`<div role="row" key=${position} id=${`${id}-${position}`} aria-rowindex=${position + 2} class=${position === at ? 'active' : ''} style=${{ ...template, transform: `translateY(${position * ROW}px)` }}
            onClick=${() => { setActive(position); }} onDblClick=${() => onOpen && onOpen(row)}>
          ${shown.map((column) => html`<div role="gridcell" class=${column.number ? 'number' : ''}>${column.cell ? column.cell(table, row) : html`<bdi>${table.get(column.name, row)}</bdi>`}</div>`)}
        </div>`;
      })}
    </div>
    ${!rows && html`<div role="rowgroup"><div role="row" aria-rowindex="2"><div role="gridcell" class="quiet">none${filter ? ' that match' : ''}</div></div></div>`}
  </div>`;
}

// Row numbers in the order to show; null: as they are.
function ordered(table, filter, sort, rank) {
  if (!filter && !sort && !rank) return null;
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (let row = 0; row < table.length; row++) {
    if (words.length) {
      let text = '';
      for (const name of table.names) {
        const value = table.get(name, row);
        if (typeof value === 'string') text += value + ' ';
      }
      text = text.toLowerCase();
      if (!words.every((word) => text.includes(word))) continue;
    }
    found.push(row);
  }
  if (sort) {
    const name = sort.replace(/^-/, '');
    const way = sort.startsWith('-') ? -1 : 1;
    if (table.names.includes(name)) {
      const weight = (value) => (Array.isArray(value) ? value.reduce((a, b) => a + b, 0) : value);
      found.sort((a, b) => {
        const [left, right] = [weight(table.get(name, a)), weight(table.get(name, b))];
        return way * (left < right ? -1 : left > right ? 1 : 0) || a - b;
      });
    }
  } else if (rank) {
    const ranks = [[], [], []];
    for (const row of found) ranks[rank(table, row)].push(row);
    return ranks.flat();
  }
  return found;
}

// What the way to the cluster lacks.  A refusal names the verb, the resource and the namespace.
export function Troubles({ troubles }) {
  return troubles.map((trouble) => html`<div class="trouble" role="alert">
    ${trouble.verb
      ? html`<${Mark} kind="unknown">not yours to see<//> <span>you may not <b>${trouble.verb} ${trouble.resource}</b> <bdi>${trouble.where}</bdi>${trouble.instead && html`; this is namespace <b><bdi>${trouble.instead}</bdi></b>`}</span>`
      : html`<${Mark} kind="error">${trouble.kind === 'refused' ? 'refused' : 'not reached'}<//> <span>${trouble.resource}: <bdi>${trouble.says}</bdi></span>`}
  </div>`);
}

export function Problem({ text }) {
  return html`<p class="trouble"><${Mark} kind="unknown">not known<//> <bdi>${text}</bdi></p>`;
}

// Seconds since *at*, which go on by themselves.
export function Ago({ at, stream }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  return html`${lasting(stream.now() - at)} ago`;
}
