// Calls of the API. See docs/http.md.
import { logout, session, token } from './session.js';

// A Failure is the error of a call. Without an answer of the broker, its reason is UNREACHABLE.
export class Failure extends Error {
  constructor({ code = 'error', reason = '', message = '', fields = [] }, status = 0) {
    super(message || reason || 'the call failed');
    Object.assign(this, { code, reason, fields, status });
  }
}

// These RPCs have no request_id and refuse an Idempotency-Key.
const keyless = /\/(Get|List|Explain|Wait|Validate|CheckDatabase|Drain|Prune|Heartbeat|ClaimMessages)/;

// headers are those of every call. An action of several calls names its session, because the tab may
// show another one before the last of them.
export function headers(agent, name = session.value) {
  const all = { Authorization: 'Bearer ' + token.value, 'Brokerd-Session': name };
  if (agent) all['Brokerd-Agent'] = agent;
  return all;
}

// request makes a request and returns its response, whose status is a success.
export async function request(method, path, options) {
  const used = token.value;
  let response;
  try {
    response = await fetch(path, { method, cache: 'no-store', ...options });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Failure({ code: 'unreachable', reason: 'UNREACHABLE', message: 'the broker does not answer' });
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  if (response.status === 401) logout(used);
  throw new Failure(problem.error || { message: `the broker answered with status ${response.status}` }, response.status);
}

// call makes a request with a JSON body and returns the JSON object of its answer.
export async function call(method, path, body, { agent, session: name, signal } = {}) {
  const all = headers(agent, name);
  if (method !== 'GET' && !keyless.test(path)) all['Idempotency-Key'] = crypto.randomUUID();
  if (body !== undefined) all['Content-Type'] = 'application/json';
  const response = await request(method, path, {
    headers: all, signal, body: body === undefined ? undefined : JSON.stringify(body),
  });
  return parse(await response.text());
}

// parse reads JSON. An integer that a number cannot hold keeps its digits, so that the page shows a
// payload as the agent has written it.
function parse(text) {
  return /\d{16}/.test(text) ? JSON.parse(text, (key, v, context) =>
    Number.isInteger(v) && !Number.isSafeInteger(v) && context?.source ? JSON.rawJSON(context.source) : v) : JSON.parse(text);
}

// rpc calls a unary RPC, such as AdminService/Explain.
export function rpc(name, message, options) {
  return call('POST', '/v1/call/' + name, message ?? {}, options);
}

// search returns the query of a URL. Empty values are left out, and lists repeat their name.
export function search(values) {
  const all = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const one of [].concat(value)) if (one !== undefined && one !== null && one !== '') all.append(name, one);
  }
  const text = all.toString();
  return text && '?' + text;
}

// exchange gives the secret of a link for a token.
export async function exchange(secret) {
  const response = await request('POST', '/v1/login', {
    headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ secret }),
  });
  return response.json();
}

// pages reads pages of a list until it has `count` items, or `most` pages: a page can have few items
// or none although a next page exists. It returns the items, the first page, and whether more items
// may exist.
export async function pages(path, query, list, count, most, options) {
  const items = [];
  let first = null;
  let token = '';
  do {
    const wanted = { ...query, page_size: Math.min(count, 1000), page_token: token };
    const page = await call('GET', path + search(wanted), undefined, options);
    first ??= page;
    items.push(...page[list]);
    token = page.next_page_token;
  } while (token && items.length < count && --most > 0);
  return { items, first, more: token !== '' };
}
