export type { HeartbeatOptions, ListAgentsOptions, RegisterOptions } from "./agents.js";
export type { CallOptions, Stubs } from "./caller.js";
export { Client, type ClientOptions } from "./client.js";
export { json, requestId, type Long, type Span } from "./convert.js";
export {
  BrokerError,
  Closed,
  Conflict,
  Denied,
  Exhausted,
  Invalid,
  Lost,
  NotFound,
  Unreachable,
  type Field,
} from "./errors.js";
export { Claim } from "./messages.js";
export type { ClaimOptions, MessageOptions, NackOptions, Receipt, Reply } from "./messages.js";
