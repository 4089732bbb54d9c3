package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/harness"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/registration"
	"brokerd/cmd/brokerctl/internal/setting"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// A member is the agent as which an MCP server takes part: its name and its registration. It may be called
// concurrently.
type member struct {
	c       *command.Caller
	wanted  *pb.RegisterAgentRequest
	log     io.Writer
	folder  string         // the working folder
	offered []string       // the names in the folder's file, if it has several
	file    setting.Config // of the folder

	turn  sync.Mutex     // guards agent; locked before mu
	agent *client.Member // nil: the next call of a tool starts it

	mu      sync.Mutex     // guards the fields below
	base    *client.Client // the connection; nil until the first one
	first   string         // the name that it asks for
	name    string         // empty until it is chosen
	session string         // of the coding agent; empty = it is not told
	notes   []string       // for the next result
	said    string         // the last error in the log

	fresh atomic.Bool // the broker did not know the agent before, and no tool was called
}

func newMember(c *command.Caller, wanted *pb.RegisterAgentRequest, log io.Writer) (*member, error) {
	s, err := c.Settings()
	if err != nil {
		return nil, err
	}
	if s.Refused != nil {
		return nil, s.Refused
	}
	_, file, err := c.FolderConfig()
	if err != nil {
		return nil, err
	}
	c.Found.Unchosen = nil // the member chooses among them
	folder, err := c.Env.WorkingDir()
	if err != nil {
		return nil, fmt.Errorf("find the working folder: %w", err)
	}
	if wanted.Worktree == "" {
		wanted.Worktree = folder
	}
	m := &member{c: c, wanted: wanted, log: log, folder: folder, offered: s.Unchosen, file: file, session: c.HookSession()}
	// Codex runs many sessions in one process, and tells a server its session with each call: before the first one the
	// server cannot know its name.
	if above := c.Ancestors(); len(above) == 0 || above[0].Name != "codex" {
		m.start()
	}
	return m, nil
}

// An outError says why the agent takes no part until a call of a tool changes that.
type outError string

func (e outError) Error() string { return string(e) }

const (
	errNotCalled = outError("the coding agent has called no tool yet")
	errLeft      = outError(`you have left; team {"action":"join"} registers you again`)
)

// start makes the server an agent. The caller holds turn.
func (m *member) start() {
	m.agent = client.JoinLater(m.prepare, client.JoinOptions{
		OnRegistered: m.registered, OnHeartbeat: m.beaten, OnError: m.failed,
	})
}

func (m *member) current() *client.Member {
	m.turn.Lock()
	defer m.turn.Unlock()
	return m.agent
}

// do makes calls as the registered agent. The first one that reaches the broker chooses the name and registers the
// agent. If another process has registered it, the agent takes part no longer.
func (m *member) do(ctx context.Context, call func(*client.Client) error) error {
	agent := m.current()
	if agent == nil {
		return errNotCalled
	}
	err := agent.Do(ctx, call)
	var taken *client.TakenOverError
	switch {
	case errors.Is(err, client.ErrMemberClosed):
		if m.current() != agent { // the server has another name now
			return m.do(ctx, call)
		}
		return errLeft
	case errors.As(err, &taken):
		return outError(fmt.Sprintf(`another process has registered as %s %s and acts as this agent; stop working as it, `+
			`or take it back: team {"action":"join"}`, taken.Agent, m.c.When(timestamppb.New(taken.At))))
	case errors.Is(err, client.ErrAgentLost): // its parent had registered it
		refusal, _ := problem.Status(err)
		return refusal.Err()
	}
	return err
}

// prepare connects, chooses the name and describes the agent, before each registration.
func (m *member) prepare(ctx context.Context) (*client.Client, *pb.RegisterAgentRequest, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.base == nil {
		base, err := m.c.Connect(ctx, client.WithPatience(0)) // Invoke repeats calls
		if err != nil {
			return nil, nil, err
		}
		m.base = base
	}
	if m.base.Identity().Incarnation != 0 { // its parent, such as agent run, has registered it
		return m.base, nil, nil
	}
	if m.name == "" {
		if err := m.chooseName(ctx); err != nil {
			return nil, nil, err
		}
	}
	broker, request := m.base.As(m.name), proto.CloneOf(m.wanted)
	_, err := broker.Agents().GetAgent(ctx, &pb.GetAgentRequest{Name: m.name})
	fresh := status.Code(err) == codes.NotFound
	if err != nil && !fresh {
		return nil, nil, err
	}
	m.fresh.Store(fresh)
	session := m.session
	if all := m.c.Sessions(); all != nil && session == "" {
		one, _ := all.In(m.c.Ancestors()) // that of its hooks, if they were first
		session = one.ID
	}
	request.Harness = prompt.Clip(prompt.OneLine(session), 128)
	setting.AsDescribed(request, m.file.Agents[cmp.Or(m.c.Found.BaseOf(), m.name)])
	return broker, request, nil
}

func (m *member) registered(answer *pb.RegisterAgentResponse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name, role := answer.GetAgent().GetName(), answer.GetAgent().GetRole()
	m.note("You are the agent %s%s in the session %s.", name, prompt.Either(role != "", " ("+role+")", ""),
		cmp.Or(m.base.Identity().Session, "default"))
	m.noteLosses(answer)
}

func (m *member) beaten(answer *pb.HeartbeatResponse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.said = ""
	m.noteLosses(answer)
}

func (m *member) failed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, text := m.c.Explain(err); text != m.said {
		fmt.Fprintf(m.log, "brokerctl: %s\n", prompt.OneLine(text))
		m.said = text
	}
}

// note keeps a line for the next result. The caller holds mu.
func (m *member) note(format string, args ...any) {
	m.notes = append(m.notes, prompt.OneLine(fmt.Sprintf(format, args...))+"\n")
}

func (m *member) noteLosses(from prompt.Loser) {
	var text strings.Builder
	prompt.Losses(prompt.NewWriter(&text, prompt.NewMark, "losses"), from)
	if text.Len() > 0 {
		m.notes = append(m.notes, text.String())
	}
}

// news returns the lines for the next result.
func (m *member) news() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fresh.Store(false)
	text := strings.Join(m.notes, "")
	m.notes = nil
	return text
}

// leave ends the part of the agent, which has deregistered.
func (m *member) leave() {
	if agent := m.current(); agent != nil {
		agent.Abandon()
	}
}

// rejoin makes the next call of a tool register the agent again if it takes part no longer.
func (m *member) rejoin() {
	m.turn.Lock()
	defer m.turn.Unlock()
	if m.agent != nil && m.agent.Err() != nil {
		m.agent = nil
	}
}

// close reports that the agent has stopped, unless a parent process keeps its registration. It ends the
// registration if deregister is set, and that of a new agent without mail whose client has called no tool, such
// as a client that only lists its servers.
func (m *member) close(deregister bool) {
	m.turn.Lock()
	defer m.turn.Unlock()
	m.depart(context.Background(), deregister)
}

// departing bounds what a member still tells the broker when it leaves.
const departing = 5 * time.Second

// depart does what close says. The caller holds turn.
func (m *member) depart(ctx context.Context, deregister bool) {
	if m.agent == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, departing)
	defer cancel()
	if m.fresh.Load() { // the answer to its registration may still be missing: Do waits for it
		_ = m.agent.Do(ctx, func(broker *client.Client) error { // without an answer the agent stays
			inbox, err := broker.Messages().GetInboxSummary(ctx, &pb.GetInboxSummaryRequest{})
			deregister = deregister || err == nil && inbox.GetTotal() == 0
			return err
		})
	}
	end := m.agent.Close
	if deregister {
		end = func(ctx context.Context) error { return m.agent.Deregister(ctx, "its MCP server has ended") }
	}
	if err := end(ctx); err != nil {
		fmt.Fprintf(m.log, "brokerctl: the broker was not told that the server has ended, "+
			"and the agent's lease ends by itself: %s\n", prompt.OneLine(status.Convert(err).Message()))
	}
}

// chooseName takes the name of the session of the coding agent, or the first free one. The caller holds mu.
//
// A name that comes from the folder is also taken if an agent of another folder has registered it.
func (m *member) chooseName(ctx context.Context) error {
	s := m.c.Found
	given := s.BaseOf()
	names := append(slices.Clone(m.offered), setting.Numbered(cmp.Or(given, registration.AgentName(m.folder)))...)
	first := names[0]
	m.first = first
	if s.CredentialFile.Value != "" && given != "" {
		m.name = given // a credential is for one agent
		return nil
	}
	wanted := harness.Session{ID: m.session, Broker: m.c.BrokerOf(s), Base: first}
	if above := m.c.Ancestors(); len(above) > 0 {
		wanted.Process = above[0].Process
	}
	switch all := m.c.Sessions(); {
	case all == nil:
		m.name = first
		return nil
	case wanted.ID == "":
		wanted.Server = harness.At(os.Getpid())
	default:
		if one, known := all.Of(wanted.ID); known { // its hooks say more of it
			wanted.Program, wanted.Lock, wanted.Process = one.Program, one.Lock, one.Process
		}
	}
	one, err := m.c.Sessions().Take(wanted, names, func(name string) (bool, error) {
		if given != "" || slices.Contains(m.offered, name) {
			return false, nil
		}
		return registration.TakenElsewhere(ctx, m.base, name, m.folder)
	})
	switch {
	case errors.Is(err, harness.ErrTaken):
		return problem.Usagef("the names %s to %s are all in use on this machine; choose another with --agent", first, names[len(names)-1])
	case err != nil && status.Code(err) != codes.Unknown: // of the broker
		return err
	case err != nil:
		fmt.Fprintf(m.log, "brokerctl: another session may take the name %s too: %v\n", first, err)
		one.Name = first
	}
	if one.Name != first {
		m.note("Another coding agent on this machine has the name %s.", first)
	}
	m.name = one.Name
	return nil
}

// follow makes the server that of a session of the coding agent: the one that a call names, or the one that its program
// runs now. Hooks may have given the session a name since, such as the one that it had before it was resumed: then the
// server acts under that from now on.
func (m *member) follow(ctx context.Context, session string) {
	m.turn.Lock()
	defer m.turn.Unlock()
	if m.renamed(session) {
		m.depart(ctx, false)
		m.agent = nil
		m.mu.Lock()
		m.name = ""
		m.mu.Unlock()
	}
	if m.agent == nil {
		m.start()
	}
}

// renamed notes the session that a call names, and reports whether the session has another name than the server.
func (m *member) renamed(session string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.c.Sessions()
	if all == nil {
		return false
	}
	one, known := all.Of(session)
	if session == "" {
		one, known = all.In(m.c.Ancestors())
	} else {
		m.session = session
	}
	// A server that was given another name than the hooks, or a credential, is an agent of its own.
	own := m.c.Found.CredentialFile.Value != "" || one.Base != m.first || one.Broker != m.c.BrokerOf(m.c.Found)
	return known && !own && one.ID != "" && m.name != "" && one.Name != m.name
}
