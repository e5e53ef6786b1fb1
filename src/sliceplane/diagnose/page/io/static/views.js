// The views.  Each shows the parts and tables that the server made of the same answers that commands print.
import { useEffect, useMemo, useRef, useState } from './vendor/hooks.js';
import { choose, clock, count, digits, html, lasting, link, noun, percent, place } from './base.js';
import { ELEMENTS_MAX, EndpointMap, Legend } from './map.js';
import { Ago, Filter, Finding, Later, Mark, Panel, Problem, Spark, State, Table, useAnswer, Waiting } from './parts.js';
import { command, WhatIf } from './whatif.js';

const go = (path, query) => { location.hash = link(path, query).slice(1); };
const FINDINGS_SHOWN = 60;
const named = (key) => key.split('/');

// Findings of one sentence are one row, as the command has them.
const Findings = ({ rows }) => html`<div class="findings">${rows.slice(0, FINDINGS_SHOWN).map((finding) => html`<${Finding} key=${finding.code + finding.subject.namespace + finding.subject.name + finding.sentence} finding=${finding} others=${finding.others} />`)}</div>
  ${rows.length > FINDINGS_SHOWN && html`<p class="quiet">and ${rows.length - FINDINGS_SHOWN} more</p>`}`;

const Unseen = ({ phrases }) => phrases.length > 0 && html`<details class="unseen"><summary>${count(phrases.length, 'thing')} not looked at</summary><ul>${phrases.map((phrase) => html`<li><bdi>${phrase}</bdi></li>`)}</ul></details>`;

// ---- Now

function Now({ state, stream }) {
  const { lint, sums, freshness, activity, guards, drains, drainCount } = state.parts;
  const { endpoints } = sums;
  return html`<h1 class="sr">Now</h1>
    <div class="sums">
      <a href=${link(['services'])}><b>${digits(sums.services)}</b> ${noun(sums.services, 'Service')}</a>
      <span><b>${digits(endpoints.ready)}</b> ${noun(endpoints.ready, 'endpoint')} ready</span>
      ${['not ready', 'terminating', 'stopped'].map((name) => endpoints[name] > 0 && html`<span><b>${digits(endpoints[name])}</b> <${State} state=${name} /></span>`)}
      <a href=${link(['nodes'])}><b>${digits(sums.nodes)}</b> ${noun(sums.nodes, 'Node')}</a>
      <a href=${link(['zones'])}><b>${digits(sums.zones)}</b> ${noun(sums.zones, 'zone')}</a>
    </div>
    <div class="columns">
      <div class="main-column">
        <${Panel} id="attention" title="Needs attention" aside=${lint && html`<${Ago} at=${lint.at} stream=${stream} />`}>
          ${!lint ? html`<${Waiting}>looking at every Service<//>` : lint.problem ? html`<${Problem} text=${lint.problem} />` : html`
            ${lint.answer.findings.length === 0
              ? html`<p class="well"><${Mark} kind="well">nothing is wrong<//> <span class="quiet">${lint.sums.note ? 'but what is noted, ' : ''}in ${count(lint.answer.services, 'Service')}, as far as one can see</span></p>`
              : html`<p class="quiet severities">${['error', 'warning'].filter((name) => lint.sums[name]).map((name) => html`<${Mark} kind=${name}>${count(lint.sums[name], name)}<//> `)}${lint.sums.young > 0 && `${lint.sums.young} too young to judge `} in ${count(lint.answer.services, 'Service')}</p>`}
            <${Findings} rows=${lint.answer.findings} />
            ${lint.sums.note > 0 && html`<details class="notes"><summary><${Mark} kind="note">${count(lint.sums.note, 'note')}<//> <span class="quiet">what is as it was asked for, and maybe not as expected</span></summary><${Findings} rows=${lint.answer.notes} /></details>`}
            <${Unseen} phrases=${lint.answer.notLookedAt} />`}
        <//>
      </div>
      <div class="side-column">
        <${Panel} id="fresh" title="Nodes by freshness" aside=${freshness.at && html`<${Ago} at=${freshness.at} stream=${stream} />`}><${Fresh} freshness=${freshness} nodes=${sums.nodes} /><//>
        <${Panel} id="activity" title="Recent activity">
          ${activity.length ? html`<ol class="activity">${activity.slice(0, 14).map((entry) => html`<li key=${entry.name + entry.at}>
            <time>${clock(entry.until)}</time> <a href=${link(['service', ...named(entry.name)])}><bdi>${entry.name}</bdi></a>${' '}
            <span class="quiet">${entry.what.length ? entry.what.map(([what, number]) => `${number > 0 ? '+' : '−'}${Math.abs(number)} ${what}`).join(', ') : 'slices written, endpoints as before'}</span></li>`)}</ol>`
          : html`<p class="quiet">no slice has changed since this page was started</p>`}
        <//>
        <${Panel} id="drains" title="Drains" aside=${html`<a href=${link(['drains'])}>all</a>`}>
          ${drainCount ? drains.map((row) => html`<p key=${row.uid}><${Mark} kind=${DRAIN_MARKS[row.state]}>${row.state}<//> <bdi>${row.pod}</bdi> <bdi class="quiet">${row.says}</bdi></p>`) : html`<p class="quiet">no Pod is leaving</p>`}${drainCount > drains.length && html`<p class="quiet">and ${drainCount - drains.length} more</p>`}
        <//>
        <${Panel} id="guards" title="Guards">
          ${guards.length ? guards.map((held) => html`<p key=${held.service}><${Mark} kind="warning">held<//> <a href=${link(['service', ...named(held.service)])}><bdi>${held.service}</bdi></a> <bdi>${held.message}</bdi></p>`) : html`<p class="quiet">no mass removal is held</p>`}
        <//>
      </div>
    </div>`;
}

function Fresh({ freshness, nodes }) {
  const { states, problem } = freshness;
  if (!freshness.at) return html`<${Waiting}>reading Leases<//>`;
  if (problem) return html`<${Problem} text=${problem} />`;
  const { emulated = 0, 'never told': silent = 0, 'in step': step = 0, ...late } = states;
  const known = Object.entries(late);
  const total = known.reduce((sum, [, number]) => sum + number, step);
  const relays = Object.values(freshness.relays).reduce((sum, number) => sum + number, 0);
  const fit = freshness.relays.ready || 0;
  const unfit = Object.keys(freshness.relays).some((name) => !['ready', 'starting'].includes(name));
  const others = html`${relays > 0 && html`<p><a href=${link(['nodes'])}><${Mark} kind=${unfit ? 'error' : fit === relays ? 'well' : 'note'}>${fit} of ${count(relays, 'relay')} ready<//></a></p>`}${emulated > 0 && html`<p class="quiet">${count(emulated, 'emulated node')}: no proxy and no kernel, so no rules</p>`}
    ${silent > 0 && html`<p class="quiet">${count(silent, 'node')} without a report: another proxy serves them, or none</p>`}`;
  if (!total) return emulated + silent + relays ? others : html`<p class="quiet">no node proxy of Sliceplane reports here${nodes ? `; ${count(nodes, 'Node')}` : ''}</p>`;
  const by = (name) => freshness.nodes.filter((row) => row.state === name);
  return html`<p><${Mark} kind=${step === total ? 'well' : 'late'}>${step} of ${count(total, 'node')} in step<//></p>
    <dl class="facts">${known.map(([name, number]) => html`<dt key=${name}><${Mark} kind=${NODE_MARKS[name] || 'unknown'}>${number} ${name}<//></dt>
      <dd><a href=${link(['nodes'])}><bdi>${by(name).slice(0, 6).map((row) => `${row.node}${row.objectsBehind ? ` (${count(row.objectsBehind, 'object')}, ${lasting(row.secondsBehind)})` : ''}`).join(', ')}</bdi></a>${number > 6 ? ` and ${number - 6} more` : ''}</dd>`)}</dl>${others}`;
}

// ---- Services

const SERVICES = [
  { name: 'name', title: 'Service', size: 'minmax(8rem, 2fr)', cell: (table, row) => html`<a title=${table.get('name', row)} href=${link(['service', table.get('namespace', row), table.get('name', row)])}><span class="quiet"><bdi>${table.get('namespace', row)}</bdi>/</span><bdi>${table.get('name', row)}</bdi></a>` },
  { name: 'finding', title: 'finding', size: '3.3rem', to: 420, cell: (table, row) => { const [severity, code] = table.get('finding', row).split(' '); return code ? html`<${Mark} kind=${severity}><span class="sr">${severity}</span>${code}<//>` : ''; } },
  { name: 'ready', title: 'ready', size: '4.6rem', number: true, to: 420, cell: (table, row) => html`<${Readiness} ready=${table.get('ready', row)} all=${table.get('endpoints', row)} />` },
  { name: 'ready', title: 'ready', size: '8rem', from: 420, number: true, cell: (table, row) => html`<${Readiness} ready=${table.get('ready', row)} all=${table.get('endpoints', row)} />` },
  { name: 'finding', title: 'finding', size: '9rem', from: 420, cell: (table, row) => { const [severity, code] = table.get('finding', row).split(' '); return code ? html`<${Mark} kind=${severity}>${severity} ${code}<//>` : ''; } },
  { name: 'changes', title: 'changes', size: '72px', from: 560, cell: (table, row) => html`<${Spark} values=${table.get('changes', row)} />` },
  { name: 'slices', title: 'slices', size: '4.5rem', number: true, from: 680 },
  { name: 'zones', title: 'zones', size: '4.5rem', number: true, from: 680 },
  { name: 'type', title: 'type', size: '7rem', from: 900 },
  { name: 'address', title: 'address', size: 'minmax(8rem, 1fr)', from: 780, cell: (table, row) => html`<bdi class="mono">${table.get('address', row)}</bdi>` },
  { name: 'ports', title: 'ports', size: 'minmax(5rem, 1fr)', from: 980, cell: (table, row) => html`<bdi class="mono">${table.get('ports', row)}</bdi>` },
];

const worstFirst = (table, row) => { const finding = table.get('finding', row); return finding.startsWith('error') ? 0 : finding ? 1 : 2; };
const Readiness = ({ ready, all }) => html`<span class=${`meter ${ready === all && all ? 'full' : ready ? 'part' : 'empty'}`}><span class="shape" aria-hidden="true">${ready === all && all ? '●' : ready ? '◐' : '○'}</span> ${ready}<span class="quiet">/${all}</span></span>`;

function Services({ state }) {
  const table = state.tables.services;
  const filter = place().query.get('q') || '';
  return html`<div class="bar"><h1>Services <span class="quiet">${digits(table.length)}</span></h1><${Filter} label="filter Services" /></div>
    ${state.parts.problem && html`<${Problem} text=${`findings: ${state.parts.problem}`} />`}
    <${Table} id="services" label="Services" table=${table} columns=${SERVICES} filter=${filter} rank=${worstFirst} onOpen=${(row) => go(['service', table.get('namespace', row), table.get('name', row)])} />`;
}

// ---- One Service

const ENDPOINTS = [
  { name: 'address', title: 'address', size: 'minmax(8rem, 1.2fr)', cell: (table, row) => html`<bdi class="mono">${table.get('address', row)}</bdi>` },
  { name: 'state', title: 'state', size: '7.5rem', cell: (table, row) => html`<${State} state=${table.get('state', row)} />` },
  { name: 'pod', title: 'Pod', size: 'minmax(8rem, 1.5fr)', from: 620 },
  { name: 'node', title: 'node', size: 'minmax(6rem, 1fr)', from: 440 },
  { name: 'zone', title: 'zone', size: 'minmax(5rem, 1fr)', from: 540 },
  { name: 'hints', title: 'hints', size: 'minmax(6rem, 1fr)', from: 760 },
  { name: 'slice', title: 'slice', size: 'minmax(7rem, 1fr)', from: 880, cell: (table, row) => html`<bdi class="mono">${table.get('slice', row)}</bdi>` },
];
const SLICES = [
  { name: 'name', title: 'slice', size: 'minmax(9rem, 2fr)', cell: (table, row) => html`<bdi class="mono">${table.get('name', row)}</bdi>` },
  { name: 'ready', title: 'ready', size: '6.5rem', number: true, cell: (table, row) => html`<${Readiness} ready=${table.get('ready', row)} all=${table.get('endpoints', row)} />` },
  { name: 'family', title: 'family', size: '5rem', from: 420 },
  { name: 'ports', title: 'ports', size: 'minmax(5rem, 1fr)', from: 520 },
  { name: 'version', title: 'version', size: '6rem', number: true, from: 620 },
];

function Service({ state, stream }) {
  const { service, explain, sums, fresh, trace, client, clients } = state.parts;
  const [namespace, name] = place().parts;
  const answer = explain?.answer;
  const { endpoints, slices } = state.tables;
  const shares = useMemo(() => trace?.answer && new Map(trace.answer.targets.map((target) => [target.address, target.share])), [trace]);
  const filter = place().query.get('q') || '';
  // Of a Service that is not there the answer says so; nothing else would be there to see.
  const shown = service || endpoints.length > 0 || slices.length > 0;
  const map = html`<${EndpointMap} table=${endpoints} shares=${shares} ready=${sums.zones} />`;
  return html`<div class="bar"><h1><span class="quiet"><bdi>${namespace}</bdi>/</span><bdi>${name}</bdi></h1>
      ${service && html`<span class="quiet">${service.type}</span> <bdi class="mono">${service.address}</bdi> ${service.ports.map((port) => html`<span class="mono quiet"><bdi>${port.name}</bdi> ${port.port}/${port.protocol}${port.target ? html` → <bdi>${port.target}</bdi>` : ''}</span> `)}`}
      <span class="links"><a href=${link(['timeline', namespace, name])}>timeline</a> <a href=${link(['zones', namespace, name])}>zones</a> <a href=${link(['what-if', namespace, name])}>what if</a> <a href=${link(['trace'], { to: `${name}.${namespace}${service?.ports[0] ? `:${service.ports[0].port}` : ''}`, from: client })}>trace</a></span></div>
    ${shown && html`<${Axes} answer=${answer} problem=${explain?.problem} fresh=${fresh} />`}
    <${Panel} id="explain" title="Explain" aside=${explain && html`<${Ago} at=${explain.at} stream=${stream} />`}>
      ${!explain ? html`<${Waiting}>walking the chain<//>` : explain.problem ? html`<${Problem} text=${explain.problem} />` : html`
        ${!answer.services && answer.missingRights.length > 0 && html`<${Problem} text=${`you may not ${answer.missingRights.join(', ')}`} />`}
        ${answer.services > 0 && answer.findings.length === 0 && html`<p class="well"><${Mark} kind="well">nothing is wrong<//> <span class="quiet">as far as one can see</span></p>`}
        ${answer.findings.map((finding, at) => html`<${Finding} key=${finding.code + finding.sentence} finding=${finding} open=${at === 0 && finding.severity !== 'note'} bare=${finding.subject.kind === 'Service' && finding.subject.name === name} />`)}
        ${answer.story && html`<p class="story"><bdi>${answer.story}</bdi></p>`}
        ${answer.well.length > 0 && html`<p class="quiet"><${Mark} kind="well">well<//> ${answer.well.join(', ')}</p>`}
        <${Unseen} phrases=${answer.notLookedAt} />`}
    <//>
    ${shown && html`<${Panel} id="map" title="Endpoints by zone and node" aside=${html`<${Client} client=${client} clients=${clients} />`}>
      <${Legend} states=${sums.states} />
      ${client && html`<${Reach} trace=${trace} client=${client} />`}
      ${endpoints.length > ELEMENTS_MAX ? html`<${Later}>${map}<//>` : map}
    <//>
    <${Later}>
      <div class="bar"><h2>${count(endpoints.length, 'endpoint')}</h2><${Filter} label="filter endpoints" /></div>
      <${Table} id="endpoints" label="endpoints" table=${endpoints} columns=${ENDPOINTS} filter=${filter} />
    <//>
    <${Later}>
      <h2 class="spaced">${count(slices.length, 'slice')}</h2>
      <${Table} id="slices" label="EndpointSlices" table=${slices} columns=${SLICES} scope="s" />
    <//>`}`;
}

// Right, fresh, true: three questions, never one light.
function Axes({ answer, problem, fresh }) {
  // What is wrong with a node's proxy is not wrong with the slices.
  const worst = (answer?.findings || []).find((finding) => finding.severity !== 'note' && !finding.code.startsWith('N'));
  const right = problem ? ['unknown', 'not known'] : !answer ? ['unknown', 'asking'] : !worst ? (answer.tooYoung ? ['unknown', 'too young to judge'] : answer.services ? ['well', 'nothing found'] : ['unknown', 'not known']) : [worst.severity, `${worst.severity} ${worst.code}`];
  const freshness = !fresh.known ? ['unknown', 'asking'] : fresh.problem ? ['unknown', 'not known'] : !fresh.nodes ? ['unknown', fresh.emulated ? count(fresh.emulated, 'emulated node') : 'no node reports'] : fresh.lateCount ? [fresh.untold === fresh.nodes ? 'unknown' : 'late', fresh.untold === fresh.nodes ? 'no node has told' : fresh.late.every((row) => row.state === fresh.late[0].state) ? `${fresh.lateCount} of ${fresh.nodes} ${fresh.late[0].state}` : `${fresh.lateCount} of ${fresh.nodes} not in step`] : ['well', `${fresh.nodes} of ${fresh.nodes} in step`];
  const words = Object.entries(fresh.kernel || {});
  const kernel = words.length ? words.map(([word, number]) => `${word} (${number})`).join(', ') : fresh.emulated ? 'no kernel' : 'not looked at';
  const bad = words.some(([word]) => word === 'differs');
  return html`<dl class="axes">
    <div><dt>right</dt><dd><${Mark} kind=${right[0]}>${right[1]}<//></dd><dd class="quiet">Do the EndpointSlices match the Pods that the Service selects?</dd></div>
    <div><dt>fresh</dt><dd><${Mark} kind=${freshness[0]}>${freshness[1]}<//></dd><dd class="quiet">Have the nodes’ proxies received the newest EndpointSlices?${(fresh.late || []).length && fresh.untold < fresh.nodes ? html` Not <bdi>${fresh.late.map((row) => row.node).join(', ')}</bdi>${fresh.lateCount > fresh.late.length ? ' …' : ''}` : ''}</dd></div>
    <div><dt>true</dt><dd><${Mark} kind=${bad ? 'error' : words.length && !words.some(([word]) => word !== 'same') ? 'well' : 'unknown'}><bdi>${kernel}</bdi><//></dd><dd class="quiet">Do the kernels’ rules match what the proxies hold?${words.length > 0 && words.every(([word]) => word === 'not looked at') && html` Ask with <span class="mono">sliceplane drift --node NODE --deep</span>`}</dd></div>
  </dl>`;
}

function Client({ client, clients }) {
  return html`<label class="client">seen from <select value=${client} onChange=${(event) => choose({ client: event.target.value })}>
    <option value="">nobody</option>
    ${clients.map(({ node, zone }) => html`<option key=${node} value=${`node/${node}`}>${node}${zone ? ` (${zone})` : ''}</option>`)}
    ${client && !clients.some(({ node }) => client === `node/${node}`) && html`<option value=${client}>${client}</option>`}
  </select></label>`;
}

function Reach({ trace, client }) {
  if (!trace) return html`<${Waiting}>sending a packet through ${client}'s rules<//>`;
  if (trace.problem) return html`<${Problem} text=${trace.problem} />`;
  const { answer } = trace;
  return html`<p class="reach"><${Mark} kind=${answer.targets.length ? 'well' : 'error'}>${answer.verdict}<//> <bdi>${answer.reason}</bdi>${answer.hints && html` <span class="quiet">hints: <bdi>${answer.hints.sentence}</bdi></span>`}</p>`;
}

// ---- Zones

function Zones({ state }) {
  const { service, services, nodes, shares, load, cross, dropped, demand, endpoints, leaving } = state.parts;
  const measured = Object.keys(demand).length > 0;
  const clients = Object.keys(shares);
  const columns = [...new Set([...clients, ...Object.keys(load)])].sort();
  const none = 'no zone';
  return html`<div class="bar"><h1>Zones${service && html` <span class="quiet">of <a href=${link(['service', ...named(service)])}><bdi>${service}</bdi></a></span>`}</h1>
      ${service && html`<span class="links"><a href=${link(['zones'])}>all Services</a></span>`}</div>
    ${!clients.some(Boolean) ? html`<p class="quiet">${clients.length ? `no Node has a zone label; ${count(nodes[''], 'Node')}` : 'no Node to see that takes Pods'}</p>` : !services ? html`<p class="quiet">${service ? html`<bdi>${service}</bdi> has no endpoint, or there is no such Service` : 'no Service has an endpoint'}</p>` : html`
    <p><b>${percent(cross)}</b> of connections leave their zone <span class="quiet">(${count(services, 'Service')} counted the same, clients ${measured ? 'as measured' : 'spread as Nodes that take Pods'})</span></p>
    ${dropped > 0 && html`<p><${Mark} kind="warning"><b>${percent(dropped)}</b><//> find no endpoint that they may use <span class="quiet">(internalTrafficPolicy Local asks for one on the client's own Node)</span></p>`}
    <div class="scroll" tabindex="0" role="region" aria-label="matrix of zones"><table class="matrix">
      <thead><tr><th scope="col">from clients in</th>${columns.map((zone) => html`<th scope="col">to <bdi>${zone || none}</bdi></th>`)}<th scope="col">Nodes</th></tr></thead>
      <tbody>${clients.map((client) => html`<tr key=${client}><th scope="row"><bdi>${client || none}</bdi></th>
        ${columns.map((zone) => { const share = shares[client][zone] || 0; return html`<td class=${`heat h${Math.ceil(share * 5)}${zone && zone === client ? ' own' : ''}`}>${percent(share)}</td>`; })}
        <td>${nodes[client] || 0}</td></tr>`)}</tbody>
      <tfoot>
        ${measured && html`<tr><th scope="row">connections that start here</th>${columns.map((zone) => html`<td>${percent(demand[zone] || 0)}</td>`)}<td></td></tr>`}
        <tr><th scope="row">endpoints ready</th>${columns.map((zone) => html`<td>${digits(endpoints[zone] || 0)}</td>`)}<td></td></tr>
        <tr><th scope="row">load of one (1 is even)</th>${columns.map((zone) => { const value = load[zone]; return html`<td>${value === undefined ? '–' : value > 1.2 ? html`<${Mark} kind="warning">${value.toFixed(2)}<//>` : value.toFixed(2)}</td>`; })}<td></td></tr>
      </tfoot>
    </table></div>
    ${!service && leaving.length > 0 && html`<h2 class="spaced">Services that leave their zone most</h2>
      <table class="leaving"><tbody>${leaving.map(([key, share]) => html`<tr key=${key}><td class="number">${percent(share)}</td><td><a href=${link(['zones', ...named(key)])}><bdi>${key}</bdi></a></td></tr>`)}</tbody></table>`}`}`;
}

// ---- Nodes

const NODE_MARKS = { 'in step': 'well', 'catching up': 'late', behind: 'late', 'lost an event': 'error', 'kernel differs': 'error', stopped: 'error', emulated: 'note' };
const NODES = [
  { name: 'node', title: 'node', size: 'minmax(8rem, 1.5fr)' },
  { name: 'state', title: 'state', size: '9rem', cell: (table, row) => html`<${Mark} kind=${NODE_MARKS[table.get('state', row)] || 'unknown'}>${table.get('state', row)}<//>` },
  { name: 'behind', title: 'behind', size: '9rem', from: 424 },
  { name: 'told', title: 'last told', size: '6rem', number: true, from: 530, cell: (table, row) => (table.get('told', row) < 0 ? 'never' : lasting(table.get('told', row))) },
  { name: 'version', title: 'version', size: '6rem', number: true, from: 720, cell: (table, row) => table.get('version', row) || '–' },
  { name: 'cache', title: 'cache (digest)', size: 'minmax(8rem, 1fr)', from: 840 },
  { name: 'kernel', title: 'kernel', size: 'minmax(6rem, 1fr)', from: 940 },
  { name: 'zone', title: 'zone', size: 'minmax(5rem, 1fr)', from: 640 },
  { name: 'kubelet', title: 'kubelet', size: '6rem', from: 1040 },
];

// In the order of the server, a tree: each below its parent.
const RELAY_MARKS = { ready: 'well', starting: 'note', behind: 'late', shared: 'warning', stopped: 'error', 'not ready': 'error' };
const RELAYS = [
  { name: 'name', title: 'relay', size: 'minmax(8rem, 2fr)', fixed: true, cell: (table, row) => html`<span title=${`below ${table.get('parent', row)}`} style=${{ paddingLeft: `${Math.min(table.get('level', row) - 1, 8) * 14}px` }}><span class="sr">level ${table.get('level', row)}, below ${table.get('parent', row)}: </span><bdi>${table.get('name', row)}</bdi></span>` },
  { name: 'state', title: 'state', size: '7rem', fixed: true, cell: (table, row) => html`<${Mark} kind=${RELAY_MARKS[table.get('state', row)] || 'unknown'}>${table.get('state', row)}<//>` },
  { name: 'secondsSilent', title: 'silent', size: '4.5rem', number: true, from: 300, fixed: true, cell: (table, row) => (['ready', 'shared', 'behind'].includes(table.get('state', row)) ? lasting(table.get('secondsSilent', row)) : '–') },
  { name: 'watches', title: 'watches', size: '5rem', number: true, from: 424, fixed: true, cell: (table, row) => digits(table.get('watches', row)) },
  { name: 'nodes', title: 'nodes', size: '5rem', number: true, from: 530, fixed: true, cell: (table, row) => digits(table.get('nodes', row)) },
  { name: 'zone', title: 'zone', size: 'minmax(5rem, 1fr)', from: 640, fixed: true },
  { name: 'parent', title: 'parent', size: 'minmax(8rem, 2fr)', from: 760, fixed: true },
  { name: 'secondsSinceReport', title: 'last told', size: '6rem', number: true, from: 840, fixed: true, cell: (table, row) => lasting(table.get('secondsSinceReport', row)) },
];

function Nodes({ state, stream }) {
  const { at, problem, findings, notLookedAt } = state.parts;
  const { nodes: table, relays } = state.tables;
  return html`<div class="bar"><h1>Nodes <span class="quiet">${digits(table.length)}</span></h1><${Filter} label="filter nodes" /> ${at && html`<span class="quiet">asked <${Ago} at=${at} stream=${stream} /></span>`}</div>
    ${problem && html`<${Problem} text=${problem} />`}
    ${findings.map((finding) => html`<${Finding} key=${finding.sentence} finding=${finding} open=${findings.length < 3} />`)}
    ${relays.length > 0 && html`<h2 class="spaced">${count(relays.length, 'relay')}</h2><${Table} id="relays" label="relays" table=${relays} columns=${RELAYS} /><h2 class="spaced">${count(table.length, 'node')}</h2>`}
    <${Table} id="nodes" label="nodes" table=${table} columns=${NODES} filter=${place().query.get('q') || ''} />
    <${Unseen} phrases=${notLookedAt} />`;
}

// ---- Drains

const DRAIN_MARKS = { drained: 'well', 'cannot know': 'unknown', waiting: 'late', 'in use': 'note' };

const Barrier = ({ row, at }) => html`<li><${Mark} kind=${DRAIN_MARKS[row.state]}>${row.state}<//>
  <div><b><bdi>${row.pod}</bdi></b> <span class="quiet">${row.node && html`on <bdi>${row.node}</bdi>, `}${row.until ? `${clock(row.since)} to ${clock(row.until)}` : `since ${clock(row.since)}`}</span>
    <div class="quiet"><bdi>${row.says}</bdi></div>
    ${!row.until && / more\b/.test(row.says) && html`<ul class="late">${row.waitingFor.slice(0, 20).map((node) => html`<li key=${node}><bdi>${node}</bdi></li>`)}${row.waitingFor.length > 20 && html`<li class="quiet">and ${row.waitingFor.length - 20} more</li>`}</ul>`}</div></li>`;

function Drains({ state, stream }) {
  const { drains } = state.parts;
  const answer = drains?.answer;
  return html`<div class="bar"><h1>Drains</h1>${drains && html`<span class="quiet">asked <${Ago} at=${drains.at} stream=${stream} /></span>`}</div>
    <p class="quiet">A Pod is drained when no node's kernel sends it new connections any more. Connections that are open end when the application ends them.</p>
    ${!drains ? html`<${Waiting}>looking for Pods that leave<//>` : drains.problem ? html`<${Problem} text=${drains.problem} />` : html`
      <${Panel} id="going" title=${answer.going.length ? `${count(answer.going.length + answer.more, 'Pod')} leaving` : 'No Pod is leaving'}><ol class="barriers">${answer.going.map((row) => html`<${Barrier} key=${row.uid} row=${row} />`)}</ol><//>
      <${Panel} id="ended" title="Ended"><ol class="barriers">${answer.ended.map((row) => html`<${Barrier} key=${row.uid + row.until} row=${row} />`)}</ol>${!answer.ended.length && html`<p class="quiet">none has ended since it was looked at first</p>`}<//>
      <${Unseen} phrases=${answer.notLookedAt} />`}`;
}

// ---- Timeline

function Timeline({ state, stream }) {
  const { service, since, timeline, services } = state.parts;
  if (!service) {
    const words = (place().query.get('q') || '').toLowerCase();
    const found = services.filter((key) => key.toLowerCase().includes(words));
    return html`<div class="bar"><h1>Timeline</h1><${Filter} label="filter Services" /></div><p class="quiet">of which Service?</p>
      <ul class="choices">${found.slice(0, 200).map((key) => html`<li key=${key}><a href=${link(['timeline', ...named(key)])}><bdi>${key}</bdi></a></li>`)}</ul>`;
  }
  const lines = timeline?.answer?.lines || [];
  return html`<div class="bar"><h1>Timeline <span class="quiet">of <a href=${link(['service', ...named(service)])}><bdi>${service}</bdi></a></span></h1>
      <label>the last <select value=${since} onChange=${(event) => choose({ since: event.target.value })}>${['10m', '1h', '6h'].map((text) => html`<option value=${text}>${text}</option>`)}</select></label>
      ${timeline && html`<span class="quiet">asked <${Ago} at=${timeline.at} stream=${stream} /></span>`}</div>
    ${!timeline ? html`<${Waiting}>reading what was recorded<//>` : timeline.problem ? html`<${Problem} text=${timeline.problem} />` : html`
      ${timeline.answer.notice && html`<p class="quiet"><bdi>${timeline.answer.notice}</bdi></p>`}
      ${!lines.length && html`<p class="quiet">nothing happened in this time</p>`}
      <ol class="timeline">${lines.slice().reverse().slice(0, 200).map((entry) => html`<li key=${entry.time + entry.what}><${Event} entry=${entry} /></li>`)}</ol>`}`;
}

function Event({ entry }) {
  const took = (Date.parse(entry.until) - Date.parse(entry.time)) / 1000;
  return html`<time dateTime=${entry.time}>${clock(Date.parse(entry.time) / 1000)}</time>
    <div><b><bdi>${entry.what}</bdi></b>${took >= 0.05 && html` <span class="quiet">in ${lasting(took)}</span>`} <span class="quiet">by <bdi>${entry.who || '?'}</bdi></span>
      ${entry.followed && html`<div class="quiet"><bdi>${entry.followed}</bdi></div>`}
      ${entry.opened.length > 1 && html`<details><summary>${count(entry.opened.length, 'change')}</summary><ol class="opened">${entry.opened.slice(0, 200).map((sub) => html`<li><time>${clock(Date.parse(sub.time) / 1000)}</time> <bdi>${sub.what}</bdi> <span class="quiet">by <bdi>${sub.who || '?'}</bdi></span></li>`)}</ol></details>`}
    </div>`;
}

// ---- Trace

const FIELDS = [['from', 'From', 'node/NODE, [pod/]NAME or an address'], ['to', 'To', 'SERVICE.NAMESPACE:PORT or ADDRESS:PORT'], ['node', 'Node', 'whose rules; the sender’s']];

function Trace({ state }) {
  const { query } = place();
  const asked = query.get('from') && query.get('to') ? ['from', 'to', 'protocol', 'node', 'namespace'].map((name) => [name, query.get(name) || '']) : null;
  const text = asked ? String(new URLSearchParams(asked)) : '';
  const answer = useAnswer(text && `v1/trace?${text}`);
  const onSubmit = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    choose(Object.fromEntries(['from', 'to', 'protocol', 'node'].map((name) => [name, form.get(name).trim()])));
  };
  const example = { from: state.parts.nodes.length ? `node/${state.parts.nodes[0]}` : '', to: state.parts.services.length ? state.parts.services[0].split('/').reverse().join('.') : '' };
  return html`<h1>Trace</h1><p class="quiet">Where does the packet go that opens a connection, and why?</p>
    <form class="trace" onSubmit=${onSubmit} key=${text}>
      ${FIELDS.map(([name, title, hint]) => html`<label><span>${title}</span><input name=${name} list=${`known-${name}`} value=${query.get(name) || example[name] || ''} aria-describedby=${`hint-${name}`} required=${name !== 'node'} autocomplete="off" spellcheck=${false} /><small class="quiet" id=${`hint-${name}`}>${hint}</small></label>`)}
      <label><span>Protocol</span><select name="protocol" value=${query.get('protocol') || ''}><option value="">the Service’s</option><option value="tcp">TCP</option><option value="udp">UDP</option><option value="sctp">SCTP</option></select></label>
      <button type="submit">Trace</button>
      <datalist id="known-from">${state.parts.nodes.slice(0, 100).map((node) => html`<option value=${`node/${node}`} />`)}</datalist>
      <datalist id="known-to">${state.parts.services.slice(0, 200).map((key) => html`<option value=${key.split('/').reverse().join('.')} />`)}</datalist>
      <datalist id="known-node">${state.parts.nodes.slice(0, 100).map((node) => html`<option value=${node} />`)}</datalist>
    </form>
    ${text && (!answer ? html`<${Waiting}>sending it through the rules<//>` : answer.problem ? html`<${Problem} text=${answer.problem} />` : html`<${Verdict} answer=${answer.answer} />`)}`;
}

function Verdict({ answer }) {
  const { source, destination, node, service, hints } = answer;
  const good = answer.verdict === 'dnat' || answer.verdict === 'accept';
  const facts = [
    ['from', `${source.address}${source.kind !== 'other' ? `, ${source.kind} ${source.name}` : ''}`],
    ['to', `${destination.address}:${destination.port}/${destination.protocol}${destination.is.length ? `, ${destination.is.join(', ')}` : ''}`],
    ['at', `node ${node.name}${node.zone ? `, zone ${node.zone}` : ''}`],
    service && ['policy', `${service.policyField} ${service.policy}`],
    hints && ['hints', hints.sentence],
    ['masquerade', answer.masquerade],
    answer.chains.length && ['chains', answer.chains.join(', ')],
    answer.element && ['element', answer.element],
  ].filter(Boolean);
  return html`<section class="panel" aria-label="answer"><p class="verdict"><${Mark} kind=${good ? 'well' : 'error'}>${answer.verdict}<//> <bdi>${answer.reason}</bdi></p>
    <dl class="facts">${facts.map(([name, text]) => html`<dt>${name}</dt><dd><bdi>${text}</bdi></dd>`)}</dl>
    ${answer.findings.map((finding) => html`<${Finding} finding=${finding} open=${true} />`)}
    ${answer.targets.length + answer.others.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="endpoints"><table>
      <thead><tr><th scope="col">share</th><th scope="col">endpoint</th><th scope="col">Pod</th><th scope="col">node</th><th scope="col">zone</th><th scope="col">why</th></tr></thead>
      <tbody>${[...answer.targets, ...answer.others].slice(0, 200).map((target) => html`<tr class=${target.probability ? '' : 'unused'}>
        <td><span class="share">${target.share}</span></td><td class="mono"><bdi>${target.address}:${target.port}</bdi></td><td><bdi>${target.pod}</bdi></td><td><bdi>${target.node}</bdi></td><td><bdi>${target.zone}</bdi></td><td><bdi>${target.why}</bdi></td></tr>`)}</tbody>
    </table></div>`}
    ${answer.notes.map((note) => html`<p class="quiet"><bdi>${note}</bdi></p>`)}
  </section>`;
}

// ---- All of them: what the server is asked for, by the place

const Nowhere = () => html`<h1>There is no such view</h1><p class="quiet">Nothing is at <bdi class="mono">${location.hash}</bdi>. The views are above; one Service is at <span class="mono">#/service/NAMESPACE/NAME</span>.</p>`;

// How many names may follow a view in the URL.
const NAMES = { service: [2], zones: [0, 2], timeline: [0, 2], 'what-if': [0, 2] };
export const isPlace = ({ view, parts }) => Object.hasOwn(VIEWS, view) && (NAMES[view] || [0]).includes(parts.length);

export const VIEWS = {
  nowhere: { title: 'No such view', show: Nowhere, query: () => ({ view: 'now' }), sums: () => 'there is no such view' },
  now: { title: 'Now', show: Now, query: () => ({ view: 'now' }), sums: ({ sums }) => `${count(sums.services, 'Service')}, ${count(sums.endpoints.ready, 'endpoint')} ready` },
  services: { title: 'Services', show: Services, query: () => ({ view: 'services' }), sums: (_, { services }) => count(services.length, 'Service') },
  service: { show: Service, query: ({ parts, query }) => ({ view: 'service', service: parts.slice(0, 2).join('/'), client: query.get('client') || '' }), sums: ({ sums }) => `${count(sums.states.ready, 'endpoint')} ready, ${sums.states['not ready']} not ready` },
  zones: { title: 'Zones', show: Zones, query: ({ parts }) => ({ view: 'zones', service: parts.slice(0, 2).join('/') }), sums: ({ cross }) => `${percent(cross)} of connections leave their zone` },
  nodes: { title: 'Nodes', show: Nodes, query: () => ({ view: 'nodes' }), sums: (_, { nodes }) => count(nodes.length, 'node') },
  drains: { title: 'Drains', show: Drains, query: () => ({ view: 'drains' }), sums: ({ drains }) => `${count(drains?.answer?.going.length || 0, 'Pod')} leaving` },
  timeline: { title: 'Timeline', show: Timeline, query: ({ parts, query }) => ({ view: 'timeline', service: parts.slice(0, 2).join('/'), since: query.get('since') || '10m' }), sums: ({ timeline }) => count(timeline?.answer?.lines.length || 0, 'line') },
  trace: { title: 'Trace', show: Trace, query: () => ({ view: 'trace' }), sums: () => '', command: ({ query }) => (query.get('from') && query.get('to') ? `sliceplane trace ${['from', 'to', 'protocol', 'node'].filter((name) => query.get(name)).map((name) => `--${name} ${query.get(name)}`).join(' ')}` : '') },
  'what-if': { title: 'What-if', show: WhatIf, query: ({ parts }) => ({ view: 'what-if', service: parts.slice(0, 2).join('/') }), sums: () => '', command },
};
