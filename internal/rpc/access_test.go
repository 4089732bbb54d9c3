package rpc_test

import (
	"context"
	"os"
	"testing"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/rpc"
	"brokerd/internal/testkit"
)

// forOperators are the RPCs that an agent may not call.
var forOperators = map[string]bool{
	pb.AdminService_WatchOverview_FullMethodName:         true, // and for observers
	pb.AdminService_CheckDatabase_FullMethodName:         true,
	pb.AdminService_MoveMessages_FullMethodName:          true,
	pb.AdminService_PruneData_FullMethodName:             true,
	pb.AdminService_BackupDatabase_FullMethodName:        true,
	pb.AdminService_Drain_FullMethodName:                 true,
	pb.AdminService_OpenLoopback_FullMethodName:          true,
	pb.CredentialService_IssueCredential_FullMethodName:  true,
	pb.CredentialService_ListCredentials_FullMethodName:  true,
	pb.CredentialService_RevokeCredential_FullMethodName: true,
	pb.CredentialService_CreateLoginLink_FullMethodName:  true,
	pb.LockService_ForceReleaseLocks_FullMethodName:      true,
	pb.TokenService_RevokeToken_FullMethodName:           true,
	pb.ChannelService_ConfigureChannel_FullMethodName:    true,
	pb.MessageService_PurgeDeadLetters_FullMethodName:    true,
	pb.SessionService_CreateSession_FullMethodName:       true,
	pb.SessionService_ConfigureSession_FullMethodName:    true,
	pb.SessionService_CloseSession_FullMethodName:        true,
	pb.SessionService_ExportSession_FullMethodName:       true,
	pb.SessionService_DeleteSession_FullMethodName:       true,
}

// generated returns every RPC of the API.
func generated() []protoreflect.MethodDescriptor {
	var all []protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFilesByPackage("brokerd.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				all = append(all, methods.Get(j))
			}
		}
		return true
	})
	return all
}

// nothing is a service that has every RPC of the API and implements none.
func nothing(m protoreflect.MethodDescriptor) *grpc.ServiceDesc {
	d := &grpc.ServiceDesc{ServiceName: string(m.Parent().FullName())}
	answer := status.Error(codes.Unimplemented, "reached")
	methods := m.Parent().(protoreflect.ServiceDescriptor).Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		if m.IsStreamingClient() || m.IsStreamingServer() {
			d.Streams = append(d.Streams, grpc.StreamDesc{StreamName: string(m.Name()), ServerStreams: m.IsStreamingServer(),
				ClientStreams: m.IsStreamingClient(), Handler: func(any, grpc.ServerStream) error { return answer }})
			continue
		}
		d.Methods = append(d.Methods, grpc.MethodDesc{MethodName: string(m.Name()),
			Handler: func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
				return nil, answer
			}})
	}
	return d
}

// serveNothing serves every RPC of the API, and what else is registered.
func serveNothing(t *testing.T, more ...*grpc.ServiceDesc) *grpc.ClientConn {
	t.Helper()
	server := rpc.NewServer(rpc.Options{UID: os.Getuid(), Clock: clockwork.NewRealClock(), Log: zap.NewNop()})
	served := map[protoreflect.FullName]bool{}
	for _, m := range generated() {
		if name := m.Parent().FullName(); !served[name] {
			served[name] = true
			server.RegisterService(nothing(m), nil)
		}
	}
	for _, d := range more {
		server.RegisterService(d, nil)
	}
	socket, _ := start(t, server, t.TempDir())
	return dial(t, socket)
}

func TestAccess_TableHasEveryRPC(t *testing.T) {
	t.Parallel()
	conn := serveNothing(t)
	for _, m := range generated() {
		method := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
		call := func(ctx context.Context) codes.Code {
			if !m.IsStreamingClient() && !m.IsStreamingServer() {
				return status.Code(conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{}))
			}
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
			testkit.NoError(t, err)
			return status.Code(stream.RecvMsg(&emptypb.Empty{}))
		}
		if got := call(calling(t)); got != codes.Unimplemented {
			t.Errorf("an operator calls %s: %v; is it in the table?", method, got)
		}
		want := codes.Unimplemented
		if forOperators[method] {
			want = codes.PermissionDenied
		}
		if got := call(calling(t, "brokerd-agent", "builder-1")); got != want {
			t.Errorf("an agent calls %s: %v, want %v", method, got, want)
		}
	}
}

func TestAccess_OperatorThatNamesAnAgentHasNoMoreRights(t *testing.T) {
	t.Parallel()
	w := serve(t)
	ctx := calling(t, "brokerd-agent", "lead", "authorization", "Bearer "+w.secret)
	_, err := pb.NewSessionServiceClient(dial(t, w.tcp)).CreateSession(ctx, &pb.CreateSessionRequest{})
	expect(t, err, codes.PermissionDenied, "OPERATOR_ONLY", "")
}

func TestAccess_WhatIsNotInTheTableIsRefused(t *testing.T) {
	t.Parallel()
	conn := serveNothing(t, &grpc.ServiceDesc{ServiceName: "brokerd.v1.NewService", Methods: []grpc.MethodDesc{{
		MethodName: "Do",
		Handler: func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
			return &emptypb.Empty{}, nil
		},
	}}})
	err := conn.Invoke(calling(t), "/brokerd.v1.NewService/Do", &emptypb.Empty{}, &emptypb.Empty{})
	expect(t, err, codes.PermissionDenied, "NOT_ALLOWED", "")
}
