import { effect, useEffect, useRef, useState } from '../vendor/preact.js';
import { frame } from './live.js';

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
    let next = 0; // the earliest time of the next load

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
        if (!end.signal.aborted) set({ key, data, error: null, loading: false });
      } catch (error) {
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
      if (revision === seen) return;
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
