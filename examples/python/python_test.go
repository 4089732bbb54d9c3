package python_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
)

func TestAgent_SendsClaimsAndAcksOverTCPWithTheCredential(t *testing.T) {
	python, env := environment(t)
	_, address, credential := startBroker(t)
	out := run(t, env, python, "agent.py", address, credential)
	for _, want := range []string{"sent ", "claimed ", "Add login t1", "state DELIVERY_STATE_ACKED"} {
		if !strings.Contains(out, want) {
			t.Errorf("agent.py did not print %q:\n%s", want, out)
		}
	}
}

func TestAgent_NeedsNoCredentialOnTheUnixSocket(t *testing.T) {
	python, env := environment(t)
	_, _, credential := startBroker(t)
	socket := "unix://" + filepath.Join(filepath.Dir(credential), "brokerd.sock")
	if out := run(t, env, python, "agent.py", socket); !strings.Contains(out, "state DELIVERY_STATE_ACKED") {
		t.Errorf("%s", out)
	}
}

func TestWorker_ReadsTheReasonOfAnError(t *testing.T) {
	python, env := environment(t)
	_, _, credential := startBroker(t)
	const script = `
import sys
sys.path.insert(0, ".")
import grpc, worker
from brokerd.v1 import message_pb2, message_pb2_grpc
with grpc.insecure_channel(sys.argv[1]) as channel:
    try:
        message_pb2_grpc.MessageServiceStub(channel).AckMessages(
            message_pb2.AckMessagesRequest(ids=["9.1"]), metadata=[("brokerd-agent", "stranger")])
    except grpc.RpcError as error:
        print(worker.reason(error))
`
	socket := "unix://" + filepath.Join(filepath.Dir(credential), "brokerd.sock")
	if out := run(t, env, python, "-c", script, socket); out != "AGENT_NOT_REGISTERED\n" {
		t.Errorf("the reason is %q", out)
	}
}

func TestWorker_RepliesAndKeepsWhatFailed(t *testing.T) {
	python, env := environment(t)
	broker, address, credential := startBroker(t)
	lead := broker.As("lead")
	if _, err := lead.Agents().RegisterAgent(t.Context(), &pb.RegisterAgentRequest{Role: "lead"}); err != nil {
		t.Fatal(err)
	}
	var tasks []*pb.Message
	for _, payload := range []string{`{"name":"login"}`, `{"name":"impossible"}`} {
		tasks = append(tasks, &pb.Message{
			Target: &pb.Target{To: &pb.Target_Role{Role: "builder"}}, Payload: payload, MaxAttempts: 1,
		})
	}
	sent, err := lead.Messages().SendMessages(t.Context(), &pb.SendMessagesRequest{Messages: tasks})
	if err != nil {
		t.Fatal(err)
	}
	if out := run(t, env, python, "worker.py", address, credential); out != "login is built\n" {
		t.Errorf("worker.py printed %q", out)
	}
	inbox, err := lead.Messages().ListMessages(t.Context(), &pb.ListMessagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(inbox.GetItems()) != 1 || inbox.GetItems()[0].GetMessage().GetInReplyTo() != sent.GetResults()[0].GetId() {
		t.Errorf("the lead's inbox is %v", inbox)
	}
	dead, err := broker.Messages().ListDeadLetters(t.Context(), &pb.ListDeadLettersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(dead.GetItems()) != 1 || dead.GetItems()[0].GetDelivery().GetHistory()[0].GetError() != "no such repository" {
		t.Errorf("the dead letters are %v", dead)
	}
}

// environment returns the Python to run the examples with, and its environment as the README gives
// it.
func environment(t *testing.T) (python string, env []string) {
	t.Helper()
	stubs, err := filepath.Abs("../../gen/python")
	if err != nil {
		t.Fatal(err)
	}
	return pythonWithGRPC(t), []string{"PYTHONPATH=" + stubs, "PYTHONDONTWRITEBYTECODE=1"}
}

// startBroker runs a daemon, and returns an operator's client and what the examples need to reach it over TCP.
func startBroker(t *testing.T) (broker *client.Client, address, credential string) {
	t.Helper()
	data := t.TempDir()
	daemon, err := app.Start(context.Background(), app.Config{Dir: data, Listen: []string{"127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := daemon.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for _, a := range daemon.Addresses() {
		if strings.HasPrefix(a, "127.0.0.1:") {
			address = a
		}
	}
	broker, err = client.Dial(t.Context(), client.WithAddress(daemon.Addresses()[0]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	return broker, address, filepath.Join(data, "operator.credential")
}

// pythonWithGRPC finds a Python that has gRPC: Debian's, which is not always the first in the path.
func pythonWithGRPC(t *testing.T) string {
	t.Helper()
	for _, python := range []string{"/usr/bin/python3", "python3"} {
		if exec.Command(python, "-c", "import grpc, google.protobuf").Run() == nil {
			return python
		}
	}
	t.Skip("there is no Python with gRPC (Debian: python3-grpcio)")
	return ""
}

func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}
