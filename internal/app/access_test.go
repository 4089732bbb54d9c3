package app_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that broken wraps
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// The levels of access that a credential can have, lowest first.
var levels = []string{"none", "observer", "agent", "operator"}

// lowest is the lowest level that may call each RPC. A new RPC needs a line here and one in the table
// of internal/rpc.
var lowest = map[string]string{
	"brokerd.v1.AdminService/BackupDatabase":                        "operator",
	"brokerd.v1.AdminService/PruneData":                             "operator",
	"brokerd.v1.AdminService/Drain":                                 "operator",
	"brokerd.v1.AdminService/OpenLoopback":                          "operator",
	"brokerd.v1.AdminService/GetStatus":                             "agent",
	"brokerd.v1.AdminService/CheckDatabase":                         "operator",
	"brokerd.v1.AdminService/MoveMessages":                          "operator",
	"brokerd.v1.AdminService/Explain":                               "agent",
	"brokerd.v1.AdminService/WatchOverview":                         "observer",
	"brokerd.v1.AgentService/RegisterAgent":                         "agent",
	"brokerd.v1.AgentService/Heartbeat":                             "agent",
	"brokerd.v1.AgentService/GetAgent":                              "observer",
	"brokerd.v1.AgentService/ListAgents":                            "observer",
	"brokerd.v1.AgentService/DeregisterAgent":                       "agent",
	"brokerd.v1.AgentService/SaveCheckpoint":                        "agent",
	"brokerd.v1.ArtifactService/UploadArtifact":                     "agent",
	"brokerd.v1.ArtifactService/DownloadArtifact":                   "observer",
	"brokerd.v1.ArtifactService/GetArtifact":                        "observer",
	"brokerd.v1.ArtifactService/ListArtifacts":                      "observer",
	"brokerd.v1.ArtifactService/DeleteArtifact":                     "agent",
	"brokerd.v1.CatalogService/ListMessageTypes":                    "observer",
	"brokerd.v1.CatalogService/GetMessageType":                      "observer",
	"brokerd.v1.CatalogService/RegisterMessageType":                 "agent",
	"brokerd.v1.CatalogService/ValidatePayload":                     "observer",
	"brokerd.v1.BlockerService/RaiseBlocker":                        "agent",
	"brokerd.v1.BlockerService/AcknowledgeBlocker":                  "agent",
	"brokerd.v1.BlockerService/ResolveBlocker":                      "agent",
	"brokerd.v1.BlockerService/GetBlocker":                          "observer",
	"brokerd.v1.BlockerService/ListBlockers":                        "observer",
	"brokerd.v1.ChannelService/SubscribeChannel":                    "agent",
	"brokerd.v1.ChannelService/UnsubscribeChannel":                  "agent",
	"brokerd.v1.ChannelService/ListChannels":                        "observer",
	"brokerd.v1.ChannelService/ConfigureChannel":                    "operator",
	"brokerd.v1.CredentialService/IssueCredential":                  "operator",
	"brokerd.v1.CredentialService/ListCredentials":                  "operator",
	"brokerd.v1.CredentialService/RevokeCredential":                 "operator",
	"brokerd.v1.CredentialService/CreateLoginLink":                  "operator",
	"brokerd.v1.CredentialService/Login":                            "none",
	"brokerd.v1.CredentialService/Logout":                           "observer",
	"brokerd.v1.DecisionService/OpenDecision":                       "agent",
	"brokerd.v1.DecisionService/Decide":                             "agent",
	"brokerd.v1.DecisionService/ResubmitDecision":                   "agent",
	"brokerd.v1.DecisionService/CancelDecision":                     "agent",
	"brokerd.v1.DecisionService/GetDecision":                        "observer",
	"brokerd.v1.DecisionService/ListDecisions":                      "observer",
	"brokerd.v1.EventService/ListEvents":                            "observer",
	"brokerd.v1.EventService/SubscribeEvents":                       "observer",
	"brokerd.v1.EventService/PublishEvent":                          "agent",
	"brokerd.v1.HandoffService/CreateHandoff":                       "agent",
	"brokerd.v1.HandoffService/AcceptHandoff":                       "agent",
	"brokerd.v1.HandoffService/RejectHandoff":                       "agent",
	"brokerd.v1.HandoffService/CancelHandoff":                       "agent",
	"brokerd.v1.HandoffService/CheckHandoffItem":                    "agent",
	"brokerd.v1.HandoffService/GetHandoff":                          "observer",
	"brokerd.v1.HandoffService/ListHandoffs":                        "observer",
	"brokerd.v1.LockService/AcquireLocks":                           "agent",
	"brokerd.v1.LockService/ExtendLocks":                            "agent",
	"brokerd.v1.LockService/ReleaseLocks":                           "agent",
	"brokerd.v1.LockService/Lock":                                   "agent",
	"brokerd.v1.LockService/ListLocks":                              "observer",
	"brokerd.v1.LockService/ForceReleaseLocks":                      "operator",
	"brokerd.v1.MessageService/Send":                                "agent",
	"brokerd.v1.MessageService/Receive":                             "agent",
	"brokerd.v1.MessageService/Claim":                               "agent",
	"brokerd.v1.MessageService/SendMessages":                        "agent",
	"brokerd.v1.MessageService/ClaimMessages":                       "agent",
	"brokerd.v1.MessageService/OfferMessages":                       "agent",
	"brokerd.v1.MessageService/SettleOffers":                        "agent",
	"brokerd.v1.MessageService/AckMessages":                         "agent",
	"brokerd.v1.MessageService/NackMessages":                        "agent",
	"brokerd.v1.MessageService/ExtendClaims":                        "agent",
	"brokerd.v1.MessageService/ReleaseClaims":                       "agent",
	"brokerd.v1.MessageService/Ask":                                 "agent",
	"brokerd.v1.MessageService/Reply":                               "agent",
	"brokerd.v1.MessageService/ResendMessage":                       "agent",
	"brokerd.v1.MessageService/GetInboxSummary":                     "agent",
	"brokerd.v1.MessageService/ResolveThread":                       "agent",
	"brokerd.v1.MessageService/GetMessage":                          "observer",
	"brokerd.v1.MessageService/ListMessages":                        "observer",
	"brokerd.v1.MessageService/CancelMessage":                       "agent",
	"brokerd.v1.MessageService/ListDeadLetters":                     "observer",
	"brokerd.v1.MessageService/RedriveDeadLetters":                  "agent",
	"brokerd.v1.MessageService/PurgeDeadLetters":                    "operator",
	"brokerd.v1.MessageService/ListMailboxes":                       "observer",
	"brokerd.v1.MessageService/ListThreads":                         "observer",
	"brokerd.v1.SessionService/CreateSession":                       "operator",
	"brokerd.v1.SessionService/GetSession":                          "observer",
	"brokerd.v1.SessionService/ListSessions":                        "observer",
	"brokerd.v1.SessionService/ConfigureSession":                    "operator",
	"brokerd.v1.SessionService/CloseSession":                        "operator",
	"brokerd.v1.SessionService/ExportSession":                       "operator",
	"brokerd.v1.SessionService/DeleteSession":                       "operator",
	"brokerd.v1.StateService/GetState":                              "observer",
	"brokerd.v1.StateService/PutState":                              "agent",
	"brokerd.v1.StateService/AppendState":                           "agent",
	"brokerd.v1.StateService/DeleteState":                           "agent",
	"brokerd.v1.StateService/TransactState":                         "agent",
	"brokerd.v1.StateService/ListState":                             "observer",
	"brokerd.v1.StateService/ListStateHistory":                      "observer",
	"brokerd.v1.StateService/WatchState":                            "observer",
	"brokerd.v1.TaskService/CreateTasks":                            "agent",
	"brokerd.v1.TaskService/ClaimTask":                              "agent",
	"brokerd.v1.TaskService/UpdateTask":                             "agent",
	"brokerd.v1.TaskService/CompleteTask":                           "agent",
	"brokerd.v1.TaskService/FailTask":                               "agent",
	"brokerd.v1.TaskService/ReleaseTask":                            "agent",
	"brokerd.v1.TaskService/CancelTask":                             "agent",
	"brokerd.v1.TaskService/RetryTask":                              "agent",
	"brokerd.v1.TaskService/GetTask":                                "observer",
	"brokerd.v1.TaskService/ListTasks":                              "observer",
	"brokerd.v1.TaskService/WaitTasks":                              "observer",
	"brokerd.v1.TokenService/AcquireToken":                          "agent",
	"brokerd.v1.TokenService/PassToken":                             "agent",
	"brokerd.v1.TokenService/ExtendToken":                           "agent",
	"brokerd.v1.TokenService/ReleaseToken":                          "agent",
	"brokerd.v1.TokenService/RevokeToken":                           "operator",
	"brokerd.v1.TokenService/GetToken":                              "observer",
	"brokerd.v1.TokenService/ListTokens":                            "observer",
	"brokerd.v1.VoteService/OpenVote":                               "agent",
	"brokerd.v1.VoteService/CastVote":                               "agent",
	"brokerd.v1.VoteService/CloseVote":                              "agent",
	"brokerd.v1.VoteService/GetVote":                                "observer",
	"brokerd.v1.VoteService/ListVotes":                              "observer",
	"grpc.health.v1.Health/Check":                                   "observer",
	"grpc.health.v1.Health/List":                                    "observer",
	"grpc.health.v1.Health/Watch":                                   "observer",
	"grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      "observer",
	"grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "observer",
}

// notForAgents are the RPCs that observers and operators may call, and agents may not.
var notForAgents = map[string]bool{"brokerd.v1.AdminService/WatchOverview": true}

// refusals are the reasons with which the broker refuses a level.
var refusals = map[string]bool{"NOT_ALLOWED": true, "READ_ONLY": true, "OPERATOR_ONLY": true, "NOT_FOR_AGENTS": true}

// broken is a codec that sends bytes that are no message. The broker checks the credential and the
// access of a call before it decodes the request, so a call that it permits has no effect and fails as
// MALFORMED_REQUEST.
type broken struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (broken) Marshal(any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer([]byte{0x0a})}, nil // field 1, without its length
}

// services returns the services that the daemon serves, as its reflection lists them.
func services(t *testing.T, b *apptest.Broker) (names []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), apptest.Patience)
	defer cancel()
	stream, err := grpc_reflection_v1.NewServerReflectionClient(b.Operator()).ServerReflectionInfo(ctx)
	apptest.NoError(t, err)
	ask := &grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}}
	apptest.NoError(t, stream.Send(ask))
	out, err := stream.Recv()
	apptest.NoError(t, err)
	for _, s := range out.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	return names
}

// served returns the methods of all services that the daemon serves, by service and name.
func served(t *testing.T, b *apptest.Broker) map[string]protoreflect.MethodDescriptor {
	t.Helper()
	methods := map[string]protoreflect.MethodDescriptor{}
	for _, name := range services(t, b) {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		apptest.NoError(t, err)
		all := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range all.Len() {
			methods[name+"/"+string(all.Get(i).Name())] = all.Get(i)
		}
	}
	return methods
}

// attempt calls a method with a request that cannot be decoded.
func attempt(ctx context.Context, conn *grpc.ClientConn, method string, m protoreflect.MethodDescriptor) error {
	codec := grpc.ForceCodecV2(broken{encoding.GetCodecV2("proto")})
	if !m.IsStreamingClient() && !m.IsStreamingServer() {
		return conn.Invoke(ctx, "/"+method, &emptypb.Empty{}, &emptypb.Empty{}, codec)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/"+method, codec)
	if err != nil {
		return err
	}
	_ = stream.SendMsg(&emptypb.Empty{}) // if the broker has refused the call, RecvMsg has its error
	_ = stream.CloseSend()
	return stream.RecvMsg(&emptypb.Empty{})
}

func TestAccess_EveryLevelOnEveryRPC(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock())
	b.Registered("builder-1", "builder")
	conns := map[string]*grpc.ClientConn{"none": b.OverTCP("")}
	for level, in := range map[string]*pb.IssueCredentialRequest{
		"observer": {Access: pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER},
		"agent":    {Access: pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT, Session: "default", Agent: "builder-1"},
		"operator": {Access: pb.CredentialAccess_CREDENTIAL_ACCESS_OPERATOR},
	} {
		_, secret := b.Issue(in)
		conns[level] = b.OverTCP(secret)
	}
	methods := served(t, b)
	if len(methods) != len(lowest) {
		t.Errorf("the daemon serves %d RPCs, and the test has levels for %d", len(methods), len(lowest))
	}
	for _, method := range slices.Sorted(maps.Keys(methods)) {
		least := slices.Index(levels, lowest[method])
		if least < 0 {
			t.Errorf("%s has no level", method)
			continue
		}
		b.Clock.Advance(3 * time.Second) // another failed attempt is permitted
		for i, level := range levels {
			call, end := context.WithTimeout(context.Background(), apptest.Patience)
			err := attempt(call, conns[level], method, methods[method])
			end()
			code, reason := status.Code(err), testkit.Reason(err)
			switch {
			case i < least && level == "none":
				if code != codes.Unauthenticated || reason != "CREDENTIAL_REQUIRED" {
					t.Errorf("%s without a credential: %v", method, err)
				}
			case i < least || level == "agent" && notForAgents[method]:
				if code != codes.PermissionDenied || !refusals[reason] {
					t.Errorf("%s as %s: %v, want a refusal", method, level, err)
				}
			case code != codes.InvalidArgument || reason != "MALFORMED_REQUEST":
				t.Errorf("%s as %s: %v, want that the broker tries to decode the request", method, level, err)
			}
		}
	}
}

// An observer can call each RPC that it may call, and none of them changes the database.
func TestAccess_ObserverReadsWithoutAnEffect(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("builder-1", "builder")
	_, secret := b.Issue(&pb.IssueCredentialRequest{Access: pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER, Session: "default"})
	conn := b.OverTCP(secret)
	ctx, cancel := context.WithTimeout(context.Background(), 2*apptest.Patience)
	defer cancel()
	id := apptest.Must(t, b.Actor("default", "builder-1").SendMessages,
		&pb.SendMessagesRequest{Messages: []*pb.Message{
			{Target: &pb.Target{To: &pb.Target_Agent{Agent: "builder-1"}}, Type: "note", Subject: "hello"},
		}}).GetResults()[0].GetId()
	list, err := pb.NewMessageServiceClient(conn).ListMessages(ctx, &pb.ListMessagesRequest{MarkRead: true})
	if err != nil || len(list.GetItems()) != 1 {
		t.Errorf("ListMessages: %v %v", list, err)
	}
	if got, err := pb.NewMessageServiceClient(conn).GetMessage(ctx, &pb.GetMessageRequest{Id: id}); err != nil || got.GetMessage().GetSubject() != "hello" {
		t.Errorf("GetMessage: %v %v", got, err)
	}
	_, err = pb.NewMessageServiceClient(conn).ListMessages(ctx, &pb.ListMessagesRequest{MarkRead: true, Box: pb.MessageBox_MESSAGE_BOX_INBOX})
	if err == nil {
		t.Error("an observer has an inbox")
	}
	events := apptest.Must(t, pb.NewEventServiceClient(conn).ListEvents, &pb.ListEventsRequest{})
	for _, e := range events.GetEvents() {
		if strings.HasPrefix(e.GetType(), "credential.") || strings.HasPrefix(e.GetType(), "broker.") {
			t.Errorf("an observer sees the event %s", e.GetType())
		}
	}
	stream, err := pb.NewEventServiceClient(conn).SubscribeEvents(ctx, &pb.SubscribeEventsRequest{Cursor: "mine"})
	if err == nil {
		_, err = stream.Recv()
	}
	if testkit.Reason(err) != "READ_ONLY" {
		t.Errorf("a cursor of an observer: %v", err)
	}
	for what, call := range map[string]func() error{
		"GetAgent": func() error {
			_, err := pb.NewAgentServiceClient(conn).GetAgent(ctx, &pb.GetAgentRequest{Name: "builder-1", View: pb.AgentView_AGENT_VIEW_FULL})
			return err
		},
		"ListAgents": func() error {
			return apptest.Err(pb.NewAgentServiceClient(conn).ListAgents(ctx, &pb.ListAgentsRequest{}))
		},
		"ListArtifacts": func() error {
			return apptest.Err(pb.NewArtifactServiceClient(conn).ListArtifacts(ctx, &pb.ListArtifactsRequest{}))
		},
		"ListMessageTypes": func() error {
			return apptest.Err(pb.NewCatalogServiceClient(conn).ListMessageTypes(ctx, &pb.ListMessageTypesRequest{}))
		},
		"GetMessageType": func() error {
			_, err := pb.NewCatalogServiceClient(conn).GetMessageType(ctx, &pb.GetMessageTypeRequest{Name: "status_update"})
			return err
		},
		"ListBlockers": func() error {
			return apptest.Err(pb.NewBlockerServiceClient(conn).ListBlockers(ctx, &pb.ListBlockersRequest{}))
		},
		"ListChannels": func() error {
			return apptest.Err(pb.NewChannelServiceClient(conn).ListChannels(ctx, &pb.ListChannelsRequest{}))
		},
		"ListDecisions": func() error {
			return apptest.Err(pb.NewDecisionServiceClient(conn).ListDecisions(ctx, &pb.ListDecisionsRequest{}))
		},
		"ListHandoffs": func() error {
			return apptest.Err(pb.NewHandoffServiceClient(conn).ListHandoffs(ctx, &pb.ListHandoffsRequest{}))
		},
		"ListLocks": func() error {
			return apptest.Err(pb.NewLockServiceClient(conn).ListLocks(ctx, &pb.ListLocksRequest{}))
		},
		"ListDeadLetters": func() error {
			return apptest.Err(pb.NewMessageServiceClient(conn).ListDeadLetters(ctx, &pb.ListDeadLettersRequest{}))
		},
		"ListMailboxes": func() error {
			return apptest.Err(pb.NewMessageServiceClient(conn).ListMailboxes(ctx, &pb.ListMailboxesRequest{}))
		},
		"ListThreads": func() error {
			return apptest.Err(pb.NewMessageServiceClient(conn).ListThreads(ctx, &pb.ListThreadsRequest{}))
		},
		"GetSession": func() error {
			return apptest.Err(pb.NewSessionServiceClient(conn).GetSession(ctx, &pb.GetSessionRequest{}))
		},
		"ListSessions": func() error {
			return apptest.Err(pb.NewSessionServiceClient(conn).ListSessions(ctx, &pb.ListSessionsRequest{}))
		},
		"ListState": func() error {
			return apptest.Err(pb.NewStateServiceClient(conn).ListState(ctx, &pb.ListStateRequest{}))
		},
		"ListTasks": func() error {
			return apptest.Err(pb.NewTaskServiceClient(conn).ListTasks(ctx, &pb.ListTasksRequest{}))
		},
		"ListTokens": func() error {
			return apptest.Err(pb.NewTokenServiceClient(conn).ListTokens(ctx, &pb.ListTokensRequest{}))
		},
		"ListVotes": func() error {
			return apptest.Err(pb.NewVoteServiceClient(conn).ListVotes(ctx, &pb.ListVotesRequest{}))
		},
	} {
		if err := call(); err != nil {
			t.Errorf("%s as an observer: %v", what, err)
		}
	}
	m, err := b.Root().GetMessage(ctx, &pb.GetMessageRequest{Id: id})
	if err != nil || m.GetDeliveries()[0].GetReadAt() != nil || m.GetDeliveries()[0].GetDeliveredAt() != nil {
		t.Errorf("an observer has marked the message: %v %v", m, err)
	}
}
