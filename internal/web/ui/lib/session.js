// The token of this browser, and the session that this tab shows.
import { computed, effect, signal } from '../vendor/preact.js';

// The item of localStorage with the answer of the login: {token, level, session, expires_at}.
const item = 'brokerd';

function stored() {
  try {
    return JSON.parse(localStorage.getItem(item)) || {};
  } catch {
    return {};
  }
}

const grant = signal(stored());

export const token = computed(() => grant.value.token || '');
export const level = computed(() => grant.value.level || 'observer');
export const canAct = computed(() => level.value === 'operator');

// home is the session of the token. A route names every other session.
export const home = computed(() => grant.value.session || 'default');
export const session = signal(home.value);
export const sessions = signal([]);

export function login(answer) {
  localStorage.setItem(item, JSON.stringify(answer));
  grant.value = answer;
}

// logout drops the token, but not one that another tab has stored meanwhile.
export function logout(used = token.value) {
  if (stored().token === used) localStorage.removeItem(item);
  grant.value = stored();
}

addEventListener('storage', (event) => {
  if (event.key === item || event.key === null) grant.value = stored();
});

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
    // a link that was cut
    return text;
  }
}

// route has the view, the id and the query of the hash.
export const route = signal(null);
// again after a login, which may change the home session
effect(() => { route.value = parse(); });
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
