package registration

import (
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/setting"
	pb "brokerd/gen/brokerd/v1"
)

// ShellLease is how long an agent that only has a shell is believed alive: it forgets nothing by thinking.
const ShellLease = 24 * time.Hour

// Options are the options of agent register.
type Options struct {
	displayName  string
	description  string
	role         string
	capabilities []string
	instance     string
	worktree     string
	Labels       []string
	lease        time.Duration
	replace      bool
	RequestID    string
}

// AddFlags adds the options; lease is what it is unless it is given.
func (o *Options) AddFlags(f *pflag.FlagSet, lease time.Duration) {
	f.StringVar(&o.displayName, "display-name", "", "name for people")
	f.StringVar(&o.description, "description", "", "what the agent is for")
	f.StringVar(&o.role, "role", "", "role, such as builder (default: the one in .brokerd.yaml)")
	f.StringArrayVar(&o.capabilities, "capability", nil, "a capability; repeatable")
	f.StringVar(&o.instance, "instance", "", "instance of the role")
	f.StringVar(&o.worktree, "worktree", "", "the agent's working folder")
	f.StringArrayVar(&o.Labels, "label", nil, "a label; repeatable")
	command.DurationVar(f, &o.lease, "lease", lease, "how long the agent may be silent before the broker considers it failed, 1s to 7d")
	f.BoolVar(&o.replace, "replace", false, "forget what an earlier registration says, such as its capabilities and labels")
}

// RequestOf is request for an agent that the configFile may describe.
func (o *Options) RequestOf(c *command.Caller, agent string, labels map[string]string) *pb.RegisterAgentRequest {
	request := o.Request(labels)
	if agent == c.Found.Agent.Value {
		agent = c.Found.BaseOf()
	}
	setting.AsDescribed(request, c.Found.Content.Agents[agent])
	return request
}

// Request is the registration that the options describe.
func (o *Options) Request(labels map[string]string) *pb.RegisterAgentRequest {
	return &pb.RegisterAgentRequest{
		RequestId: o.RequestID, DisplayName: o.displayName, Description: o.description, Role: o.role,
		Capabilities: o.capabilities, Instance: o.instance, Worktree: o.worktree, Labels: labels, Lease: durationpb.New(o.lease),
		Replace: o.replace,
	}
}
