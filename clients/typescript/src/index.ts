export type { HeartbeatOptions, ListAgentsOptions, RegisterOptions } from "./agents.js";
export type { Artifacts, UploadOptions } from "./artifacts.js";
export type { CallOptions, Stubs } from "./caller.js";
export { Client, type ClientOptions } from "./client.js";
export { json, parsed, requestId, type Long, type Span } from "./convert.js";
export type { Content, Decisions, ListDecisionsOptions, OpenDecisionOptions, VerdictOptions } from "./decisions.js";
export {
  BrokerError,
  Closed,
  Conflict,
  Denied,
  Exhausted,
  Invalid,
  Lost,
  NotFound,
  OutOfRange,
  Precondition,
  Unreachable,
} from "./errors.js";
export type { EventFilter, Events, FollowEventsOptions, PublishOptions } from "./events.js";
export type { FollowOptions } from "./follow.js";
export { Busy, type Hold, type HoldOptions, type Locks, type Tokens } from "./holds.js";
export { Claim, Message } from "./messages.js";
export type { ClaimOptions, InboxOptions, MessageOptions, NackOptions, Receipt, Reply } from "./messages.js";
export type { AgentSettings } from "./settings-file.js";
export type { Entry, KeyOptions, PutOptions, State, WatchOptions } from "./state.js";
export { TaskClaim } from "./task-claim.js";
export type { TaskHandler, TaskWork, TaskWorkOptions } from "./task-work.js";
export type { HolderOptions, ListTasksOptions, NewTask, Outcome, Tasks, Waited } from "./tasks.js";
export type { TLS } from "./tls.js";
export { Reject, Release, RetryAfter, Stopped } from "./verdicts.js";
export type { Handler, WorkClaim, WorkOptions } from "./work.js";
export type { StopOptions } from "./worker-signals.js";
export { timestampDate } from "@bufbuild/protobuf/wkt";
