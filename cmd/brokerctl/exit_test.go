package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/internal/apptest"
)

// apiError is an error as the broker sends it.
func apiError(t testing.TB, code codes.Code, reason string, more ...protoadapt.MessageV1) error {
	t.Helper()
	s, err := status.New(code, "what the broker says").WithDetails(append(more, &errdetails.ErrorInfo{Reason: reason, Domain: "brokerd.v1"})...)
	apptest.NoError(t, err)
	return s.Err()
}

func TestExitCode_FollowsTheAPIsAnswer(tt *testing.T) {
	t := newShell(tt)
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("anything"), 1},
		{apiError(t, codes.Internal, "INTERNAL"), 1},
		{apiError(t, codes.FailedPrecondition, "NO_RESPONDERS"), 3},
		{apiError(t, codes.FailedPrecondition, "AGENT_NOT_REGISTERED"), 3},
		{apiError(t, codes.ResourceExhausted, "MAILBOX_FULL"), 1},
		{apiError(t, codes.OutOfRange, "COMPACTED"), 1},
		{apiError(t, codes.InvalidArgument, "INVALID_ARGUMENT"), 2},
		{apiError(t, codes.FailedPrecondition, "AGENT_REQUIRED"), 2},
		{apiError(t, codes.NotFound, "AGENT_NOT_FOUND"), 3},
		{apiError(t, codes.AlreadyExists, "REQUEST_ID_REUSED"), 5},
		{apiError(t, codes.Aborted, "CONFLICT"), 5},
		{apiError(t, codes.FailedPrecondition, "NO_OPEN_CLAIM"), 6},
		{apiError(t, codes.FailedPrecondition, "SEVERAL_OPEN_CLAIMS"), 5},
		{apiError(t, codes.FailedPrecondition, "CLAIM_LOST"), 6},
		{apiError(t, codes.FailedPrecondition, "STALE_INCARNATION"), 6},
		{apiError(t, codes.PermissionDenied, "OPERATOR_ONLY"), 7},
		{apiError(t, codes.Unauthenticated, "CREDENTIAL_REQUIRED"), 7},
		{apiError(t, codes.Unavailable, "DISK_FULL"), 69},
		{&client.UnreachableError{Address: "x", Err: errors.New("gone")}, 69},
		{fmt.Errorf("wrapped: %w", apiError(t, codes.NotFound, "AGENT_NOT_FOUND")), 3},
		{problem.Failf(problem.ExitNothing, "nothing came"), 4},
	} {
		var errs strings.Builder
		x := quiet(setting.Environment{Err: &errs})
		if got := x.Report(t.Context(), newRoot(x), c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
		if lines := strings.Count(errs.String(), "\n"); c.err != nil && lines != 1 {
			t.Errorf("%v: %d lines on standard error: %q", c.err, lines, errs.String())
		}
	}
}

func TestExitCode_OfASignalIsTheSignals(tt *testing.T) {
	t := newShell(tt)
	ctx, interrupt := context.WithCancelCause(t.Context())
	interrupt(&problem.Interrupted{Signal: os.Interrupt})
	var errs strings.Builder
	x := quiet(setting.Environment{Err: &errs})
	for _, err := range []error{context.Canceled, status.Error(codes.Canceled, "gone")} {
		if got := x.Report(ctx, newRoot(x), err); got != 130 || errs.String() != "" {
			t.Errorf("%v: exit code %d, %q", err, got, errs.String())
		}
	}
	root := newRoot(x)
	x.Global.Output = output.FormatJSON
	want := `{"error":{"code":"interrupted","message":"interrupted by interrupt"}}` + "\n"
	if got := x.Report(ctx, root, context.Canceled); got != 130 || errs.String() != want {
		t.Errorf("exit code %d, %q", got, errs.String())
	}
}

// quiet is a run whose command was reached.
func quiet(env setting.Environment) *command.Caller {
	c := command.New(env)
	c.Ran = true
	return c
}

func TestError_SaysHowLongToWait(t *testing.T) {
	err := apiError(t, codes.ResourceExhausted, "TOO_MANY", &errdetails.RetryInfo{RetryDelay: durationpb.New(90 * time.Second)})
	if _, text := quiet(setting.Environment{}).Explain(err); text != "what the broker says; try again in 1m30s" {
		t.Error(text)
	}
}

func TestUsage_IsExitCode2AndNamesWhatToDo(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"sned", "x"}, `unknown command "sned" for brokerctl; did you mean send?`},
		{[]string{"agent", "regster", "x"}, `unknown command "regster" for brokerctl agent; did you mean agent register?`},
		{[]string{"send"}, `the receiver is missing (see brokerctl send --help)`},
		{[]string{"send", "a", "several", "words"}, `"words" is one too many; a text of several words needs quotes`},
		{[]string{"send", "a", "--all", "--one"}, `--all and --one exclude each other`},
		{[]string{"send", "a", "--priority", "11"}, `--priority "11" is neither 1 to 10 nor low, normal, high or critical`},
		{[]string{"send", "a", "--payload", "{"}, `--payload is not JSON`},
		{[]string{"send", "a", "--label", "x"}, `--label "x" is not KEY=VALUE`},
		{[]string{"send", "a", "--body", "@/does/not/exist"}, `--body @/does/not/exist: open /does/not/exist`},
		{[]string{"send", "a", "--ttl", "0s"}, `--ttl 0s: it must be above 0`},
		{[]string{"inbox", "--foo"}, `unknown flag: --foo (see brokerctl inbox --help)`},
		{[]string{"inbox", "x"}, `"x" is neither a message's id nor its revision`},
		{[]string{"claim", "--wait", "x"}, `--wait: "x" is not a duration such as 90s, 10m, 1h30m or 2d`},
		{[]string{"-o", "xml", "inbox"}, `--output "xml" is none of table, json, prompt`},
		{[]string{"message", "list", "--since", "x"}, `--since "x" is neither a duration such as 90s or 2d nor a time`},
		{[]string{"channel", "configure", "x"}, `give at least one of --default-ttl`},
		{[]string{"dlq", "delete"}, `name dead letters by id or revision, or a whole mailbox with --mailbox`},
		{[]string{"work"}, `the command is missing`},
		{[]string{"bench", "--rounds", "0"}, `--rounds is 0`},
	} {
		got := ctl(t, c.args...)
		if got.code != 2 || !strings.Contains(got.err, c.want) || got.out != "" {
			t.Errorf("%q: %+v, want %q", c.args, got, c.want)
		}
		if strings.Count(got.err, "\n") != 1 {
			t.Errorf("%q: not one line: %q", c.args, got.err)
		}
	}
}

// daemonProcess runs a daemon that brokerctl finds by itself in a process of its own, which the end
// of the test kills.
func daemonProcess(t *shell) *exec.Cmd {
	t.Helper()
	return daemonProcessOn(t, isolate(t))
}

// daemonProcessOn is daemonProcess for an isolated folder, which may have data.
func daemonProcessOn(t *shell, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = t.environ(asDaemon + "=" + dir)
	out, err := cmd.StdoutPipe()
	apptest.NoError(t, err)
	apptest.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended; SIGKILL ends a stopped process as well
		_ = cmd.Wait()
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the daemon does not start: %v", err)
	}
	return cmd
}

func TestUnreachable_TellsAnAbsentAnEndedAndAFrozenBrokerApart(tt *testing.T) {
	t := newShell(tt)
	dir := isolate(t)
	const start = "start one with `brokerctl up`"
	for _, args := range [][]string{{"inbox"}, {"ping"}, {"ping", "--wait", "10ms"}} {
		got := ctl(t, args...)
		if got.code != 69 || !strings.Contains(got.err, "no broker is running at "+dir) || !strings.Contains(got.err, start) {
			t.Errorf("%q: %+v", args, got)
		}
	}
	for addr, want := range map[string]string{
		"127.0.0.1:1":             "no broker is running at 127.0.0.1:1 (",
		"unix://" + dir + "/none": "no broker is running at unix://" + dir + "/none (",
	} {
		got := ctl(t, "--addr", addr, "status")
		if got.code != 69 || !strings.Contains(got.err, want) || !strings.Contains(got.err, start) {
			t.Errorf("%+v, want %q", got, want)
		}
	}

	daemon := daemonProcess(t)
	if got := ctl(t, "ping"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	apptest.NoError(t, daemon.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(daemon.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("it has not stopped: %v, %v", status, err)
	}
	want := []string{"does not answer"}
	if runtime.GOOS == "linux" || runtime.GOOS == "darwin" {
		pid := daemon.Process.Pid
		want = append(want, fmt.Sprintf("process %d is frozen", pid), fmt.Sprintf("`kill -CONT %d`", pid))
	}
	for _, args := range [][]string{{"inbox"}, {"ping"}} {
		got := ctl(t, args...)
		for _, text := range want {
			if got.code != 69 || !strings.Contains(got.err, text) || strings.Contains(got.err, start) {
				t.Errorf("%q: %+v, want %q", args, got, text)
			}
		}
	}
	apptest.NoError(t, daemon.Process.Signal(syscall.SIGCONT))
	if got := ctl(t, "ping"); got.code != 0 {
		t.Errorf("it continues, and does not answer: %+v", got)
	}

	apptest.NoError(t, daemon.Process.Kill())
	_ = daemon.Wait() // it was killed
	const ended = "has ended (its socket refuses connections); " + start
	if got := ctl(t, "inbox"); got.code != 69 || !strings.Contains(got.err, ended) {
		t.Errorf("%+v", got)
	}
}
