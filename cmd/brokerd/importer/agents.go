package importer

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// lease is how long an agent that the import registers has time to connect.
const lease = 24 * time.Hour

// Labels of an agent that an import has registered.
const (
	viaLabel         = "via"
	viaImport        = "import"
	incarnationLabel = "imported_incarnation" // the agent has not registered itself as long as it is its incarnation
)

// name is the form of the names of agents, channels and types.
var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// wrongName says that a column is no name.
func wrongName(r row, columns ...string) outcome {
	for _, c := range columns {
		if text := r.text(c); !name.MatchString(text) {
			return skip("%s %q is no name: 1 to 128 letters, digits, '.', '_', ':' or '-', "+
				"beginning with a letter or digit", c, clip(text, 128))
		}
	}
	return outcome{}
}

func localAgent(r row) outcome { return wrongName(r, "agent_id") }

// sendAgent registers an agent of agent_status. The status describes a program that is not connected to the broker.
// It becomes a label and not the status of the agent: a status FAILED would be an alarm about nothing.
func (m *run) sendAgent(ctx context.Context, r row, _ key, _ attempt) (outcome, error) {
	agent := r.text("agent_id")
	labels := map[string]string{}
	for _, column := range []string{"status", "last_heartbeat"} {
		if text := line(r.text(column), 256); text != "" {
			labels["original_"+column] = text
		}
	}
	added, err := m.roster.ensure(ctx, agent, labels)
	if err == nil && !added {
		return outcome{as: alreadyThere}, nil
	}
	if task := line(r.text("current_task"), 512); err == nil && task != "" {
		_, err = m.broker.As(agent).Agents().Heartbeat(ctx, &pb.HeartbeatRequest{Activity: proto.String(task)})
	}
	return refused(outcome{as: imported}, err)
}

func localSubscription(r row) outcome { return wrongName(r, "agent_id", "channel_name") }

// sendSubscription subscribes an agent to a channel.
func (m *run) sendSubscription(ctx context.Context, r row, _ key, _ attempt) (outcome, error) {
	agent := r.text("agent_id")
	if _, err := m.roster.ensure(ctx, agent, nil); err != nil {
		return refused(outcome{}, err)
	}
	out, err := m.broker.As(agent).Channels().SubscribeChannel(ctx,
		&pb.SubscribeChannelRequest{RequestId: uuid.NewString(), Channel: r.text("channel_name")})
	if err == nil && !out.GetChanged() {
		return outcome{as: alreadyThere}, nil
	}
	return refused(outcome{as: imported}, err)
}

// A roster registers the agents that the rows name.
type roster struct {
	broker *client.Client
	known  map[string]bool // registered agents; the session has at most 10,000
}

// ensure registers an agent unless one of that name is registered.
func (r *roster) ensure(ctx context.Context, agent string, labels map[string]string) (added bool, err error) {
	if r.known[agent] {
		return false, nil
	}
	found, err := r.find(ctx, agent)
	if err == nil && found == nil {
		added = true
		_, err = r.register(ctx, agent, 1, labels)
	}
	if err == nil {
		r.known[agent] = true
	}
	return added, err
}

// find returns a registered agent; nil if there is none.
func (r *roster) find(ctx context.Context, agent string) (*pb.Agent, error) {
	out, err := r.broker.Agents().GetAgent(ctx, &pb.GetAgentRequest{Name: agent})
	if status.Code(err) == codes.NotFound && client.Reason(err) == "AGENT_NOT_FOUND" {
		return nil, nil
	}
	return out.GetAgent(), err
}

// register registers an agent, and notes in its labels which incarnation that is. next is the one that it probably
// is: an agent that deregistered earlier continues to count.
func (r *roster) register(ctx context.Context, agent string, next int64, more map[string]string) (int64, error) {
	for {
		labels := map[string]string{viaLabel: viaImport, incarnationLabel: strconv.FormatInt(next, 10)}
		for label, value := range more {
			labels[label] = value
		}
		out, err := r.broker.As(agent).Agents().RegisterAgent(ctx,
			&pb.RegisterAgentRequest{RequestId: uuid.NewString(), Lease: durationpb.New(lease), Labels: labels})
		if err != nil {
			return 0, err
		}
		if out.GetAgent().GetIncarnation() == next {
			return next, nil
		}
		next = out.GetAgent().GetIncarnation() + 1
	}
}

// hold returns a new incarnation of an agent that no client but an import has registered. It also closes the circuit
// breaker of the agent. The incarnation is 0 for an agent that another client has registered.
func (r *roster) hold(ctx context.Context, agent string) (int64, error) {
	found, err := r.find(ctx, agent)
	if err != nil {
		return 0, err
	}
	labels := found.GetLabels()
	if labels[viaLabel] != viaImport || labels[incarnationLabel] != strconv.FormatInt(found.GetIncarnation(), 10) {
		return 0, nil
	}
	return r.register(ctx, agent, found.GetIncarnation()+1, nil)
}

// refused returns the outcome of a call: done, a skipped row if the broker refuses this row, or the error.
func refused(done outcome, err error) (outcome, error) {
	if err == nil {
		return done, nil
	}
	switch client.Reason(err) {
	case "NOT_A_DIRECTOR", "MESSAGE_TOO_LARGE", "FANOUT_TOO_LARGE", "TOO_MANY_AGENTS", "TOO_MANY_SUBSCRIPTIONS",
		"MAILBOX_FULL":
		return skip("%s", problem(err)), nil
	}
	if status.Code(err) == codes.InvalidArgument {
		return skip("%s", problem(err)), nil
	}
	return outcome{}, err
}

// problem returns the broker's text of an error.
func problem(err error) string {
	if fields := client.Fields(err); len(fields) > 0 {
		return fmt.Sprintf("%s %s", fields[0].Name, fields[0].Description)
	}
	return status.Convert(err).Message()
}
