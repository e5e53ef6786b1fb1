// The page: where one is, how fresh it is, keys, and the view.
import { render } from './vendor/preact.js';
import { useEffect, useReducer, useRef, useState } from './vendor/hooks.js';
import { choose, clock, html, lasting, link, place } from './base.js';
import { Command, Mark, Troubles, Waiting } from './parts.js';
import { Stream } from './stream.js';
import { isPlace, VIEWS } from './views.js';

const TABS = ['now', 'services', 'zones', 'nodes', 'drains', 'timeline', 'trace', 'what-if'];
const KEYS = [
  ['/', 'to the filter'], ['1 – 8', 'the views'], ['↑ ↓ PgUp PgDn Home End', 'in a table'], ['Enter', 'opens the row'],
  ['Esc', 'out of the filter, or back'], ['p', 'pause, and go on'], ['d', 'dark or light'], ['?', 'this'],
];
//: beyond this the page is old
const STALE_S = 5;
const SAID_EVERY_MS = 10000;

let shown = () => {};
const stream = new Stream((state) => shown(state));
stream.now = () => Date.now() / 1000 - (stream.state.offset < Infinity ? stream.state.offset : 0);

// A one-time link: its secret leaves the URL and the history before anything else is asked for.
const LINK = '#login=';
let refused = '';
async function followLink() {
  const link = location.hash.slice(LINK.length);
  history.replaceState(null, '', `${location.pathname}#/now`);
  refused = await stream.post('login', { link });
}

const stale = (state) => state.phase === 'lost' || (state.at > 0 && stream.behind() > STALE_S);

function Freshness({ state }) {
  const [, tick] = useReducer((n) => n + 1, 0);
  useEffect(() => {
    const timer = setInterval(tick, 300);
    return () => clearInterval(timer);
  }, []);
  const behind = stream.behind();
  const old = stale(state);
  document.documentElement.classList.toggle('stale', old || stream.paused);
  if (state.phase === 'login') return '';
  if (!state.at) return html`<span class="freshness">${state.phase === 'lost' ? html`<${Mark} kind="error">no answer<//>` : 'opening'}</span>`;
  return html`<span class="freshness"><span class="shape" aria-hidden="true">${stream.paused ? '‖' : old ? '○' : '●'}</span>
    as of <time>${clock(state.at)}</time>, <span class="behind">${lasting(behind)}</span> behind${stream.paused ? ', paused' : state.phase === 'lost' ? ', the stream is gone' : old ? ', the cluster is not heard of' : ''}</span>`;
}

function Help({ close }) {
  const box = useRef();
  useEffect(() => { box.current.showModal(); }, []);
  return html`<dialog ref=${box} onClose=${close} aria-labelledby="help-title"><h2 id="help-title">Keys</h2>
    <dl class="facts">${KEYS.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
    <h3>Shapes</h3><p><${Mark} kind="error">error<//> <${Mark} kind="warning">warning<//> <${Mark} kind="note">note<//> <${Mark} kind="well">well<//> <${Mark} kind="late">behind<//> <${Mark} kind="unknown">not known<//></p>
    <form method="dialog"><button autofocus>close</button></form></dialog>`;
}

function LogIn({ says }) {
  const [why, setWhy] = useState(refused);
  useEffect(() => { refused = ''; }, []);
  const onSubmit = async (event) => {
    event.preventDefault();
    const form = event.target;
    setWhy(await stream.post('login', Object.fromEntries(new FormData(form))));
  };
  return html`<h1>Log in</h1><p class="quiet">You see what your token may see. It is checked once and stays in the server's memory, half an hour after you used it last and eight hours at most.</p>
    ${(why || says !== 'log in') && html`<p class="trouble" role="alert"><${Mark} kind="error">${why ? 'not let in' : 'logged out'}<//> <bdi>${why || says}</bdi></p>`}
    <form class="trace" onSubmit=${onSubmit}>
      <label><span>Token</span><input name="token" type="password" required autocomplete="off" spellcheck=${false} aria-describedby="hint-token" /><small class="quiet" id="hint-token">kubectl create token ACCOUNT</small></label>
      <label><span>Namespace</span><input name="namespace" autocomplete="off" spellcheck=${false} aria-describedby="hint-namespace" /><small class="quiet" id="hint-namespace">if you may not see all; of an account, its own</small></label>
      <button type="submit">Log in</button>
    </form>`;
}

function Said({ state }) {
  const [text, setText] = useState('');
  const last = useRef(0);
  const view = VIEWS[place().view];
  const sums = state.parts && view && state.name === place().view ? view.sums(state.parts, state.tables) : '';
  useEffect(() => {
    const due = Math.max(0, last.current + SAID_EVERY_MS - performance.now());
    const timer = setTimeout(() => { last.current = performance.now(); setText(sums); }, due);
    return () => clearTimeout(timer);
  }, [sums]);
  return html`<div class="sr" role="status">${text}</div>`;
}

function Page() {
  const [state, setState] = useState(stream.state);
  const [here, setHere] = useState(place());
  const [help, setHelp] = useState(false);
  shown = setState;
  const view = isPlace(here) ? here.view : 'nowhere';
  const scheme = here.query.get('scheme');

  // Before anything is drawn: a canvas takes its colours from the style.
  if (scheme === 'dark' || scheme === 'light') document.documentElement.dataset.scheme = scheme;
  else delete document.documentElement.dataset.scheme;

  useEffect(() => {
    const moved = () => (location.hash.startsWith(LINK) ? location.reload() : setHere(place()));
    const dark = matchMedia('(prefers-color-scheme: dark)');
    addEventListener('hashchange', moved);
    dark.addEventListener('change', moved);
    return () => {
      removeEventListener('hashchange', moved);
      dark.removeEventListener('change', moved);
    };
  }, []);
  const wanted = String(new URLSearchParams(VIEWS[view].query(here)));
  useEffect(() => { stream.open(wanted); setState({ ...stream.state }); }, [wanted]);
  useEffect(() => {
    document.title = `${VIEWS[view].title || here.parts.join('/')} · Sliceplane`;
    if (!document.querySelector('[data-filter]:focus')) scrollTo(0, 0);
  }, [view, here.parts.join('/')]);

  const flip = () => choose({ scheme: (scheme || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark' ? 'light' : 'dark' });
  const pause = () => { stream.pause(!stream.paused); setState({ ...stream.state }); };
  useEffect(() => {
    const onKey = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const typing = event.target.closest?.('input, select, textarea, dialog');
      if (event.key === 'Escape' && !event.target.closest?.('dialog')) {
        if (typing) {
          event.target.blur();
          document.querySelector('[role=grid]')?.focus();
        } else if (view === 'service') location.hash = link(['services']).slice(1);
        return;
      }
      if (typing) return;
      const number = Number(event.key);
      if (event.key === '/') {
        event.preventDefault();
        document.querySelector('[data-filter], form input')?.focus();
      } else if (event.key === '?') setHelp(true);
      else if (event.key === 'p') pause();
      else if (event.key === 'd') flip();
      else if (number >= 1 && number <= TABS.length) location.hash = link([TABS[number - 1]]).slice(1);
    };
    addEventListener('keydown', onKey);
    return () => removeEventListener('keydown', onKey);
  });

  const Shown = VIEWS[view].show;
  // Only our own server has logins; elsewhere the page has the rights of a kubeconfig.
  const whose = state.cookie === undefined ? 'with the rights of the kubeconfig user' : 'logged in as';
  const ready = view === 'nowhere' || (state.parts && state.name === view && stream.query === wanted);
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById('main').focus(); }}>to the content</a>
    <header class="top">
      <span class="brand">sliceplane</span>
      ${state.user && html`<span class="account" title=${`${whose} ${state.user}`}><span class="sr">${whose} </span><bdi>${state.user}</bdi></span>`}
      <nav aria-label="views">${TABS.map((name) => html`<a key=${name} href=${link([name])} aria-current=${name === view || (name === 'services' && view === 'service') ? 'page' : undefined}>${VIEWS[name].title}</a>`)}</nav>
      <span class="tools"><${Freshness} state=${state} />
        <button type="button" onClick=${pause} aria-pressed=${stream.paused}>${stream.paused ? 'go on' : 'pause'}</button>
        <button type="button" onClick=${flip}>dark / light</button>
        <button type="button" onClick=${() => setHelp(true)} aria-label="keys">?</button></span>
    </header>
    <${Troubles} troubles=${state.troubles} />
    ${state.phase === 'lost' && html`<div class="trouble" role="alert"><${Mark} kind="error">the stream is gone<//> <bdi>${state.problem}</bdi>; trying again</div>`}
    <main id="main" tabindex="-1">${state.phase === 'login' ? html`<${LogIn} says=${state.says} />` : ready ? html`<${Shown} state=${state} stream=${stream} />` : html`<h1 class="sr">${VIEWS[view].title || 'Service'}</h1><${Waiting}>reading<//>`}</main>
    <footer><${Command} command=${ready ? VIEWS[view].command?.(here) || state.command : ''} /><span class="quiet where"><bdi>${state.server}</bdi>${state.namespace && html`, namespace <bdi>${state.namespace}</bdi>`} ${state.user && html` · as <bdi>${state.user}</bdi>`} · read-only${state.cookie && state.user && html` <button type="button" class="copy" onClick=${() => stream.post('logout')}>log out</button>`}</span></footer>
    <${Said} state=${state} />
    ${help && html`<${Help} close=${() => setHelp(false)} />`}`;
}

// The text of <noscript> goes.
const root = document.getElementById('page');
root.replaceChildren();
if (location.hash.startsWith(LINK)) await followLink();
render(html`<${Page} />`, root);
performance.mark('page-rendered');
