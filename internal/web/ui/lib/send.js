import { call } from './api.js';

// receiver writes the target of a message in the grammar of brokerctl.
export function receiver(target) {
  if (target?.everyone) return 'everyone';
  if (target?.role) return 'role:' + target.role;
  if (target?.channel) return 'channel:' + target.channel;
  return target?.agent || target?.pattern || '';
}

// targetOf reads that grammar: NAME, role:NAME, channel:NAME, a pattern, everyone.
export function targetOf(text) {
  const [, kind, name] = /^(role|channel):(.*)$/s.exec(text) ?? [];
  if (kind) return { [kind]: name };
  if (['everyone', 'all', 'ALL', '*'].includes(text)) return { everyone: true };
  return /[*?]/.test(text) ? { pattern: text } : { agent: text };
}

// outcome says what the broker did with a message. It fails if a mailbox is full.
export function outcome({ recipient_count, refused_count, warnings }) {
  if (refused_count > 0) {
    throw new Error(`the message did not reach ${refused_count} of ${recipient_count} mailboxes, which are full`);
  }
  return ['Sent', ...warnings].join('; ');
}

// send sends a message as the operator and says what the broker did with it.
export async function send(message) {
  const { results } = await call('POST', '/v1/messages', { messages: [message] });
  return outcome(results[0]);
}
