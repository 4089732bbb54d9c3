package main

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
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"brokerd/client"
	"brokerd/cmd/brokerctl/harness"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// A member is the agent as which an MCP server takes part: its name, its registration, and its
// heartbeats. It may be called concurrently.
type member struct {
	c       *cli
	wanted  *pb.RegisterAgentRequest
	log     io.Writer
	folder  string   // the working folder
	offered []string // the names in the folder's file, if it has several
	file    config   // of the folder

	mu     sync.Mutex
	base   *client.Client // the connection; nil until the first one. guarded by mu
	broker *client.Client // as the registered agent; nil until then. guarded by mu
	name   string         // guarded by mu

	session string // of the coding agent; empty = it is not told. guarded by mu

	// Codex runs many sessions in one process, and tells a server its session with each call: before the first one the
	// server cannot know its name.
	called   chan struct{} // closed with the first call
	lateName bool          // there must be a call first; guarded by mu
	out      error         // why it takes part no longer; guarded by mu
	notes    []string      // for the next result; guarded by mu

	registered time.Time // when the broker took its registration, which tells it from one of another process. guarded by mu

	fresh bool // the broker did not know the agent before, and no tool was called; guarded by mu
}

func newMember(c *cli, wanted *pb.RegisterAgentRequest, log io.Writer) (*member, error) {
	s, err := c.settings()
	if err != nil {
		return nil, err
	}
	if s.refused != nil {
		return nil, s.refused
	}
	_, file, err := c.folderConfig()
	if err != nil {
		return nil, err
	}
	c.found.unchosen = nil // the member chooses among them
	folder, err := c.env.dir()
	if err != nil {
		return nil, fmt.Errorf("find the working folder: %w", err)
	}
	if wanted.Worktree == "" {
		wanted.Worktree = folder
	}
	above := c.ancestors()
	return &member{
		c: c, wanted: wanted, log: log, folder: folder, offered: s.unchosen, file: file, session: c.hookSession(),
		called: make(chan struct{}), lateName: len(above) > 0 && above[0].Name == "codex",
	}, nil
}

// errNotCalled is why an agent does not take part yet.
var errNotCalled = errors.New("the coding agent has called no tool yet")

// errLeft is why an agent that has left takes part no longer.
var errLeft = errors.New(`you have left; team {"action":"join"} registers you again`)

// join returns the connection as the registered agent. The first call that reaches the broker
// chooses the name and registers the agent.
func (m *member) join(ctx context.Context) (*client.Client, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broker != nil || m.out != nil {
		return m.broker, m.out
	}
	if m.lateName {
		return nil, errNotCalled
	}
	if m.base == nil {
		base, err := m.c.connect(ctx)
		if err != nil {
			return nil, err
		}
		m.base = base
	}
	if m.base.Identity().Incarnation != 0 { // its parent, such as agent run, has registered it
		m.broker, m.name = m.base, m.base.Identity().Agent
		return m.broker, nil
	}
	if m.name == "" {
		if err := m.chooseName(ctx); err != nil {
			return nil, err
		}
	}
	if err := m.register(ctx); err != nil {
		return nil, err
	}
	return m.broker, nil
}

// register registers the agent. The caller holds mu.
func (m *member) register(ctx context.Context) error {
	broker := m.base.As(m.name)
	request := proto.CloneOf(m.wanted)
	_, err := broker.Agents().GetAgent(ctx, &pb.GetAgentRequest{Name: m.name})
	if m.fresh = status.Code(err) == codes.NotFound; err != nil && !m.fresh {
		return err
	}
	request.Harness = clip(oneLine(m.session), 128)
	asDescribed(request, m.file.agents[cmp.Or(m.c.found.baseOf(), m.name)])
	answer, err := broker.Agents().RegisterAgent(ctx, request)
	if err != nil {
		return err
	}
	m.broker, m.registered = broker.AtIncarnation(answer.GetAgent().GetIncarnation()), answer.GetAgent().GetRegisteredAt().AsTime()
	session := cmp.Or(m.base.Identity().Session, "default")
	role := answer.GetAgent().GetRole()
	m.note("You are the agent %s%s in the session %s.", m.name, cond(role != "", " ("+role+")", ""), session)
	m.noteLosses(answer)
	return nil
}

// note keeps a line for the next result. The caller holds mu.
func (m *member) note(format string, args ...any) {
	m.notes = append(m.notes, oneLine(fmt.Sprintf(format, args...))+"\n")
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
	m.fresh = false
	text := strings.Join(m.notes, "")
	m.notes = nil
	return text
}

// lost reports whether a call failed because the registration has ended and join can renew it. If
// another process has registered the agent, the member takes part no longer. used is the client of
// the call: a concurrent call may have renewed the registration already.
func (m *member) lost(ctx context.Context, used *client.Client, err error) bool {
	why := client.Reason(err)
	if why != "STALE_INCARNATION" && why != "AGENT_NOT_REGISTERED" {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.base == nil || m.out != nil || m.base.Identity().Incarnation != 0 {
		return false
	}
	if m.broker != used {
		return true
	}
	known, err := m.base.As(m.name).Agents().GetAgent(ctx, &pb.GetAgentRequest{Name: m.name})
	if err != nil && status.Code(err) != codes.NotFound {
		return false
	}
	if a := known.GetAgent(); a != nil && !a.GetRegisteredAt().AsTime().Equal(m.registered) {
		m.out = fmt.Errorf(`another process has registered as %s %s and acts as this agent; stop working as it, `+
			`or take it back: team {"action":"join"}`, m.name, m.c.when(a.GetRegisteredAt()))
	}
	m.broker = nil
	return m.out == nil
}

// leave ends the part of the agent, which has deregistered.
func (m *member) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broker, m.out = nil, errLeft
}

// rejoin makes the next join register the agent again.
func (m *member) rejoin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.out = nil
}

// beat joins when there is a broker, and sends heartbeats until ctx ends.
func (m *member) beat(ctx context.Context) {
	const soonest, latest = 500 * time.Millisecond, 10 * time.Second
	retry, said := soonest, ""
	m.mu.Lock()
	late := m.lateName
	m.mu.Unlock()
	if late {
		select {
		case <-m.called:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		pause := m.wanted.GetLease().AsDuration() / 3
		used, err := m.heartbeat(ctx)
		switch {
		case err == nil:
			retry, said = soonest, ""
		case used != nil && m.lost(ctx, used, err):
			pause = 0
		case errors.Is(err, m.reason()):
		default:
			if _, text := m.c.explain(err); text != said && ctx.Err() == nil {
				fmt.Fprintf(m.log, "brokerctl: %s\n", oneLine(text))
				said = text
			}
			pause, retry = retry, min(2*retry, latest)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// heartbeat returns the client that it has used; nil if there is none.
func (m *member) heartbeat(ctx context.Context) (*client.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	broker, err := m.join(ctx)
	if err != nil {
		return nil, err
	}
	answer, err := broker.Agents().Heartbeat(ctx, &pb.HeartbeatRequest{})
	if err != nil {
		return broker, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noteLosses(answer)
	return broker, nil
}

// reason is why the agent takes part no longer; nil if it does.
func (m *member) reason() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.out
}

// close reports that the agent has stopped, unless a parent process keeps its registration. It ends the
// registration if deregister is set, and that of a new agent without mail whose client has called no tool, such
// as a client that only lists its servers.
func (m *member) close(deregister bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), reportWait)
	defer cancel()
	m.depart(ctx, deregister)
}

// depart does what close says. The caller holds mu.
func (m *member) depart(ctx context.Context, deregister bool) {
	if m.fresh && m.broker != nil {
		inbox, err := m.broker.Messages().GetInboxSummary(ctx, &pb.GetInboxSummaryRequest{})
		deregister = deregister || err == nil && inbox.GetTotal() == 0
	}
	var err error
	switch {
	case m.broker == nil:
	case deregister:
		_, err = m.broker.Agents().DeregisterAgent(ctx, &pb.DeregisterAgentRequest{Reason: "its MCP server has ended"})
	case !m.registered.IsZero():
		_, err = m.broker.Agents().Heartbeat(ctx, &pb.HeartbeatRequest{Status: pb.AgentStatus_AGENT_STATUS_STOPPED})
	}
	if reason := client.Reason(err); err != nil && reason != "STALE_INCARNATION" && reason != "AGENT_NOT_REGISTERED" {
		fmt.Fprintf(m.log, "brokerctl: the broker was not told that the server has ended, and the agent's lease ends by itself: %s\n",
			oneLine(status.Convert(err).Message()))
	}
}

// chooseName takes the name of the session of the coding agent, or the first free one. The caller holds mu.
//
// A name that comes from the folder is also taken if an agent of another folder has registered it.
func (m *member) chooseName(ctx context.Context) error {
	s := m.c.found
	given := s.baseOf()
	names := append(slices.Clone(m.offered), numbered(cmp.Or(given, agentName(m.folder)))...)
	first := names[0]
	if s.credentialFile.value != "" && given != "" {
		m.name = given // a credential is for one agent
		return nil
	}
	wanted := harness.Session{ID: m.session, Broker: m.c.brokerOf(s), Base: first}
	if above := m.c.ancestors(); len(above) > 0 {
		wanted.Process = above[0].Process
	}
	switch all := m.c.sessions(); {
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
	one, err := m.c.sessions().Take(wanted, names, func(name string) (bool, error) {
		if given != "" || slices.Contains(m.offered, name) {
			return false, nil
		}
		return takenElsewhere(ctx, m.base, name, m.folder)
	})
	switch {
	case errors.Is(err, harness.ErrTaken):
		return usagef("the names %s to %s are all in use on this machine; choose another with --agent", first, names[len(names)-1])
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

// follow makes the server that of a session of the coding agent: the one that a call names, or the one that its program runs
// now. Hooks may have given the session a name since, such as the one that it had before it was resumed: then the server
// acts under that from now on.
func (m *member) follow(ctx context.Context, session string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lateName {
		m.lateName = false
		close(m.called)
	}
	all := m.c.sessions()
	if all == nil {
		return
	}
	one, known := all.Of(session)
	if session == "" {
		one, known = all.In(m.c.ancestors())
	} else {
		m.session = session
	}
	if !known || one.ID == "" || one.Name == m.name || m.name == "" || one.Broker != m.c.brokerOf(m.c.found) || m.registered.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reportWait)
	defer cancel()
	m.depart(ctx, false)
	m.name, m.broker, m.out, m.fresh = "", nil, nil, false
}
