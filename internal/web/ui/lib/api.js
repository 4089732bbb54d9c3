// Calls of the API. See docs/http.md.
import { logout, session, token } from './session.js';

// A Failure is the error of a call. Without an answer of the broker, its reason is UNREACHABLE.
export class Failure extends Error {
  constructor({ code = 'error', reason = '', message = '', fields = [] }, status = 0) {
    super(message || reason || 'the call failed');
    Object.assign(this, { code, reason, fields, status });
  }
}

// The RPCs without request_id, which refuse an Idempotency-Key.
const keyless = /\/(Get|List|Explain|Wait|Validate|CheckDatabase|Drain|Prune|Heartbeat|ClaimMessages)/;

export function headers(agent) {
  const all = { Authorization: 'Bearer ' + token.value, 'Brokerd-Session': session.value };
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
export async function call(method, path, body, { agent, signal } = {}) {
  const all = headers(agent);
  if (method !== 'GET' && !keyless.test(path)) all['Idempotency-Key'] = crypto.randomUUID();
  if (body !== undefined) all['Content-Type'] = 'application/json';
  const response = await request(method, path, {
    headers: all, signal, body: body === undefined ? undefined : JSON.stringify(body),
  });
  return response.json();
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
