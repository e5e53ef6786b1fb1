// What every part of the page uses: markup by tagged templates (no eval, no innerHTML), words for times and numbers,
// and where one is, which is in the URL after the #.
import { h } from './vendor/preact.js';
import htm from './vendor/htm.js';

export const html = htm.bind(h);

// 20,000; Intl takes 30 ms for its first number.
export const digits = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ',');

export const noun = (number, word, plural = word + 's') => (number === 1 ? word : plural);
export const count = (number, word, plural) => `${digits(number)} ${noun(number, word, plural)}`;

export const clock = (seconds) => {
  const at = new Date(seconds * 1000);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map((part) => String(part).padStart(2, '0')).join(':');
};

export const lasting = (seconds) => {
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
};

export const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)}%`;

// #/service/shop/cart?client=node%2Fa&scheme=dark
export function place() {
  const [path, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  const parts = path.split('/').filter(Boolean).map(decoded);
  return { view: parts[0] || 'now', parts: parts.slice(1), query: new URLSearchParams(query) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// Where a link leads: the scheme stays as it is, what else was chosen belongs to the view.
export function link(path, query = {}) {
  const kept = new URLSearchParams();
  const scheme = place().query.get('scheme');
  if (scheme) kept.set('scheme', scheme);
  for (const [name, value] of Object.entries(query)) if (value) kept.set(name, value);
  const text = String(kept);
  return `#/${path.map(encodeURIComponent).join('/')}${text ? `?${text}` : ''}`;
}

// Changes what is chosen in this view; the URL tells it, and the history is not filled with each letter.
export function choose(changes) {
  const { query } = place();
  for (const [name, value] of Object.entries(changes)) value ? query.set(name, value) : query.delete(name);
  const text = String(query);
  history.replaceState(null, '', (location.hash.split('?')[0] || '#/now') + (text ? `?${text}` : ''));
  dispatchEvent(new Event('hashchange'));
}
