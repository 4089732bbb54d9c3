package broker_test

import (
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
)

// A change is applied to a message that is to be sent.
type change func(*pb.Message)

func message(t *pb.Target, changes []change) *pb.Message {
	m := &pb.Message{Target: t}
	for _, c := range changes {
		c(m)
	}
	return m
}

func to(agent string, c ...change) *pb.Message {
	return message(&pb.Target{To: &pb.Target_Agent{Agent: agent}}, c)
}

func toRole(role string, c ...change) *pb.Message {
	return message(&pb.Target{To: &pb.Target_Role{Role: role}}, c)
}

func toChannel(channel string, c ...change) *pb.Message {
	return message(&pb.Target{To: &pb.Target_Channel{Channel: channel}}, c)
}

func toPattern(pattern string, c ...change) *pb.Message {
	return message(&pb.Target{To: &pb.Target_Pattern{Pattern: pattern}}, c)
}

func toEveryone(c ...change) *pb.Message {
	return message(&pb.Target{To: &pb.Target_Everyone{Everyone: true}}, c)
}

func all(m *pb.Message) { m.Reach = pb.Reach_REACH_ALL }
func one(m *pb.Message) { m.Reach = pb.Reach_REACH_ONE }

func subject(s string) change { return func(m *pb.Message) { m.Subject = s } }
func kind(s string) change    { return func(m *pb.Message) { m.Type = s } }
func key(s string) change     { return func(m *pb.Message) { m.OrderingKey = s } }

func priority(p int32) change { return func(m *pb.Message) { m.Priority = p } }
func attempts(n int32) change { return func(m *pb.Message) { m.MaxAttempts = n } }

func ttl(d time.Duration) change {
	return func(m *pb.Message) { m.Ttl = durationpb.New(d) }
}

// due is not before a time.
func due(at *timestamppb.Timestamp) change { return func(m *pb.Message) { m.NotBefore = at } }

// rev is a revision as a reference.
func rev(r *pb.SendResult) string { return strconv.FormatInt(r.Revision, 10) }

// question requires a response.
func question(m *pb.Message) { m.RequiresResponse = true }

// deadline requires a response until a time.
func deadline(at *timestamppb.Timestamp) change {
	return func(m *pb.Message) { m.RequiresResponse, m.ResponseDeadline = true, at }
}

func resendAfter(d time.Duration) change {
	return func(m *pb.Message) { m.ResendAfter = durationpb.New(d) }
}

// answers is a reply by an ordinary send.
func answers(id string) change { return func(m *pb.Message) { m.InReplyTo = id } }
