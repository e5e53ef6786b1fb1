// The one stream of this tab: NDJSON by fetch.  Messages change the view's parts and tables at once; the page is drawn
// when a frame is due.  A tab that is hidden has no stream.  When the stream breaks, what was shown stays, grey.

const LOG_MAX = 16;
const PIECE = 500;
const MIN_MS = 2;

// Rows by column.  Words that repeat are kept once, rows hold their number.
export class Columns {
  constructor(document) {
    this.names = document.columns.map((column) => column.name);
    this.keys = document.keys;
    this.length = document.count;
    this.columns = {};
    for (const column of document.columns) {
      this.columns[column.name] = column.words
        ? { words: column.words, numbers: new Map(column.words.map((word, number) => [word, number])), index: Uint32Array.from(column.index) }
        : { values: column.values };
    }
    this.version = 1;
    this.shape = 1;
    this.places = new Map();
    this.placed = 0;
    // The last changes that left all rows where they were: whoever has drawn a version draws these alone.
    this.log = [];
  }

  get(name, row) {
    const column = this.columns[name];
    return column.words ? column.words[column.index[row]] : column.values[row];
  }

  key(row) {
    let key = this.get(this.names[0], row);
    for (let part = 1; part < this.keys; part++) key += '\n' + this.get(this.names[part], row);
    return key;
  }

  find(key) {
    this.index();
    return this.places.get(key);
  }

  // Finds out where rows are by key, for as long as there is time; whether it is at the end.
  index(hasTime = () => true) {
    for (; this.placed < this.length; this.placed++) {
      if (!(this.placed % PIECE) && !hasTime()) return false;
      this.places.set(this.key(this.placed), this.placed);
    }
    return true;
  }

  apply(change) {
    this.version++;
    const touched = [];
    const { shape } = this;
    for (const row of change.set) {
      const key = row.slice(0, this.keys).join('\n');
      let at = this.find(key);
      if (at === undefined) {
        at = this.length++;
        this.placed++;
        this.places.set(key, at);
        this.shape++;
      }
      this.names.forEach((name, number) => this.put(name, at, row[number]));
      touched.push(at);
    }
    for (const parts of change.gone) {
      const key = parts.join('\n');
      const at = this.find(key);
      if (at === undefined) continue;
      const last = this.length - 1;
      const moved = this.key(last);
      if (at !== last) for (const name of this.names) this.put(name, at, this.get(name, last));
      this.places.set(moved, at);
      this.places.delete(key);
      this.length--;
      this.placed--;
      this.shape++;
    }
    if (shape !== this.shape) this.log = [];
    else if (this.log.push({ version: this.version, rows: touched }) > LOG_MAX) this.log.shift();
  }

  // Rows that changed since *version*; null: too long ago, or rows have moved.
  since(version) {
    const missed = this.version - version;
    if (missed > this.log.length) return null;
    return missed ? this.log.slice(-missed).flatMap((entry) => entry.rows) : [];
  }

  put(name, row, value) {
    const column = this.columns[name];
    if (!column.words) {
      column.values[row] = value;
      return;
    }
    let number = column.numbers.get(value);
    if (number === undefined) {
      number = column.words.push(value) - 1;
      column.numbers.set(value, number);
    }
    if (row >= column.index.length) {
      const wider = new Uint32Array(Math.max(64, column.index.length * 2));
      wider.set(column.index);
      column.index = wider;
    }
    column.index[row] = number;
  }
}

const RETRY_MS = [500, 1000, 2000, 4000, 8000];

export class Stream {
  // *changed* is called once a frame at most.
  constructor(changed) {
    this.changed = changed;
    this.query = '';
    this.paused = false;
    this.state = { phase: 'opening', parts: null, tables: {}, name: '', command: '', server: '', namespace: '', at: 0, offset: Infinity, troubles: [], problem: '', version: 0 };
    this.tries = 0;
    this.timer = 0;
    this.due = 0;
    document.addEventListener('visibilitychange', () => (document.hidden ? this.close() : this.open(this.query, true)));
  }

  open(query, again = false) {
    if (!again && query === this.query && this.abort) return;
    const same = query === this.query;
    this.close();
    this.query = query;
    if (!same) Object.assign(this.state, { parts: null, tables: {}, command: '', phase: 'opening', problem: '' });
    if (document.hidden || this.paused) return;
    this.abort = new AbortController();
    this.read(this.abort).catch(() => {});
  }

  close() {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = null;
  }

  pause(paused) {
    this.paused = paused;
    if (paused) this.close();
    else this.open(this.query, true);
    this.draw();
  }

  async read(abort) {
    try {
      const response = await fetch(`v1/stream?${this.query}`, { signal: abort.signal, cache: 'no-store' });
      if (!response.ok) throw new Error(await response.text());
      const reader = response.body.getReader();
      const decoder = new TextDecoder();
      let rest = '';
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        rest += decoder.decode(value, { stream: true });
        const end = rest.lastIndexOf('\n');
        if (end < 0) continue;
        for (const line of rest.slice(0, end).split('\n')) if (!abort.signal.aborted) this.take(JSON.parse(line));
        rest = rest.slice(end + 1);
      }
      throw new Error('the stream has ended');
    } catch (error) {
      if (abort.signal.aborted) return;
      this.state.phase = 'lost';
      this.state.problem = String(error.message || error).trim();
      this.abort = null;
      this.timer = setTimeout(() => this.open(this.query, true), RETRY_MS[Math.min(this.tries++, RETRY_MS.length - 1)]);
      this.draw();
    }
  }

  take(message) {
    const state = this.state;
    switch (message.type) {
      case 'hello':
        Object.assign(state, { server: message.server, namespace: message.namespace, user: message.user, cookie: message.cookie, offset: Infinity });
        return;
      case 'ended':
        this.ended(message.says);
        return;
      // Rights are others: nothing that was read before is shown any more.
      case 'dropped':
        Object.assign(state, { parts: null, tables: {}, command: '' });
        break;
      case 'view':
        performance.mark('view-received');
        Object.assign(state, { name: message.name, command: message.command, parts: message.parts, tables: {} });
        for (const [name, table] of Object.entries(message.tables)) state.tables[name] = new Columns(table);
        for (const table of Object.values(state.tables)) {
          const index = (idle) => table.index(() => idle.timeRemaining() > MIN_MS) || requestIdleCallback(index);
          requestIdleCallback(index);
        }
        break;
      case 'delta':
        performance.mark('delta-received');
        state.parts = { ...state.parts, ...message.parts };
        if (message.command) state.command = message.command;
        for (const [name, change] of Object.entries(message.tables)) state.tables[name].apply(change);
        break;
      case 'beat': {
        const quiet = JSON.stringify(state.troubles) === JSON.stringify(message.troubles) && state.phase === 'live';
        Object.assign(state, { at: message.at, phase: 'live', problem: '', troubles: message.troubles, offset: Math.min(state.offset, Date.now() / 1000 - message.sent) });
        this.tries = 0;
        if (quiet) return;
        break;
      }
      default:
        return;
    }
    state.version++;
    this.draw();
  }

  // Who was shown something is to log in (again).
  ended(says) {
    this.close();
    Object.assign(this.state, { phase: 'login', says: says.trim(), parts: null, tables: {}, command: '', user: '', at: 0, troubles: [], problem: '' });
    this.draw();
  }

  // Logs in or out.  Returns the reason for a refusal; ''.
  async post(path, form = {}) {
    try {
      const response = await fetch(`v1/${path}`, { method: 'POST', body: JSON.stringify(form) });
      if (!response.ok) return (await response.text()).trim();
      if (this.query) this.open(this.query, true);
      return '';
    } catch (error) {
      return String(error.message);
    }
  }

  draw() {
    if (this.due) return;
    this.due = requestAnimationFrame(() => {
      this.due = 0;
      performance.mark('frame-began');
      this.changed({ ...this.state });
      // Effects of this frame, and what they draw, come first.
      setTimeout(() => performance.mark('page-drawn'));
    });
  }

  // Seconds between what is shown and now, by the server's clock.
  behind() {
    return this.state.at && this.state.offset < Infinity ? Math.max(0, Date.now() / 1000 - this.state.offset - this.state.at) : Infinity;
  }
}
