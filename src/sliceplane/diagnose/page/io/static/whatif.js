// What would a change do to a Service: the words of the form are the command's, and so is the answer.
import { choose, count, digits, html, lasting, link, percent, place } from './base.js';
import { Mark, Problem, useAnswer, Waiting } from './parts.js';

//: keys that have a field of their own
const FIELDS = ['zone-lost', 'replicas', 'traffic-distribution', 'topology-mode', 'rollout'];
const MORE = 'max-endpoints-per-slice=100 defragment=yes';
const ZONES_MAX = 12;
const NAMED = '[^\\/]+\\/[^\\/]+';

export const settings = (query) => (query.get('set') || '').split(/\s+/).filter(Boolean);
const quoted = (word) => (/^[\w.=:%/-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
export const command = ({ parts, query }) => ['sliceplane what-if', quoted(parts.slice(0, 2).join('/') || 'NAMESPACE/NAME'), ...settings(query).map((word) => `--set ${quoted(word)}`)].join(' ');

// In the command's units.
const UNITS = ['B', 'KB', 'MB', 'GB'];
const size = (bytes) => {
  const unit = bytes < 999.5 ? 0 : bytes < 999.5e3 ? 1 : bytes < 999.5e6 ? 2 : 3;
  return `${Number((bytes / 1000 ** unit).toPrecision(3))} ${UNITS[unit]}`;
};
const times = (factor) => (factor ? `${factor.toFixed(2)}\u00a0×` : '–');
const short = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name) || 'no zone';

export function WhatIf({ state }) {
  const { service, services, zones, ready, distribution } = state.parts;
  const words = settings(place().query);
  const answer = useAnswer(service && words.length ? `v1/what-if?${new URLSearchParams({ service, set: words.join(' ') })}` : '');
  const value = (key) => words.find((word) => word.startsWith(`${key}=`))?.slice(key.length + 1) || '';
  const others = words.filter((word) => !FIELDS.includes(word.split('=')[0]));
  const onSubmit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const told = FIELDS.filter((key) => form.get(key)?.trim()).map((key) => `${key}=${form.get(key).trim()}`);
    location.hash = link(['what-if', ...form.get('service').trim().split('/')], { set: [...told, form.get('more').trim()].join(' ').trim() }).slice(1);
  };
  const select = (key, title, texts, hint) => html`<label><span>${title}</span><select name=${key} value=${value(key)} aria-describedby=${`hint-${key}`}><option value="">as it is</option>${[...new Set([...texts, value(key)])].filter(Boolean).map((text) => html`<option value=${text}>${text}</option>`)}</select><small class="quiet" id=${`hint-${key}`}>${hint}</small></label>`;
  return html`<h1>What-if</h1><p class="quiet">What would a change do to a Service, to its watchers and to its zones? Nothing is changed: the controllers run on virtual time, over the cluster as it is now.</p>
    <form class="trace" onSubmit=${onSubmit} key=${service + words.join(' ')}>
      <label><span>Service</span><input name="service" list="known-services" value=${service} required pattern=${NAMED} title="NAMESPACE/NAME" autocomplete="off" spellcheck=${false} aria-describedby="hint-service" /><small class="quiet" id="hint-service">NAMESPACE/NAME</small></label>
      ${select('zone-lost', 'Lose a zone', zones, 'silent at once, its Pods replaced later')}
      <label><span>Replicas</span><input name="replicas" inputmode="numeric" value=${value('replicas')} autocomplete="off" aria-describedby="hint-replicas" /><small class="quiet" id="hint-replicas">${service ? `${ready} ready now` : 'a number'}</small></label>
      ${select('traffic-distribution', 'Traffic distribution', ['PreferSameZone', 'PreferSameNode', 'none'], service ? `${distribution || 'none'} now` : 'of the Service')}
      ${select('topology-mode', 'Topology mode', ['Auto', 'none'], 'the annotation')}
      ${select('rollout', 'Roll out', ['yes'], 'a new version')}
      <label class="more"><span>More</span><input name="more" value=${others.join(' ')} autocomplete="off" spellcheck=${false} aria-describedby="hint-more" /><small class="quiet" id="hint-more">KEY=VALUE ..., such as ${MORE}</small></label>
      <button type="submit">What if</button>
      <datalist id="known-services">${services.slice(0, 200).map((key) => html`<option value=${key} />`)}</datalist>
    </form>
    ${service && words.length > 0 && (!answer ? html`<${Waiting}>running the controllers<//>` : answer.problem ? html`<${Problem} text=${answer.problem} />` : html`<${Foreseen} found=${answer.answer} />`)}`;
}

function Foreseen({ found }) {
  const { before, after, written } = found;
  const zones = [...new Set([...Object.keys(before.zones), ...Object.keys(after.zones)])].sort();
  const sum = (picture) => Object.values(picture.zones).reduce((total, zone) => total + zone.readyEndpoints, 0);
  const rows = [
    ['slices', before.slices, after.slices],
    ['ready endpoints', sum(before), sum(after)],
    ['leaves its zone', percent(before.inside.leaving), percent(after.inside.leaving)],
    (before.inside.dropped || after.inside.dropped) && ['finds no endpoint', percent(before.inside.dropped), percent(after.inside.dropped)],
    ['greatest load', times(before.inside.greatestLoad), times(after.inside.greatestLoad)],
    ['writes of slices', '', `${digits(written.writes)}${written.writes ? ` in ${lasting(written.seconds)}` : ''}`],
    ['watch events', '', digits(written.events)],
    ['bytes sent', '', written.writes ? `${size(written.bytes.protobuf)} (JSON ${size(written.bytes.json)})` : '0'],
  ].filter(Boolean);
  const both = (zone, name, text) => {
    const [now, then] = [before, after].map((picture) => text(picture.zones[zone]?.[name] || 0));
    return now === then ? now : `${now} → ${then}`;
  };
  const verdict = !found.bad ? 'nothing gets worse' : after.inside.dropped > before.inside.dropped ? 'connections find no endpoint' : 'an endpoint is overloaded';
  return html`<section aria-label="answer">
    <p class="verdict"><${Mark} kind=${found.bad ? 'error' : 'well'}>${verdict}<//></p>
    <ul class="judgement">${found.judgement.map((sentence) => html`<li><bdi>${sentence}</bdi></li>`)}</ul>
    <div class="pictures"><${Loads} found=${found} zones=${zones.slice(0, ZONES_MAX)} /><${Flows} found=${found} zones=${zones.slice(0, ZONES_MAX)} /><${Sent} found=${found} /></div>
    <div class="sheets">
      <div class="scroll" tabindex="0" role="region" aria-label="now and then"><table><thead><tr><th scope="col">the Service</th><th scope="col" class="number">now</th><th scope="col" class="number">then</th></tr></thead>
        <tbody>${rows.map(([what, now, then]) => html`<tr><th scope="row">${what}</th><td class="number">${now}</td><td class="number">${now === then ? 'the same' : html`<b>${then}</b>`}</td></tr>`)}</tbody></table></div>
      <div class="scroll" tabindex="0" role="region" aria-label="by zone"><table><thead><tr><th scope="col">by zone</th><th scope="col" class="number">clients</th><th scope="col" class="number">ready</th><th scope="col" class="number">connections</th><th scope="col" class="number">load of one</th></tr></thead>
        <tbody>${zones.map((zone) => html`<tr><th scope="row"><bdi>${zone || 'no zone'}</bdi></th><td class="number">${both(zone, 'clients', percent)}</td><td class="number">${both(zone, 'readyEndpoints', String)}</td><td class="number">${both(zone, 'connections', percent)}</td><td class="number">${both(zone, 'load', times)}</td></tr>`)}</tbody></table></div>
    </div>
    ${found.moments.length > 0 && html`<${Moments} moments=${found.moments} />`}
    <details class="unseen"><summary>what this rests on</summary><ul>${found.assumptions.map((sentence) => html`<li><bdi>${sentence}</bdi></li>`)}</ul></details>
  </section>`;
}

// Of a loss: at once, when it is seen, and when its Pods are replaced.
const Moments = ({ moments }) => html`<div class="scroll" tabindex="0" role="region" aria-label="after the loss"><table><thead><tr><th scope="col">after the loss</th><th scope="col" class="number">ready</th><th scope="col" class="number">sent to the lost</th><th scope="col" class="number">leaves its zone</th><th scope="col" class="number">greatest load</th></tr></thead>
  <tbody>${moments.map((moment) => html`<tr><th scope="row">${moment.seconds ? lasting(moment.seconds) : 'at once'}</th><td class="number">${moment.readyEndpoints}</td><td class="number">${percent(moment.failing)}</td><td class="number">${percent(moment.inside.leaving)}</td><td class="number">${times(moment.inside.greatestLoad)}</td></tr>`)}</tbody></table></div>`;

// ---- The picture: text and paths, of 320 by 190; what is now is pale, what would be is full

const LOW = 160;
const HIGH = 18;

const Figure = ({ title, label, children }) => html`<figure class="panel"><figcaption>${title}</figcaption><svg viewBox="0 0 320 190" role="img" aria-label=${label}>${children}</svg></figure>`;
const Names = ({ zones, step }) => zones.map((zone, at) => html`<text x=${10 + (at + 0.5) * step} y=${LOW + 15} text-anchor="middle">${short(zone, Math.max(3, Math.floor(step / 6.5)))}</text>`);
const height = (value, top) => (value / top) * (LOW - HIGH);

// A bar for now and one for then, in the place of each zone.
const pairs = (found, zones, room = 300) => {
  const step = room / Math.max(zones.length, 1);
  const wide = Math.min(26, step * 0.4);
  const bars = zones.flatMap((zone, at) => [found.before, found.after].map((picture, then) => ({ zone, at, picture, then, x: 10 + (at + 0.5) * step + (then ? 1 : -wide - 1) })));
  return { step, wide, bars };
};

function Loads({ found, zones }) {
  const { step, wide, bars } = pairs(found, zones, 250);
  const load = ({ picture, zone }) => picture.zones[zone]?.load || 0;
  const top = Math.max(found.overloadThreshold, ...bars.map(load)) * 1.12;
  const limit = LOW - height(found.overloadThreshold, top);
  const even = LOW - height(1, top);
  return html`<${Figure} title="Load of one endpoint" label="load of one endpoint by zone, now and then; the table has the numbers">
    <path class="even" d=${`M10 ${even}H310`} /><path class="limit" d=${`M10 ${limit}H310`} /><text class="over" x="310" y=${limit - 4} text-anchor="end">overload</text>
    ${bars.map((bar) => html`<path class=${`z${bar.at % 8}${bar.then ? '' : ' pale'}`} d=${`M${bar.x} ${LOW}v${-height(load(bar), top)}h${wide}V${LOW}z`} />${wide > 16 && html`<text x=${bar.x + wide / 2} y=${LOW - height(load(bar), top) - 3} text-anchor="middle">${load(bar) ? load(bar).toFixed(2) : 'none'}</text>`}`)}
    <${Names} zones=${zones} step=${step} /><text x="10" y="188">pale: now</text>
  <//>`;
}

function Flows({ found, zones }) {
  const { step, wide, bars } = pairs(found, zones);
  const top = Math.max(0.01, ...bars.map(({ picture, zone }) => picture.zones[zone]?.clients || 0));
  const pieces = bars.flatMap((bar) => {
    let y = LOW;
    const piece = (share, name) => {
      const tall = height(share, top);
      y -= tall;
      return html`<path class=${`${name}${bar.then ? '' : ' pale'}`} d=${`M${bar.x} ${y}h${wide}v${tall}h${-wide}z`} />`;
    };
    const flows = bar.picture.inside.flows.filter(({ from }) => from === bar.zone).sort((a, b) => (b.to === bar.zone) - (a.to === bar.zone));
    const lost = (bar.picture.zones[bar.zone]?.clients || 0) - flows.reduce((total, { share }) => total + share, 0);
    return [...flows.map(({ to, share }) => piece(share, zones.includes(to) ? `z${zones.indexOf(to) % 8}` : 'other')), lost > 0.0005 && piece(lost, 'lost')];
  });
  return html`<${Figure} title=${`Leaves its zone: ${percent(found.before.inside.leaving)} now, ${percent(found.after.inside.leaving)} then`} label="connections by zone of the client, in the colour of the endpoint's zone; the table has the numbers">
    ${pieces}<${Names} zones=${zones} step=${step} /><text x="10" y="188">zone of the client; colour: the endpoint’s</text>
  <//>`;
}

function Sent({ found }) {
  const { sent, written, after } = found;
  const title = `Bytes to ${count(after.watchers, 'watcher')}: ${count(written.writes, 'write')}`;
  if (!sent.length) return html`<${Figure} title=${title} label="no slice is written"><text x="160" y="95" text-anchor="middle">no slice is written</text><//>`;
  const last = sent.at(-1);
  const end = Math.max(last[0] * 1.05, 1);
  const top = last[1] * 1.12;
  const x = 10 + (last[0] / end) * 300;
  // Beside the last step, or above the line that follows it.
  const late = x > 160;
  const line = (at) => `M10 ${LOW}${sent.map((point) => `H${(10 + (point[0] / end) * 300).toFixed(1)}V${(LOW - height(point[at], top)).toFixed(1)}`).join('')}H310`;
  return html`<${Figure} title=${title} label="bytes sent since the change, as JSON and as protobuf">
    ${[['JSON', 1, 'json'], ['protobuf', 2, 'protobuf']].map(([name, at, kind]) => html`<path class=${`line ${kind}`} d=${line(at)} /><text x=${late ? x - 6 : 310} y=${LOW - height(last[at], top) + (late ? 4 : -7)} text-anchor="end">${name} ${size(last[at])}</text>`)}
    <path class="even" d=${`M10 ${LOW}H310`} /><text x="10" y=${LOW + 15}>0 s</text><text x="310" y=${LOW + 15} text-anchor="end">${lasting(end)} after the change</text>
  <//>`;
}
