package app_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/fault"
	"brokerd/internal/postgrestest"
)

func TestMain(m *testing.M) {
	plantPanics()
	goleak.VerifyTestMain(postgrestest.Tests{M: m})
}

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), apptest.Patience)
	t.Cleanup(cancel)
	return ctx
}

// folder is an empty data folder with room for a socket in it.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "brokerd")
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// run starts a daemon that the test itself stops.
func run(t *testing.T, c app.Config) *app.App {
	t.Helper()
	a, err := app.Start(patient(t), c)
	apptest.NoError(t, err)
	t.Cleanup(func() {
		if err := a.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return a
}

func TestApp_ServesEveryServiceOfTheAPI(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	stream, err := grpc_reflection_v1.NewServerReflectionClient(b.Operator()).ServerReflectionInfo(patient(t))
	apptest.NoError(t, err)
	err = stream.Send(&grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
	apptest.NoError(t, err)
	answer, err := stream.Recv()
	apptest.NoError(t, err)
	apptest.NoError(t, stream.CloseSend())
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	served := map[string]bool{}
	for _, s := range answer.GetListServicesResponse().GetService() {
		served[s.GetName()] = true
	}
	for _, name := range serviceNames() {
		if !served[name] {
			t.Errorf("%s is not served", name)
		}
	}
	health, err := grpc_health_v1.NewHealthClient(b.Operator()).Check(patient(t), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || health.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("%v %v", health, err)
	}
}

func TestApp_FilesOfTheDataFolder(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	a := run(t, app.Config{Dir: dir})
	endpoint := filepath.Join(dir, app.EndpointFile)
	text, err := os.ReadFile(endpoint)
	if err != nil || string(text) != a.Addresses()[0]+"\n" || a.Addresses()[0] != "unix://"+dir+"/brokerd.sock" {
		t.Errorf("%q %v, listening on %q", text, err, a.Addresses())
	}
	for _, name := range []string{"brokerd.db", "brokerd.sock", "operator.credential", "endpoint"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	if err := a.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"brokerd.sock", "endpoint"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is still there after the stop", name)
		}
	}
	if err := a.Stop(context.Background()); err != nil {
		t.Errorf("a second stop: %v", err)
	}
}

func TestApp_SecondDaemonOnAFolderIsRefused(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	_, err := app.Start(patient(t), app.Config{Dir: b.Dir()})
	if fault.KindOf(err) != fault.Precondition || !strings.Contains(err.Error(), "in use") {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(b.Dir(), app.EndpointFile)); err != nil {
		t.Errorf("the first one's endpoint file: %v", err)
	}
	if _, err := b.Root().GetStatus(patient(t), &pb.GetStatusRequest{}); err != nil {
		t.Errorf("the first one: %v", err)
	}
}

func TestApp_FailedStartLeavesTheFolderFree(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	apptest.NoError(t, err)
	defer func() { _ = taken.Close() }()
	dir := folder(t)
	for name, c := range map[string]app.Config{
		"taken port":         {Listen: []string{taken.Addr().String()}},
		"beyond loopback":    {Listen: []string{"127.0.0.1:0", "0.0.0.0:0"}},
		"profiles for all":   {Pprof: "0.0.0.0:0"},
		"metrics for all":    {Metrics: "0.0.0.0:0"},
		"unknown sync":       {Sync: "sometimes"},
		"unknown checkpoint": {Checkpoint: "never"},
	} {
		c.Dir = dir
		if a, err := app.Start(patient(t), c); err == nil {
			t.Errorf("%s: started", name)
			_ = a.Stop(context.Background())
		}
	}
	a := run(t, app.Config{Dir: dir})
	if len(a.Addresses()) != 1 {
		t.Error(a.Addresses())
	}
}

func TestApp_DamagedDatabaseIsRefusedAndKept(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	path := filepath.Join(dir, "brokerd.db")
	apptest.NoError(t, os.WriteFile(path, []byte(strings.Repeat("not a database ", 1000)), 0o600))
	if _, err := app.Start(patient(t), app.Config{Dir: dir}); fault.KindOf(err) != fault.Precondition {
		t.Error(err)
	}
	if text, err := os.ReadFile(path); err != nil || len(text) != 15_000 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

func TestApp_RestartKeepsWhatWasConfirmed(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	lead, builder := b.Registered("lead", "lead"), b.Registered("builder-1", "builder")
	sent := send(t, pb.NewMessageServiceClient(lead), "builder-1")
	b.Restart()
	out := apptest.Must(t, pb.NewMessageServiceClient(builder).ClaimMessages, &pb.ClaimMessagesRequest{Max: 1})
	if len(out.GetClaims()) != 1 || out.GetClaims()[0].GetMessage().GetRevision() != sent {
		t.Errorf("%v, want message %d", out, sent)
	}
}

func TestApp_StopEndsStreamsAndIsQuick(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.With(func(c *app.Config) { c.StopTimeout = apptest.Patience }))
	conn := b.Registered("builder-1", "builder")
	claims, err := pb.NewMessageServiceClient(conn).Claim(patient(t))
	apptest.NoError(t, err)
	apptest.NoError(t, claims.Send(&pb.ClaimRequest{Open: &pb.ClaimOpen{}}))
	if in, err := claims.Recv(); err != nil || in.GetOpened() == nil {
		t.Fatalf("%v %v", in, err)
	}
	events, err := b.Root().SubscribeEvents(patient(t), &pb.SubscribeEventsRequest{})
	apptest.NoError(t, err)
	apptest.NoError(t, apptest.Err(events.Recv()))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		b.Restart()
	}()
	if in, err := claims.Recv(); err != nil || in.GetGoAway() == nil {
		t.Errorf("%v %v, want go_away", in, err)
	}
	if err := claims.CloseSend(); err != nil {
		t.Error(err)
	}
	if _, err := events.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("subscription: %v", err)
	}
	<-stopped
}

func TestApp_StopCutsOffClientsThatDoNotEnd(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.With(func(c *app.Config) { c.StopTimeout = 50 * time.Millisecond }))
	watch, err := grpc_health_v1.NewHealthClient(b.Operator()).Watch(patient(t), &grpc_health_v1.HealthCheckRequest{})
	apptest.NoError(t, err)
	apptest.NoError(t, apptest.Err(watch.Recv()))
	b.Restart()
	for err == nil {
		_, err = watch.Recv() // NOT_SERVING may come first
	}
	if code := status.Code(err); code != codes.Unavailable && code != codes.Canceled {
		t.Error(err)
	}
}

func TestApp_ProfilesOnLoopback(t *testing.T) {
	t.Parallel()
	core, logged := observer.New(zap.InfoLevel)
	run(t, app.Config{Dir: folder(t), Pprof: "127.0.0.1:0", Log: zap.New(core)})
	lines := logged.FilterMessage("serving profiles").All()
	if len(lines) != 1 {
		t.Fatalf("%d lines of the log say where profiles are served", len(lines))
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	out, err := client.Get(fmt.Sprintf("http://%s/debug/pprof/goroutine?debug=1", lines[0].ContextMap()["address"]))
	apptest.NoError(t, err)
	defer func() { _ = out.Body.Close() }()
	text, err := io.ReadAll(out.Body)
	if err != nil || out.StatusCode != http.StatusOK || !strings.Contains(string(text), "goroutine profile") {
		t.Errorf("%d %v: %.200s", out.StatusCode, err, text)
	}
}

func TestApp_UnknownMethodIsUnimplemented(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	err := b.Operator().Invoke(patient(t), "/brokerd.v1.MessageService/Nothing", &emptypb.Empty{}, &emptypb.Empty{})
	if status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
}

// send sends a message to an agent and returns its revision.
func send(t *testing.T, client pb.MessageServiceClient, to string) int64 {
	t.Helper()
	return apptest.Must(t, client.SendMessages, &pb.SendMessagesRequest{Messages: []*pb.Message{{
		Target: &pb.Target{To: &pb.Target_Agent{Agent: to}}, Type: "note", Subject: "hello",
	}}}).GetResults()[0].GetRevision()
}
