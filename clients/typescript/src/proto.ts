// The generated messages, enums and services of the API: @brokerd/client/proto.
export * from "./gen/brokerd/v1/admin_pb.js";
export * from "./gen/brokerd/v1/agent_pb.js";
export * from "./gen/brokerd/v1/artifact_pb.js";
export * from "./gen/brokerd/v1/blocker_pb.js";
export * from "./gen/brokerd/v1/catalog_pb.js";
export * from "./gen/brokerd/v1/channel_pb.js";
export * from "./gen/brokerd/v1/credential_pb.js";
export * from "./gen/brokerd/v1/decision_pb.js";
export * from "./gen/brokerd/v1/event_pb.js";
export * from "./gen/brokerd/v1/handoff_pb.js";
export * from "./gen/brokerd/v1/lock_pb.js";
export * from "./gen/brokerd/v1/message_pb.js";
export * from "./gen/brokerd/v1/session_pb.js";
export * from "./gen/brokerd/v1/state_pb.js";
export * from "./gen/brokerd/v1/task_pb.js";
export * from "./gen/brokerd/v1/token_pb.js";
export * from "./gen/brokerd/v1/vote_pb.js";
