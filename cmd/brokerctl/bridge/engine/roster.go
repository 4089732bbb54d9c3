package engine

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge/mailfile"
	pb "brokerd/gen/brokerd/v1"
)

// Labels of an agent that has joined through a bridge.
const (
	ViaLabel    = "via"
	viaBridge   = "bridge"
	folderLabel = "bridge" // the id of the folder
)

// lease is how long an agent remains registered without a bridge.
const lease = 24 * time.Hour

// AgentName is the form of an agent's name.
var AgentName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// OperatorsName is the sender of the messages of operators, and of the broker.
const OperatorsName = "system"

// meansOperators reports whether mail to a name goes to the operators. The bridge registers no agent of such a name.
func meansOperators(name string) bool { return name == OperatorsName || name == "operator" }

// A Roster registers the agents of the folder. It never registers an agent that another client has
// registered. It is safe for concurrent use.
type Roster struct {
	broker *client.Client
	id     string // of the folder
	roles  []Role
	rescan time.Duration
	log    func(line string)

	mu    sync.Mutex           // guards the fields below; held during calls, so that an agent is registered once
	known map[string]*pb.Agent // the registry at the last refresh, and later registrations
	mine  map[string]*pb.Agent // registrations by this run, or by other clients since
	read  time.Time            // when the last refresh was

	profiles map[string]Profile // of the folder
	written  map[string]string  // roles that the bridge has written into registry.json and not read yet
}

func newRoster(o Options, id string) *Roster {
	return &Roster{broker: o.Client.As(""), id: id, roles: o.Roles, rescan: o.Rescan, log: o.Log,
		known: map[string]*pb.Agent{}, mine: map[string]*pb.Agent{}, written: map[string]string{}}
}

// refresh reads the registry, at most once a second: many changes of the folder can come at once.
func (r *Roster) refresh(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.read) < min(time.Second, r.rescan) {
		return nil
	}
	known := map[string]*pb.Agent{}
	for token := ""; ; {
		page, err := r.broker.Agents().ListAgents(ctx, &pb.ListAgentsRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			return fmt.Errorf("list the agents: %w", err)
		}
		for _, a := range page.GetAgents() {
			known[a.GetName()] = a
		}
		if token = page.GetNextPageToken(); token == "" {
			r.known, r.read = known, time.Now()
			return nil
		}
	}
}

// Joined returns the agents that have joined through the folder, in this run or an earlier one.
func (r *Roster) Joined() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for name, a := range r.known {
		if r.Ours(a) {
			names = append(names, name)
		}
	}
	return names
}

// Owns reports whether an agent has joined through the folder.
func (r *Roster) Owns(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Ours(r.known[name])
}

// Describe sets the profiles of agents. An agent whose profile changes is registered again.
func (r *Roster) Describe(profiles map[string]Profile) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.mine {
		before, now := r.profiles[name], profiles[name]
		if now.Role != "" && now.Role == r.written[name] {
			before.Role = now.Role
			delete(r.written, name)
		}
		if now.Role != before.Role || !slices.Equal(now.Capabilities, before.Capabilities) {
			delete(r.mine, name)
		}
	}
	r.profiles = profiles
}

// role returns the role of an agent of the folder.
func (r *Roster) role(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[name].GetRole()
}

// RoleToWrite returns the role that registry.json shall have instead of the one that it has; "" = it is right. The role
// of an agent without one, and of an agent of the folder for which another client has registered another role, is
// the registered one.
func (r *Roster) RoleToWrite(name, has string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	role := r.known[name].GetRole()
	if role == has || has != "" && (r.mine[name] == nil || has != r.profiles[name].Role) {
		return ""
	}
	r.written[name] = role
	return role
}

// All returns the registered agents.
func (r *Roster) All() []*pb.Agent {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.known))
}

// Ours reports whether an agent belongs to the folder.
func (r *Roster) Ours(a *pb.Agent) bool {
	return a.GetLabels()[ViaLabel] == viaBridge && a.GetLabels()[folderLabel] == r.id
}

// Join registers an agent of the folder unless this run has done so, and returns its incarnation.
// It returns 0 for an agent that another client has registered: only that client speaks for it,
// until it deregisters. A refusal says why the broker registers no agent of this name.
func (r *Roster) Join(ctx context.Context, name string) (int64, error) {
	switch {
	case !AgentName.MatchString(name):
		return 0, mailfile.Refusalf("%q cannot be the name of an agent: "+
			"1 to 128 letters, digits, '.', '_', ':' or '-', beginning with a letter or digit", name)
	case meansOperators(name):
		return 0, mailfile.Refusalf("%q means the operators of the session; an agent of the folder needs another name", name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.known[name]; a != nil && !r.free(a) {
		return 0, nil
	} else if a != nil && r.adopt(a) {
		return a.GetIncarnation(), nil
	}
	found, err := r.broker.Agents().GetAgent(ctx, &pb.GetAgentRequest{Name: name})
	if err != nil && status.Code(err) != codes.NotFound {
		return 0, Refused(err)
	}
	if err == nil {
		if r.known[name] = found.GetAgent(); !r.free(found.GetAgent()) {
			return 0, nil
		}
	}
	p := r.profiles[name]
	out, err := r.broker.As(name).Agents().RegisterAgent(ctx, &pb.RegisterAgentRequest{
		Role: r.roleToSet(name, found.GetAgent()), Capabilities: p.Capabilities, Lease: durationpb.New(lease),
		Labels: map[string]string{ViaLabel: viaBridge, folderLabel: r.id},
	})
	if err != nil {
		return 0, Refused(err)
	}
	r.known[name], r.mine[name] = out.GetAgent(), out.GetAgent()
	r.log(fmt.Sprintf("%s joined the session", name))
	return out.GetAgent().GetIncarnation(), nil
}

// free reports whether the bridge may register an agent that is registered: it has joined through
// this folder, or through another one whose bridge has not run for the time of the lease.
func (r *Roster) free(a *pb.Agent) bool {
	return r.Ours(a) || a.GetLabels()[ViaLabel] == viaBridge && a.GetHealth() == pb.Health_HEALTH_FAILED
}

// adopt reports whether the bridge need not register an agent of the folder: this run has done so. Another client
// may have registered the agent again since, for example an operator with another role. As long as it has the
// folder's labels, it remains an agent of the folder.
func (r *Roster) adopt(a *pb.Agent) bool {
	name, mine := a.GetName(), r.mine[a.GetName()]
	if mine == nil || mine.GetIncarnation() == a.GetIncarnation() {
		return mine != nil
	}
	same := a.GetRegisteredAt().AsTime().Equal(mine.GetRegisteredAt().AsTime()) // it has failed meanwhile
	if same || !r.Ours(a) || a.GetHealth() == pb.Health_HEALTH_FAILED {
		return false
	}
	r.mine[name] = a
	r.log(fmt.Sprintf("another client has registered %s, role %s: the bridge still delivers its mail to the folder, "+
		"unless it is registered with --replace", name, a.GetRole()))
	return true
}
