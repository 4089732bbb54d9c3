// The route is in the hash: #/VIEW/ID?q=TEXT&open=KIND:NAME&session=NAME.
import { effect, signal } from '../vendor/preact.js';
import { home, session } from './session.js';

function parse() {
  const [path, search] = location.hash.replace(/^#\/?/, '').split('?');
  const [view, id] = path.split('/');
  const query = Object.fromEntries(new URLSearchParams(search));
  session.value = query.session || home.value;
  delete query.session;
  return { view: view || 'attention', id: decode(id || ''), query };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a link that was cut
  }
}

// route has the view, the id and the query of the hash.
export const route = signal(null);
effect(() => { route.value = parse(); }); // again after a login, which may change the home session
addEventListener('hashchange', () => { route.value = parse(); });

// href returns the link to an object of a view, in the session of this tab.
export function href(view, id, query) {
  const all = new URLSearchParams();
  for (const [name, value] of Object.entries(query || {})) if (value) all.set(name, value);
  if (session.value !== home.value) all.set('session', session.value);
  const search = all.toString();
  return '#/' + view + (id ? '/' + encodeURIComponent(id) : '') + (search && '?' + search);
}

// here returns the link to this page with other values in its query; an empty value removes one.
export function here(changes) {
  const { view, id, query } = route.value;
  return href(view, id, { ...query, ...changes });
}

// go opens a link. With replace, the history has no new entry.
export function go(link, replace = false) {
  history[replace ? 'replaceState' : 'pushState'](null, '', link);
  route.value = parse();
}
