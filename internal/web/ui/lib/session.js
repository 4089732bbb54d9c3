// The token of this browser, and the session that this tab shows.
import { computed, signal } from '../vendor/preact.js';

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
