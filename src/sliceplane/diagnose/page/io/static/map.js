// Endpoints where they are: zones as boxes, in them nodes, in them a cell for each endpoint.  Up to 500 cells are
// elements; more are drawn, 8 pixels each, so that 20,000 stand on one screen.  The table below says the same in words.
import { useLayoutEffect, useMemo, useRef, useState } from './vendor/hooks.js';
import { choose, count, digits, html } from './base.js';
import { inTurn, STATES, State, stateClass } from './parts.js';

export const ELEMENTS_MAX = 500;
const CELL = 8;
const GAP = 2;
const PIECE = 500;

// zone -> node -> rows, each in the order of names.
function grouped(table) {
  const zones = new Map();
  for (let row = 0; row < table.length; row++) {
    const zone = table.get('zone', row);
    const node = table.get('node', row);
    let nodes = zones.get(zone);
    if (!nodes) zones.set(zone, (nodes = new Map()));
    let rows = nodes.get(node);
    if (!rows) nodes.set(node, (rows = []));
    rows.push(row);
  }
  const sorted = (map) => [...map].sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  return sorted(zones).map(([zone, nodes]) => [zone, sorted(nodes)]);
}

const size = (nodes) => nodes.reduce((sum, [, rows]) => sum + rows.length, 0);

// *ready*: how many are, by zone.
export function EndpointMap({ table, shares, ready }) {
  const zones = useMemo(() => grouped(table), [table, table.shape]);
  const large = table.length > ELEMENTS_MAX;
  const sums = zones.map(([zone, nodes]) => `${zone || 'no zone'}: ${ready[zone] || 0} of ${size(nodes)} ready`).join('; ');
  if (!table.length) return html`<p class="quiet">no endpoint</p>`;
  return html`<div class="map" role="img" aria-label=${`${count(table.length, 'endpoint')}; ${sums}`}>
    ${zones.map(([zone, nodes]) => html`<div class=${`zone${nodes.length > 3 || size(nodes) > 40 ? ' wide' : ''}`} key=${zone} aria-hidden="true">
      <div class="zone-head"><bdi>${zone || 'no zone'}</bdi> <span class="quiet">${ready[zone] || 0} of ${size(nodes)} ready</span></div>
      ${large
        ? html`<${Drawn} table=${table} nodes=${nodes} shares=${shares} />`
        : html`<div class="nodes">${nodes.map(([node, rows]) => html`<div class="node" key=${node}>
            <bdi class="node-name" title=${node}>${node || 'no node'}</bdi>
            <div class="cells">${rows.map((row) => html`<${Cell} key=${table.key(row)} table=${table} row=${row} shares=${shares} />`)}</div>
          </div>`)}</div>`}
    </div>`)}
  </div>`;
}

function Cell({ table, row, shares }) {
  const state = table.get('state', row);
  const address = table.get('address', row);
  const share = shares && shares.get(address);
  const used = shares ? (share ? ' used' : ' unused') : '';
  const title = `${table.get('pod', row) || address} ${address}, ${state}${shares ? `, ${share || 'gets nothing'}` : ''}`;
  return html`<i class=${`cell ${stateClass(state)}${used}`} title=${title} onClick=${() => choose({ q: address })}></i>`;
}

export function Legend({ states }) {
  return html`<div class="legend">${STATES.map((state) => html`<span key=${state}><${State} state=${state} /> <b>${digits(states[state] || 0)}</b></span>`)}</div>`;
}

// A zone on a canvas: cells of one node together, a gap between nodes.
function Drawn({ table, nodes, shares }) {
  const canvas = useRef();
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => canvas.current && setWidth(canvas.current.parentElement.clientWidth));
    watch.observe(canvas.current.parentElement);
    return () => watch.disconnect();
  }, []);
  const drawn = useRef({});
  useLayoutEffect(() => {
    if (!width) return;
    const wanted = { table, nodes, shares, width, scheme: colours().join() };
    const last = drawn.current;
    const touched = Object.keys(wanted).every((name) => wanted[name] === last[name]) ? table.since(last.version) : null;
    if (!touched) inTurn(canvas, whole(canvas, (drawn.current = { ...wanted, cells: new Map(), upTo: 0 })));
    else if (touched.length) paint(canvas, last, [...new Set(touched)].map((row) => [row, last.cells.get(row)]).filter(([, at]) => at < last.upTo), true);
    drawn.current.version = table.version;
  });
  return html`<canvas ref=${canvas} height="10"></canvas>`;
}

// As the style sheet has them in this scheme; the legend is above every map.
const colours = () => STATES.map((state) => getComputedStyle(document.querySelector(`.legend .${stateClass(state)}`)).color);

// All cells, a piece at a time; what changes meanwhile is drawn as it is then.
function* whole(canvas, picture) {
  const { nodes, width, cells } = picture;
  if (!canvas.current) return;
  const rows = [];
  let at = 0;
  for (const [, those] of nodes) {
    for (const row of those) rows.push([row, at++]);
    at++;
  }
  const scale = devicePixelRatio || 1;
  const height = Math.ceil(at / columnsOf(width)) * CELL;
  Object.assign(canvas.current, { width: width * scale, height: height * scale });
  canvas.current.style.height = `${height}px`;
  canvas.current.getContext('2d').scale(scale, scale);
  for (let from = 0; from < rows.length && canvas.current; from += PIECE) {
    const piece = rows.slice(from, from + PIECE);
    for (const [row, place] of piece) cells.set(row, place);
    picture.upTo = piece.at(-1)[1] + 1;
    paint(canvas, picture, piece);
    yield;
  }
  performance.mark('map-drawn');
}

const columnsOf = (width) => Math.max(1, Math.floor(width / CELL));

function paint(canvas, { table, shares, width, scheme }, cells, again) {
  const columns = columnsOf(width);
  const pen = canvas.current.getContext('2d');
  const paths = Array.from({ length: 2 * STATES.length }, () => new Path2D());
  const edge = CELL - GAP;
  for (const [row, at] of cells) {
    const x = (at % columns) * CELL;
    const y = Math.floor(at / columns) * CELL;
    const state = STATES.indexOf(table.get('state', row));
    const path = paths[shares && !shares.get(table.get('address', row)) ? state + STATES.length : state];
    if (again) pen.clearRect(x, y, CELL, CELL);
    if (state === 0) path.rect(x, y, edge, edge);
    else if (state === 1) path.rect(x + 0.5, y + 0.5, edge - 1, edge - 1);
    else {
      path.moveTo(x, y + edge);
      path.lineTo(x + edge, y + edge);
      path.lineTo(x, y);
      path.closePath();
    }
  }
  const inks = scheme.split(/,(?![^(]*\))/);
  paths.forEach((path, number) => {
    const state = number % STATES.length;
    pen.globalAlpha = number < STATES.length ? 1 : 0.3;
    pen.fillStyle = pen.strokeStyle = inks[state];
    state === 1 || state === 3 ? pen.stroke(path) : pen.fill(path);
  });
}
