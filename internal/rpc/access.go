package rpc

import (
	"strings"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
)

// levels is a set of levels of access.
type levels uint

const (
	operators levels = 1 << identity.Operator
	acting    levels = operators | 1<<identity.Agent
	reading   levels = acting | 1<<identity.Observer
	watching  levels = operators | 1<<identity.Observer
	anyClient levels = reading | 1<<identity.None // also without a credential
)

func (l levels) allow(a identity.Access) bool { return l&(1<<a) != 0 }

// access is the table of all RPCs with the levels that may call them. What is not in it is refused.
var access = map[string]levels{
	pb.AdminService_GetStatus_FullMethodName:      acting,
	pb.AdminService_CheckDatabase_FullMethodName:  operators,
	pb.AdminService_MoveMessages_FullMethodName:   operators,
	pb.AdminService_BackupDatabase_FullMethodName: operators,
	pb.AdminService_PruneData_FullMethodName:      operators,
	pb.AdminService_Drain_FullMethodName:          operators,
	pb.AdminService_OpenLoopback_FullMethodName:   operators,
	pb.AdminService_Explain_FullMethodName:        acting,
	pb.AdminService_WatchOverview_FullMethodName:  watching,

	pb.AgentService_RegisterAgent_FullMethodName:   acting,
	pb.AgentService_Heartbeat_FullMethodName:       acting,
	pb.AgentService_GetAgent_FullMethodName:        reading,
	pb.AgentService_ListAgents_FullMethodName:      reading,
	pb.AgentService_DeregisterAgent_FullMethodName: acting,
	pb.AgentService_SaveCheckpoint_FullMethodName:  acting,

	pb.ArtifactService_UploadArtifact_FullMethodName:   acting,
	pb.ArtifactService_DownloadArtifact_FullMethodName: reading,
	pb.ArtifactService_GetArtifact_FullMethodName:      reading,
	pb.ArtifactService_ListArtifacts_FullMethodName:    reading,
	pb.ArtifactService_DeleteArtifact_FullMethodName:   acting,

	pb.CatalogService_ListMessageTypes_FullMethodName:    reading,
	pb.CatalogService_GetMessageType_FullMethodName:      reading,
	pb.CatalogService_RegisterMessageType_FullMethodName: acting,
	pb.CatalogService_ValidatePayload_FullMethodName:     reading,

	pb.BlockerService_RaiseBlocker_FullMethodName:       acting,
	pb.BlockerService_AcknowledgeBlocker_FullMethodName: acting,
	pb.BlockerService_ResolveBlocker_FullMethodName:     acting,
	pb.BlockerService_GetBlocker_FullMethodName:         reading,
	pb.BlockerService_ListBlockers_FullMethodName:       reading,

	pb.ChannelService_SubscribeChannel_FullMethodName:   acting,
	pb.ChannelService_UnsubscribeChannel_FullMethodName: acting,
	pb.ChannelService_ListChannels_FullMethodName:       reading,
	pb.ChannelService_ConfigureChannel_FullMethodName:   operators,

	pb.CredentialService_IssueCredential_FullMethodName:  operators,
	pb.CredentialService_ListCredentials_FullMethodName:  operators,
	pb.CredentialService_RevokeCredential_FullMethodName: operators,
	pb.CredentialService_CreateLoginLink_FullMethodName:  operators,
	pb.CredentialService_Login_FullMethodName:            anyClient,
	pb.CredentialService_Logout_FullMethodName:           reading,

	pb.DecisionService_OpenDecision_FullMethodName:     acting,
	pb.DecisionService_Decide_FullMethodName:           acting,
	pb.DecisionService_ResubmitDecision_FullMethodName: acting,
	pb.DecisionService_CancelDecision_FullMethodName:   acting,
	pb.DecisionService_GetDecision_FullMethodName:      reading,
	pb.DecisionService_ListDecisions_FullMethodName:    reading,

	pb.EventService_ListEvents_FullMethodName:      reading,
	pb.EventService_SubscribeEvents_FullMethodName: reading,
	pb.EventService_PublishEvent_FullMethodName:    acting,

	pb.HandoffService_CreateHandoff_FullMethodName:    acting,
	pb.HandoffService_AcceptHandoff_FullMethodName:    acting,
	pb.HandoffService_RejectHandoff_FullMethodName:    acting,
	pb.HandoffService_CancelHandoff_FullMethodName:    acting,
	pb.HandoffService_CheckHandoffItem_FullMethodName: acting,
	pb.HandoffService_GetHandoff_FullMethodName:       reading,
	pb.HandoffService_ListHandoffs_FullMethodName:     reading,

	pb.LockService_AcquireLocks_FullMethodName:      acting,
	pb.LockService_ExtendLocks_FullMethodName:       acting,
	pb.LockService_ReleaseLocks_FullMethodName:      acting,
	pb.LockService_Lock_FullMethodName:              acting,
	pb.LockService_ListLocks_FullMethodName:         reading,
	pb.LockService_ForceReleaseLocks_FullMethodName: operators,

	pb.MessageService_Send_FullMethodName:               acting,
	pb.MessageService_Receive_FullMethodName:            acting,
	pb.MessageService_Claim_FullMethodName:              acting,
	pb.MessageService_SendMessages_FullMethodName:       acting,
	pb.MessageService_ClaimMessages_FullMethodName:      acting,
	pb.MessageService_OfferMessages_FullMethodName:      acting,
	pb.MessageService_SettleOffers_FullMethodName:       acting,
	pb.MessageService_AckMessages_FullMethodName:        acting,
	pb.MessageService_NackMessages_FullMethodName:       acting,
	pb.MessageService_ExtendClaims_FullMethodName:       acting,
	pb.MessageService_ReleaseClaims_FullMethodName:      acting,
	pb.MessageService_Ask_FullMethodName:                acting,
	pb.MessageService_Reply_FullMethodName:              acting,
	pb.MessageService_ResendMessage_FullMethodName:      acting,
	pb.MessageService_GetInboxSummary_FullMethodName:    acting,
	pb.MessageService_ResolveThread_FullMethodName:      acting,
	pb.MessageService_GetMessage_FullMethodName:         reading,
	pb.MessageService_ListMessages_FullMethodName:       reading,
	pb.MessageService_CancelMessage_FullMethodName:      acting,
	pb.MessageService_ListDeadLetters_FullMethodName:    reading,
	pb.MessageService_RedriveDeadLetters_FullMethodName: acting,
	pb.MessageService_PurgeDeadLetters_FullMethodName:   operators,
	pb.MessageService_ListMailboxes_FullMethodName:      reading,
	pb.MessageService_ListThreads_FullMethodName:        reading,

	pb.SessionService_CreateSession_FullMethodName:    operators,
	pb.SessionService_GetSession_FullMethodName:       reading,
	pb.SessionService_ListSessions_FullMethodName:     reading,
	pb.SessionService_ConfigureSession_FullMethodName: operators,
	pb.SessionService_CloseSession_FullMethodName:     operators,
	pb.SessionService_ExportSession_FullMethodName:    operators,
	pb.SessionService_DeleteSession_FullMethodName:    operators,

	pb.StateService_GetState_FullMethodName:         reading,
	pb.StateService_PutState_FullMethodName:         acting,
	pb.StateService_AppendState_FullMethodName:      acting,
	pb.StateService_DeleteState_FullMethodName:      acting,
	pb.StateService_TransactState_FullMethodName:    acting,
	pb.StateService_ListState_FullMethodName:        reading,
	pb.StateService_ListStateHistory_FullMethodName: reading,
	pb.StateService_WatchState_FullMethodName:       reading,

	pb.TaskService_CreateTasks_FullMethodName:  acting,
	pb.TaskService_ClaimTask_FullMethodName:    acting,
	pb.TaskService_UpdateTask_FullMethodName:   acting,
	pb.TaskService_CompleteTask_FullMethodName: acting,
	pb.TaskService_FailTask_FullMethodName:     acting,
	pb.TaskService_ReleaseTask_FullMethodName:  acting,
	pb.TaskService_CancelTask_FullMethodName:   acting,
	pb.TaskService_RetryTask_FullMethodName:    acting,
	pb.TaskService_GetTask_FullMethodName:      reading,
	pb.TaskService_ListTasks_FullMethodName:    reading,
	pb.TaskService_WaitTasks_FullMethodName:    reading,

	pb.TokenService_AcquireToken_FullMethodName: acting,
	pb.TokenService_PassToken_FullMethodName:    acting,
	pb.TokenService_ExtendToken_FullMethodName:  acting,
	pb.TokenService_ReleaseToken_FullMethodName: acting,
	pb.TokenService_RevokeToken_FullMethodName:  operators,
	pb.TokenService_GetToken_FullMethodName:     reading,
	pb.TokenService_ListTokens_FullMethodName:   reading,

	pb.VoteService_OpenVote_FullMethodName:  acting,
	pb.VoteService_CastVote_FullMethodName:  acting,
	pb.VoteService_CloseVote_FullMethodName: acting,
	pb.VoteService_GetVote_FullMethodName:   reading,
	pb.VoteService_ListVotes_FullMethodName: reading,

	MCP: acting, // no RPC: the tools make calls of their own

	grpc_health_v1.Health_Check_FullMethodName: reading,
	grpc_health_v1.Health_List_FullMethodName:  reading,
	grpc_health_v1.Health_Watch_FullMethodName: reading,

	grpc_reflection_v1.ServerReflection_ServerReflectionInfo_FullMethodName:      reading,
	grpc_reflection_v1alpha.ServerReflection_ServerReflectionInfo_FullMethodName: reading,
}

// Public reports whether a client may make a call without a credential. The caller of such a call is
// no agent and no operator, whatever the client presents.
func Public(method string) bool { return access[method] == anyClient }

// admit refuses a call that the table does not allow.
func admit(method string, c identity.Caller) error {
	allowed := access[method]
	if allowed.allow(c.Access) {
		return nil
	}
	refused := fault.New(fault.Denied, "READ_ONLY", "this call changes data, and the credential only permits reading")
	switch {
	case allowed == 0:
		refused = fault.New(fault.Denied, "NOT_ALLOWED", "no client may make this call")
	case allowed == operators && c.Agent != "":
		refused = fault.New(fault.Denied, "OPERATOR_ONLY",
			"only an operator may do this; the caller is the agent %s", c.Agent)
	case allowed == watching:
		refused = fault.New(fault.Denied, "NOT_FOR_AGENTS",
			"only operators and observers may do this; the caller is the agent %s", c.Agent)
	case allowed == operators:
		refused = fault.New(fault.Denied, "OPERATOR_ONLY", "only an operator may do this")
	}
	return refused.With("method", method[strings.LastIndexByte(method, '/')+1:])
}
