package vendortest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fakemodel"
	"brokerd/internal/processtest"
)

// patience is how long a program may take for what it does at once.
const patience = 2 * time.Minute

// slowest is how much longer a program may take with a broker that does not answer: its MCP server and about ten hooks of
// 300 ms, on a slow machine.
const slowest = 90 * time.Second

// A run is a coding agent in a project folder of its own, with a daemon and a model.
type run struct {
	whole         testing.TB // from its start to its end
	t             testing.TB // a part of it
	vendor        *vendor
	daemon        *processtest.Daemon
	model         *fakemodel.Server
	broker        *client.Client // of the agent lead
	home, project string
	variables     []string
	sent          map[string]string // subjects of the messages, by id
	approved      bool              // the user has approved the hooks
	events        *eventLog
	screen        *terminal
}

// folder returns a new folder. A vendor's program may leave a process behind that still writes there when the test
// ends: so it is no failure if something remains.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vendor")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func newRun(t testing.TB, v *vendor) *run {
	t.Helper()
	bin := v.find()
	if bin == "" {
		t.Skipf("%s is not in VENDOR_PROGRAMS: make vendors", v.program)
	}
	brokerd := processtest.Build(t)
	d := processtest.New(t, brokerd)
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := &run{whole: t, t: t, vendor: v, daemon: d, model: fakemodel.New(time.Now), home: folder(t), project: folder(t),
		sent: map[string]string{}}
	t.Cleanup(r.model.Close)
	const refused = "http://127.0.0.1:9"
	r.env("HOME="+r.home, "TMPDIR="+folder(t), "LANG=C.UTF-8", "TERM=dumb",
		"PATH="+bin+":"+filepath.Dir(brokerd)+":"+os.Getenv("PATH"),
		"HTTP_PROXY="+refused, "HTTPS_PROXY="+refused, "http_proxy="+refused, "https_proxy="+refused,
		"NO_PROXY=127.0.0.1,localhost,::1", "no_proxy=127.0.0.1,localhost,::1")
	for _, pipe := range []string{"begun", "release"} {
		if err := syscall.Mkfifo(filepath.Join(r.project, pipe), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Codex starts MCP servers without the variables of its environment: they look for the broker where it usually is.
	state := filepath.Join(r.home, ".local", "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(d.Dir(), filepath.Join(state, "brokerd")); err != nil {
		t.Fatal(err)
	}
	r.write(r.project, "hold", "exec 3<>release; : > begun; read -r x <&3\n")
	v.seed(r)
	r.ctl("agent", "register", "lead", "--role", "lead", "--lease", "1h")
	r.ctl("setup", v.name, "--agent", "builder-1", "--role", "builder")
	r.ctl("agent", "register", "builder-1", "--role", "builder", "--lease", "1h")
	c, err := client.Dial(t.Context(), client.WithAddress(d.Address()), client.WithAgent("lead"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	r.broker = c
	r.follow()
	return r
}

// ctl runs brokerctl in the project.
func (r *run) ctl(args ...string) {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), filepath.Join(filepath.Dir(r.daemon.Program()), "brokerctl"), args...)
	cmd.Dir, cmd.Env = r.project, r.variables
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("brokerctl %q: %v\n%s", args, err, out)
	}
}

// A process is a program that runs, in a process group of its own.
type process struct {
	cmd   *exec.Cmd
	out   bytes.Buffer
	ended chan error
	began time.Time
}

// path is the file of the program.
func (r *run) path() string { return filepath.Join(r.vendor.find(), r.vendor.program) }

// start starts the program once, without a screen.
func (r *run) start(prompt string) *process {
	r.t.Helper()
	p := &process{cmd: exec.Command(r.path(), r.vendor.once(prompt)...), ended: make(chan error, 1), began: time.Now()} //nolint:noctx // it is killed with its group
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = r.project, r.variables, &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.cleanup(p.kill)
	go func() { p.ended <- p.cmd.Wait() }()
	return p
}

func (p *process) kill() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// wait returns how long the program took until it ended by itself.
func (r *run) wait(p *process) time.Duration {
	r.t.Helper()
	select {
	case err := <-p.ended:
		if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
			r.t.Fatalf("%s: %v\n%s", r.vendor.program, err, p.out.String())
		}
	case <-time.After(patience):
		r.t.Fatalf("%s does not end", r.vendor.program)
	}
	return time.Since(p.began)
}

// hold is a command that runs from begun to release.
const hold = "sh hold"

// ended receives when a process has ended; never without a process.
func (*run) ended(p *process) <-chan error {
	if p == nil {
		return nil
	}
	return p.ended
}

// begun returns as soon as the command hold runs, in a process or on the screen.
func (r *run) begun(p *process) {
	r.t.Helper()
	runs := make(chan error, 1)
	go func() { // ends with the test at the latest: its folder goes, and with it the pipe
		f, err := os.Open(filepath.Join(r.project, "begun"))
		if err == nil {
			err = f.Close()
		}
		runs <- err
	}()
	select {
	case err := <-runs:
		if err != nil {
			r.t.Fatal(err)
		}
	case err := <-r.ended(p):
		r.t.Fatalf("%s has ended: %v\n%s", r.vendor.program, err, p.out.String())
	case <-time.After(patience):
		r.t.Fatalf("%s does not begin", r.vendor.program)
	}
}

// release ends the command hold.
func (r *run) release() {
	r.t.Helper()
	f, err := os.OpenFile(filepath.Join(r.project, "release"), os.O_RDWR, 0) // which waits for no reader
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // the write tells
	if _, err := f.WriteString("\n"); err != nil {
		r.t.Fatal(err)
	}
}

// send sends a message to the agent. The broker may have been started a moment ago.
func (r *run) send(subject string) (id string) {
	r.t.Helper()
	return r.sendTo("builder-1", subject)
}

// sendTo sends a message to an agent.
func (r *run) sendTo(agent, subject string) (id string) {
	r.t.Helper()
	request := &pb.SendMessagesRequest{RequestId: uuid.NewString(), Messages: []*pb.Message{
		{Target: &pb.Target{To: &pb.Target_Agent{Agent: agent}}, Subject: subject},
	}}
	out, err := r.broker.Messages().SendMessages(r.t.Context(), request)
	for late := time.Now().Add(patience); status.Code(err) == codes.Unavailable && time.Now().Before(late); {
		out, err = r.broker.Messages().SendMessages(r.t.Context(), request)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.sent[out.GetResults()[0].GetId()] = subject
	return out.GetResults()[0].GetId()
}

// delivery returns the delivery of a message.
func (r *run) delivery(id string) *pb.Delivery {
	r.t.Helper()
	out, err := r.broker.Messages().GetMessage(r.t.Context(), &pb.GetMessageRequest{Id: id})
	if err != nil {
		r.t.Fatal(err)
	}
	return out.GetDeliveries()[0]
}

// truthful checks that no receipt says more than the model has seen.
func (r *run) truthful() {
	r.t.Helper()
	for id, subject := range r.sent {
		d := r.delivery(id)
		_, seen := r.model.Saw(subject)
		if d.GetReadAt() != nil && !seen {
			r.t.Errorf("the receipt of %q says read, and no request had it: %v", subject, d)
		}
		r.t.Logf("%q: the model has it: %v; read: %v; offers: %v", subject, seen, d.GetReadAt() != nil, d.GetOffers())
	}
}

// headless runs a test for each program that is installed.
func headless(t *testing.T, test func(r *run)) {
	t.Helper()
	for i := range vendors {
		t.Run(vendors[i].name, func(t *testing.T) { test(newRun(t, &vendors[i])) })
	}
}

// A message that comes while a tool runs is in the model's next request.
func TestHeadless_MailInATurnIsInTheNextRequest(t *testing.T) {
	headless(t, func(r *run) {
		p := r.start("RUN: " + hold + "\nRUN: true")
		r.begun(p)
		id := r.send("MAIL-in-a-turn")
		began := time.Now()
		r.release()
		r.reached("MAIL-in-a-turn")
		r.vendor.result().headless = since(began)
		r.wait(p)
		r.vendor.result().mail = slices.ContainsFunc(r.model.Requests(), func(q fakemodel.Request) bool {
			return slices.ContainsFunc(q.Tools, func(tool string) bool { return strings.HasSuffix(tool, "_mail") || tool == "mail" })
		})
		d := r.delivery(id)
		if o := d.GetOffers(); len(o) != 1 || o[0].GetWay() != pb.OfferWay_OFFER_WAY_TOOL_CALL || d.GetReadAt() == nil {
			t.Errorf("read at %v, offers: %v", d.GetReadAt(), o)
		}
		r.truthful()
	})
}

// A message that waits reaches the model: with the prompt, or at the end of the turn.
func TestHeadless_MailThatWaitsReachesTheModel(t *testing.T) {
	headless(t, func(r *run) {
		id := r.send("MAIL-at-the-end")
		p := r.start("hello")
		r.wait(p)
		_, seen := r.model.Saw("MAIL-at-the-end")
		read := r.delivery(id).GetReadAt() != nil
		if !seen || !read {
			t.Errorf("the model has it: %v; read: %v\n%s", seen, read, p.out.String())
		}
		r.truthful()
	})
}

// A message that comes during the last answer continues the turn, or stays unread where the run ends with it.
func TestHeadless_MailDuringTheLastAnswerIsReadOrStaysUnread(t *testing.T) {
	headless(t, func(r *run) {
		p := r.start("WAIT: for-mail")
		r.reached("WAIT: for-mail")
		id := r.send("MAIL-last")
		r.goOn()
		r.wait(p)
		_, seen := r.model.Saw("MAIL-last")
		d := r.delivery(id)
		if want := !r.vendor.leaves; seen != want || (d.GetReadAt() != nil) != want || !want && len(d.GetOffers()) > 0 {
			t.Errorf("the model has it: %v; %v\n%s", seen, d, p.out.String())
		}
		r.truthful()
	})
}

// A program that is killed in a turn has accepted nothing.
func TestHeadless_MailToAProgramThatIsKilledStaysUnread(t *testing.T) {
	headless(t, func(r *run) {
		p := r.start("RUN: true\nRUN: " + hold)
		r.begun(p)
		r.send("MAIL-killed")
		p.kill()
		if err := <-p.ended; err == nil {
			t.Error("it was not killed")
		}
		r.release()
		r.truthful()
	})
}

// The hooks cost a run and its tools little, also if the broker is frozen or down. Runs with and without the broker take
// turns, so that both see the same load of the machine.
func TestHeadless_TheHooksCostLittle(t *testing.T) {
	headless(t, func(r *run) {
		bare := newRun(r.t, r.vendor)
		bare.ctl("setup", r.vendor.name, "--remove")
		if r.vendor.bare != nil {
			r.vendor.bare(bare)
		}
		once := func(r *run) time.Duration { return r.wait(r.start("RUN: true")) }
		var runs, without []time.Duration
		for range 5 {
			runs, without = append(runs, once(r)), append(without, once(bare))
		}
		var calls, callsWithout []time.Duration
		for range 2 {
			calls, callsWithout = append(calls, r.calls()...), append(callsWithout, bare.calls()...)
		}
		c := r.vendor.result()
		c.run, c.runWithout, c.call, c.callWithout = median(runs), median(without), median(calls), median(callsWithout)
		r.t.Logf("a run takes %v, without the broker %v; a call of a tool %v, without it %v", c.run.Round(time.Millisecond),
			c.runWithout.Round(time.Millisecond), c.call.Round(time.Millisecond), c.callWithout.Round(time.Millisecond))
		if more := c.run - c.runWithout; more > costly+c.runWithout {
			r.t.Errorf("a run without a screen takes %v more, want at most 0.3 s on an idle machine", more)
		}
		if more := c.call - c.callWithout; more > costly {
			r.t.Errorf("a call of a tool takes %v more", more)
		}
		if err := r.daemon.Signal(syscall.SIGSTOP); err != nil {
			r.t.Fatal(err)
		}
		still := once(r)
		if err := r.daemon.Signal(syscall.SIGCONT); err != nil {
			r.t.Fatal(err)
		}
		r.daemon.Kill()
		r.t.Logf("a run with a broker that is frozen takes %v, that is down: %v", still.Round(time.Millisecond), once(r).Round(time.Millisecond))
		if still > c.run+slowest {
			r.t.Errorf("a frozen broker costs %v", still-c.run)
		}
	})
}

// calls runs the program once with half of the measured calls of a tool, and returns the times between them.
func (r *run) calls() []time.Duration {
	r.t.Helper()
	var script strings.Builder
	for i := range measured/2 + 1 {
		fmt.Fprintf(&script, "RUN: true %d ;; ", i) // equal ones look like a loop to Gemini CLI
	}
	before := len(r.model.Requests())
	r.wait(r.start(script.String()))
	gaps := r.gaps(before)
	if len(gaps) < measured/2 {
		r.t.Fatalf("%d calls of tools, want %d", len(gaps), measured/2)
	}
	return gaps
}

const (
	measured = 50              // calls of tools of which the test takes the median
	costly   = 3 * time.Second // more than that, and for a run its own time again, is wrong on a loaded machine too
)

// gaps returns the times between the requests of one run to the model that calls tools.
func (r *run) gaps(before int) (gaps []time.Duration) {
	var last time.Time
	for _, q := range r.model.Requests()[before:] {
		if !q.Has("RUN: true") || !slices.ContainsFunc(q.Parts, func(p fakemodel.Part) bool { return p.Kind == fakemodel.Call }) {
			continue
		}
		if !last.IsZero() {
			gaps = append(gaps, q.At.Sub(last))
		}
		last = q.At
	}
	return gaps
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}
