package web

// A route maps a method and a path to one RPC. If the RPC is a stream, a path that ends in follow or
// watch has its frames, and another path its first frame. Parameters of the path are fields of its request,
// except caller and session, which say in whose name the call is made.
type route struct {
	pattern string // of http.ServeMux
	rpc     string // its service and method
	preset  string // fields that the route sets, as a query
}

// routes are the routes of the API, one line each. Each other unary RPC is reachable by /v1/call.
var routes = []route{
	{"GET /v1/agents", "AgentService/ListAgents", ""},
	{"POST /v1/agents", "AgentService/RegisterAgent", ""},
	{"GET /v1/agents/{name}", "AgentService/GetAgent", ""},
	{"DELETE /v1/agents/{caller}", "AgentService/DeregisterAgent", ""},
	{"POST /v1/agents/{caller}/heartbeat", "AgentService/Heartbeat", ""},

	{"GET /v1/messages", "MessageService/ListMessages", ""},
	{"POST /v1/messages", "MessageService/SendMessages", ""},
	{"GET /v1/messages/{id}", "MessageService/GetMessage", ""},
	{"POST /v1/messages/{id}/reply", "MessageService/Reply", ""},
	{"POST /v1/messages/{id}/cancel", "MessageService/CancelMessage", ""},
	{"POST /v1/messages/{id}/resend", "MessageService/ResendMessage", ""},
	{"GET /v1/inbox", "MessageService/ListMessages", "box=inbox"},
	{"GET /v1/inbox/follow", "MessageService/Receive", "follow=true"},

	{"GET /v1/claims", "AgentService/GetAgent", "view=full"},
	{"POST /v1/offers", "MessageService/OfferMessages", ""},
	{"POST /v1/offers/settle", "MessageService/SettleOffers", ""},

	{"POST /v1/claims", "MessageService/ClaimMessages", ""},
	{"POST /v1/claims/ack", "MessageService/AckMessages", ""},
	{"POST /v1/claims/nack", "MessageService/NackMessages", ""},
	{"POST /v1/claims/extend", "MessageService/ExtendClaims", ""},
	{"POST /v1/claims/release", "MessageService/ReleaseClaims", ""},

	{"GET /v1/mailboxes", "MessageService/ListMailboxes", ""},
	{"GET /v1/threads", "MessageService/ListThreads", ""},
	{"GET /v1/dead-letters", "MessageService/ListDeadLetters", ""},
	{"POST /v1/dead-letters/redrive", "MessageService/RedriveDeadLetters", ""},
	{"POST /v1/dead-letters/purge", "MessageService/PurgeDeadLetters", ""},

	{"GET /v1/events", "EventService/ListEvents", ""},
	{"POST /v1/events", "EventService/PublishEvent", ""},
	{"GET /v1/events/follow", "EventService/SubscribeEvents", ""},

	{"GET /v1/locks", "LockService/ListLocks", ""},
	{"POST /v1/locks", "LockService/AcquireLocks", ""},
	{"POST /v1/locks/extend", "LockService/ExtendLocks", ""},
	{"POST /v1/locks/release", "LockService/ReleaseLocks", ""},
	{"POST /v1/locks/force-release", "LockService/ForceReleaseLocks", ""},

	{"GET /v1/tokens", "TokenService/ListTokens", ""},
	{"POST /v1/tokens", "TokenService/AcquireToken", ""},
	{"POST /v1/tokens/extend", "TokenService/ExtendToken", ""},
	{"POST /v1/tokens/release", "TokenService/ReleaseToken", ""},
	{"POST /v1/tokens/revoke", "TokenService/RevokeToken", ""},

	{"GET /v1/state/{namespace}/{key...}", "StateService/GetState", ""},
	{"PUT /v1/state/{namespace}/{key...}", "StateService/PutState", ""},
	{"DELETE /v1/state/{namespace}/{key...}", "StateService/DeleteState", ""},
	{"GET /v1/state-watch", "StateService/WatchState", ""},

	{"GET /v1/tasks", "TaskService/ListTasks", ""},
	{"POST /v1/tasks", "TaskService/CreateTasks", ""},
	{"GET /v1/tasks/{id}", "TaskService/GetTask", ""},
	{"POST /v1/tasks/claim", "TaskService/ClaimTask", ""},
	{"POST /v1/tasks/wait", "TaskService/WaitTasks", ""},
	{"POST /v1/tasks/{id}/claim", "TaskService/ClaimTask", ""},
	{"POST /v1/tasks/{id}/update", "TaskService/UpdateTask", ""},
	{"POST /v1/tasks/{id}/complete", "TaskService/CompleteTask", ""},
	{"POST /v1/tasks/{id}/fail", "TaskService/FailTask", ""},
	{"POST /v1/tasks/{id}/release", "TaskService/ReleaseTask", ""},
	{"POST /v1/tasks/{id}/cancel", "TaskService/CancelTask", ""},
	{"POST /v1/tasks/{id}/retry", "TaskService/RetryTask", ""},

	{"GET /v1/decisions", "DecisionService/ListDecisions", ""},
	{"POST /v1/decisions", "DecisionService/OpenDecision", ""},
	{"GET /v1/decisions/{id}", "DecisionService/GetDecision", ""},
	{"POST /v1/decisions/{id}/decide", "DecisionService/Decide", ""},
	{"POST /v1/decisions/{id}/resubmit", "DecisionService/ResubmitDecision", ""},
	{"POST /v1/decisions/{id}/cancel", "DecisionService/CancelDecision", ""},

	{"GET /v1/blockers", "BlockerService/ListBlockers", ""},
	{"POST /v1/blockers", "BlockerService/RaiseBlocker", ""},
	{"GET /v1/blockers/{id}", "BlockerService/GetBlocker", ""},
	{"POST /v1/blockers/{id}/acknowledge", "BlockerService/AcknowledgeBlocker", ""},
	{"POST /v1/blockers/{id}/resolve", "BlockerService/ResolveBlocker", ""},

	{"GET /v1/handoffs", "HandoffService/ListHandoffs", ""},
	{"POST /v1/handoffs", "HandoffService/CreateHandoff", ""},
	{"GET /v1/handoffs/{id}", "HandoffService/GetHandoff", ""},
	{"POST /v1/handoffs/{id}/accept", "HandoffService/AcceptHandoff", ""},
	{"POST /v1/handoffs/{id}/reject", "HandoffService/RejectHandoff", ""},
	{"POST /v1/handoffs/{id}/cancel", "HandoffService/CancelHandoff", ""},
	{"POST /v1/handoffs/{id}/check", "HandoffService/CheckHandoffItem", ""},

	{"GET /v1/votes", "VoteService/ListVotes", ""},
	{"POST /v1/votes", "VoteService/OpenVote", ""},
	{"GET /v1/votes/{id}", "VoteService/GetVote", ""},
	{"POST /v1/votes/{id}/cast", "VoteService/CastVote", ""},
	{"POST /v1/votes/{id}/close", "VoteService/CloseVote", ""},

	{"GET /v1/artifacts", "ArtifactService/ListArtifacts", ""},
	{"GET /v1/artifacts/{name...}", "ArtifactService/DownloadArtifact", ""}, // as JSON: GetArtifact
	{"PUT /v1/artifacts/{name...}", "ArtifactService/UploadArtifact", ""},

	{"POST /v1/login", "CredentialService/Login", ""},
	{"POST /v1/logout", "CredentialService/Logout", ""},
	{"GET /v1/sessions", "SessionService/ListSessions", ""},
	{"POST /v1/sessions", "SessionService/CreateSession", ""},
	{"GET /v1/sessions/{name}", "SessionService/GetSession", ""},
	{"PATCH /v1/sessions/{session}", "SessionService/ConfigureSession", ""},
	{"GET /v1/status", "AdminService/GetStatus", ""},
	{"GET /v1/explain", "AdminService/Explain", ""},
	{"GET /v1/overview", "AdminService/WatchOverview", ""},
	{"GET /v1/overview/follow", "AdminService/WatchOverview", ""},
}
