// The frames of the session that this tab shows. A browser opens at most six HTTP/1.1 connections to
// one origin, so one tab per session follows the stream, and passes its frames to the others.
import { effect, signal, useEffect, useRef, useState } from '../vendor/preact.js';
import { headers, request } from './api.js';
import { session, token } from './session.js';

// the newest one, as /v1/overview has it
export const frame = signal(null);
// connecting, then live or broken
export const connection = signal('connecting');
// why it is broken
export const problem = signal(null);
// the time by the broker's clock, in steps of 1 s
export const now = signal(Date.now());
// totals of the last 60 s, one per second
export const history = signal([]);

// ms without a byte after which the stream is dead: a comment comes every 15 s
const silence = 40e3;
// of the broker's clock
let offset = 0;
// the newest frame that is not shown yet: {text, at}
let waiting = null;
let scheduled = false;
let retry = () => {};

// show parses at most one frame per repaint, and fewer in a hidden tab.
function show(news) {
  waiting = news;
  if (scheduled) return;
  scheduled = true;
  document.hidden ? setTimeout(apply, 1000) : requestAnimationFrame(apply);
}

function apply() {
  scheduled = false;
  if (!waiting) return;
  const { text, at } = waiting;
  waiting = null;
  const newest = JSON.parse(text);
  offset = Date.parse(newest.time) - at;
  frame.value = newest;
}

function tick() {
  now.value = Date.now() + offset;
  if (connection.value === 'broken') retry();
  if (frame.value && connection.value === 'live') history.value = [...history.value.slice(-59), frame.value.totals];
}
setInterval(tick, 1000);
document.addEventListener('visibilitychange', () => {
  if (!document.hidden) { apply(); tick(); }
});

// watch shows the frames of a session until its result is called.
function watch(name) {
  const end = new AbortController();
  const channel = new BroadcastChannel('brokerd-overview-' + name);
  let newest = null;
  let leads = false;
  let wake = () => {};

  const take = (news) => {
    if (news.text) show(newest = { text: news.text, at: news.at });
    connection.value = news.state;
    problem.value = news.problem || null;
  };
  const tell = (news) => {
    if (end.signal.aborted) return;
    take(news);
    channel.postMessage(news);
  };
  channel.onmessage = ({ data }) => {
    if (!data.ask) take(data);
    else if (leads) {
      channel.postMessage({ state: connection.value, problem: problem.value, ...newest });
      wake();
    }
  };
  // Timers of a hidden tab may be late by a minute. Each visible tab therefore asks the leader to
  // try again.
  retry = () => leads ? wake() : channel.postMessage({ ask: true });

  async function lead() {
    leads = true;
    while (!end.signal.aborted) {
      let closed = false;
      let failure = { reason: 'UNREACHABLE', message: 'the broker has ended the stream' };
      try {
        await follow(end.signal, (text) => {
          tell({ state: 'live', text, at: Date.now() });
          closed = text.includes('"closed":true');
        });
      } catch (error) {
        failure = { reason: error.reason, message: error.message };
      }
      // a closed session does not change
      if (closed || end.signal.aborted) break;
      tell({ state: 'broken', problem: failure });
      await new Promise((resolve) => { wake = resolve; });
    }
    if (!end.signal.aborted) await new Promise((resolve) => { end.signal.onabort = resolve; });
  }
  channel.postMessage({ ask: true });
  // aborted
  navigator.locks.request(channel.name, { signal: end.signal }, lead).catch(() => {});
  return () => {
    end.abort();
    // a lead that waits to try again would keep the lock of the session
    wake();
    channel.close();
    waiting = null;
    frame.value = null;
    connection.value = 'connecting';
    history.value = [];
  };
}

// follow reads the stream until it ends, and calls got for the newest of the frames that have arrived.
async function follow(signal, got) {
  const dead = new AbortController();
  let heard = Date.now();
  const check = setInterval(() => { if (Date.now() - heard > silence) dead.abort(new Error('the broker does not answer')); }, 5000);
  try {
    const response = await request('GET', '/v1/overview/follow', {
      headers: { ...headers(), Accept: 'text/event-stream' }, signal: AbortSignal.any([signal, dead.signal]),
    });
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let rest = '';
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard = Date.now();
      const events = (rest + decoder.decode(value, { stream: true })).split('\n\n');
      rest = events.pop();
      const newest = events.findLast((event) => /^(id: \d+\n)?data: /.test(event));
      if (newest) got(newest.slice(newest.indexOf('data: ') + 6));
    }
  } finally {
    clearInterval(check);
  }
}

effect(() => {
  const name = session.value;
  return token.value ? watch(name) : undefined;
});

// useLoaded calls load(signal) for a key, and again when the session has changed: at most once a
// second, at most a fifth of the time, and not in a hidden tab. It returns {data, error, loading,
// reload}. The data of a key remain until newer ones are loaded. Without a key it loads nothing. If
// deps change, it loads at once.
export function useLoaded(key, load, deps = []) {
  const [state, set] = useState({ key: null, data: null, error: null, loading: true });
  const current = useRef(null);
  current.current = load;
  const again = useRef(() => {});

  useEffect(() => {
    set((old) => ({ key, data: old.key === key ? old.data : null, error: null, loading: key != null }));
    if (key == null) return undefined;
    const end = new AbortController();
    let timer = 0;
    let busy = false;
    let stale = false;
    let failed = false;
    // the earliest time of the next load
    let next = 0;

    async function read() {
      if (busy) {
        stale = true;
        return;
      }
      busy = true;
      stale = false;
      const begun = performance.now();
      try {
        const data = await current.current(end.signal);
        failed = false;
        if (!end.signal.aborted) set({ key, data, error: null, loading: false });
      } catch (error) {
        failed = true;
        if (!end.signal.aborted) set((old) => ({ ...old, key, error, loading: false }));
      }
      busy = false;
      next = Math.max(begun + 1000, performance.now() + 4 * (performance.now() - begun));
      if (stale) later();
    }
    function later() {
      stale = true;
      if (busy || timer || document.hidden || end.signal.aborted) return;
      timer = setTimeout(() => {
        timer = 0;
        read();
      }, Math.max(0, next - performance.now()));
    }
    function shown() {
      if (!document.hidden && stale) later();
    }

    again.current = read;
    read();
    let seen = frame.peek()?.revision;
    const stop = effect(() => {
      const revision = frame.value?.revision;
      // after a restart, the revision may be the same
      const missing = connection.value === 'live' && failed;
      if (revision === seen && !missing) return;
      seen = revision;
      later();
    });
    document.addEventListener('visibilitychange', shown);
    return () => {
      end.abort();
      clearTimeout(timer);
      stop();
      document.removeEventListener('visibilitychange', shown);
    };
  }, [key, ...deps]);

  const own = state.key === key;
  return {
    data: own ? state.data : null, error: own ? state.error : null, loading: own ? state.loading : key != null,
    reload: () => again.current(),
  };
}
