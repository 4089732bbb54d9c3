package sessions

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/msgtype"
	"brokerd/internal/page"
	"brokerd/internal/validate"
)

// Bounds of the settings.
const (
	leastMessage    = 1 << 10
	leastRate       = 0.001 // a second; slower ones would make times that cannot be computed with
	mostRate        = 1_000_000
	mostFailures    = 1000
	mostNames       = 100
	mostKept        = 3650 * 24 * time.Hour
	leastAgeing     = time.Second
	mostAgeing      = 24 * time.Hour
	mostMailbox     = 10_000_000
	leastAttempts   = 1
	mostAttempts    = 100
	mostArtifacts   = 64 << 40
	mostStale       = 30 * 24 * time.Hour
	sessionListName = "ListSessions"
)

// Service is the SessionService of the API.
type Service struct {
	pb.UnimplementedSessionServiceServer
	registry *Registry
}

// NewService returns the service of a registry.
func NewService(r *Registry) *Service { return &Service{registry: r} }

// CreateSession implements pb.SessionServiceServer.
func (s *Service) CreateSession(ctx context.Context, in *pb.CreateSessionRequest) (*pb.CreateSessionResponse, error) {
	var c validate.Check
	c.NewName("name", in.GetName())
	change := changeOf(&c, in.GetSettings())
	change.Description = &in.Description
	c.Line("description", in.GetDescription(), validate.MaxLine)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "CreateSession", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	made, err := s.registry.Create(ctx, identity.FromContext(ctx), req, in.GetName(), change)
	if err != nil {
		return nil, err
	}
	return &pb.CreateSessionResponse{Session: sessionProto(made)}, nil
}

// GetSession implements pb.SessionServiceServer.
func (s *Service) GetSession(ctx context.Context, in *pb.GetSessionRequest) (*pb.GetSessionResponse, error) {
	who, name := identity.FromContext(ctx), in.GetName()
	if name == "" {
		name = who.Session
	}
	var c validate.Check
	c.Name("name", name)
	if err := c.Err(); err != nil {
		return nil, err
	}
	if own := onlyOwn(who); own != "" && own != name {
		return nil, fault.Missing("session", name, "there is no session %q", name)
	}
	found, revision, err := s.registry.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	return &pb.GetSessionResponse{Session: sessionProto(found), Revision: revision}, nil
}

// ListSessions implements pb.SessionServiceServer.
func (s *Service) ListSessions(ctx context.Context, in *pb.ListSessionsRequest) (*pb.ListSessionsResponse, error) {
	var c validate.Check
	size := c.PageSize("page_size", in.GetPageSize())
	if err := c.Err(); err != nil {
		return nil, err
	}
	var after string
	if err := page.Parse(sessionListName, in.GetPageToken(), &after); err != nil {
		return nil, err
	}
	found, err := s.registry.List(ctx, onlyOwn(identity.FromContext(ctx)), after, size)
	if err != nil {
		return nil, err
	}
	out := &pb.ListSessionsResponse{Revision: found.Revision}
	for _, session := range found.Sessions {
		out.Sessions = append(out.Sessions, sessionProto(session))
		after = session.Name
	}
	if found.More {
		out.NextPageToken = page.Token(sessionListName, after)
	}
	return out, nil
}

// ConfigureSession implements pb.SessionServiceServer.
func (s *Service) ConfigureSession(ctx context.Context, in *pb.ConfigureSessionRequest) (*pb.ConfigureSessionResponse, error) {
	var c validate.Check
	change := changeOf(&c, in.GetSettings())
	change.Description = in.Description
	c.Line("description", in.GetDescription(), validate.MaxLine)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "ConfigureSession", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	now, err := s.registry.Configure(ctx, identity.FromContext(ctx), req, change)
	if err != nil {
		return nil, err
	}
	return &pb.ConfigureSessionResponse{Session: sessionProto(now)}, nil
}

// CloseSession implements pb.SessionServiceServer.
func (s *Service) CloseSession(ctx context.Context, in *pb.CloseSessionRequest) (*pb.CloseSessionResponse, error) {
	var c validate.Check
	c.Name("name", in.GetName())
	c.Line("reason", in.GetReason(), validate.MaxLine)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "CloseSession", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	now, err := s.registry.Close(ctx, identity.FromContext(ctx), req, in.GetName(), in.GetReason())
	if err != nil {
		return nil, err
	}
	return &pb.CloseSessionResponse{Session: sessionProto(now)}, nil
}

// onlyOwn returns the one session that a caller sees, or "" for an operator, who sees all.
func onlyOwn(who identity.Caller) string {
	if who.Access == identity.Operator {
		return ""
	}
	return who.Session
}

func changeOf(c *validate.Check, in *pb.SessionSettings) Change {
	if in == nil {
		return Change{}
	}
	f := fields{c}
	return Change{
		Ageing:       f.duration("ageing", in.Ageing, leastAgeing, mostAgeing, true),
		MailboxLimit: f.large("mailbox_limit", in.MailboxLimit, 0, mostMailbox),
		MaxAttempts:  f.count("max_attempts", in.MaxAttempts, leastAttempts, mostAttempts),
		SendRate:     f.rate(in.SendRate),
		SendBurst:    f.count("send_burst", in.SendBurst, 1, mostRate),
		MessageLimit: f.count("message_limit", in.MessageLimit, leastMessage, directory.MostMessage),
		PayloadLimit: f.count("payload_limit", in.PayloadLimit, 1, directory.MostPayload),
		BreakerLimit: f.count("breaker_failures", in.BreakerFailures, 0, mostFailures),
		BreakerTime:  f.duration("breaker_time", in.BreakerTime, time.Second, 24*time.Hour, false),
		ResponseTime: f.duration("response_time", in.ResponseTime, time.Second, 365*24*time.Hour, false),
		EscalateTo:   f.names("escalate_to", in.EscalateTo),
		Directors:    f.names("directors", in.Directors),
		KeepMessages: f.duration("message_retention", in.MessageRetention, time.Second, mostKept, true),
		KeepEvents:   f.duration("event_retention", in.EventRetention, time.Second, mostKept, true),
		KeepDead:     f.duration("dead_letter_retention", in.DeadLetterRetention, time.Second, mostKept, true),
		FoldCase:     in.FoldCase,
		StaleAfter:   f.duration("stale_after", in.StaleAfter, time.Second, mostStale, true),
		BlockerTime:  f.duration("blocker_escalation", in.BlockerEscalation, time.Second, mostStale, true),
		UnknownTypes: f.policy("unknown_types", in.UnknownTypes),
		BadPayloads:  f.policy("invalid_payloads", in.InvalidPayloads),
		Artifact:     f.large("artifact_limit", in.ArtifactLimit, 1, directory.MostArtifact),
		Artifacts:    f.large("artifact_total_limit", in.ArtifactTotalLimit, 0, mostArtifacts),
	}
}

// fields checks settings; absent ones are nil.
type fields struct{ *validate.Check }

func (f fields) count(name string, in *int32, least, most int64) *int {
	if in == nil {
		return nil
	}
	f.Between("settings."+name, int64(*in), least, most)
	n := int(*in)
	return &n
}

func (f fields) large(name string, in *int64, least, most int64) *int64 {
	if in != nil {
		f.Between("settings."+name, *in, least, most)
	}
	return in
}

func (f fields) policy(name string, in pb.TypePolicy) *msgtype.Policy {
	if in == pb.TypePolicy_TYPE_POLICY_UNSPECIFIED {
		return nil
	}
	if _, ok := pb.TypePolicy_name[int32(in)]; !ok {
		f.Fail("settings."+name, "is %d; 1 (allow), 2 (warn) or 3 (refuse) is allowed", in)
		return nil
	}
	p := msgtype.Policy(in)
	return &p
}

func (f fields) rate(in *float64) *float64 {
	if in != nil && *in != 0 && !(*in >= leastRate && *in <= mostRate) { // so put, it refuses NaN too
		f.Fail("settings.send_rate", "is %v; 0 (no limit), or %v to %d is allowed", *in, leastRate, mostRate)
	}
	return in
}

// duration allows 0 as well if that turns the setting off.
func (f fields) duration(name string, in *durationpb.Duration, least, most time.Duration, off bool) *time.Duration {
	if in == nil {
		return nil
	}
	name = "settings." + name
	if !off {
		d := f.Duration(name, in, least, most, 0)
		return &d
	}
	d := f.Duration(name, in, 0, most, 0)
	if d > 0 && d < least {
		f.Fail(name, "is %s; 0, or %s to %s is allowed", validate.Short(d), validate.Short(least), validate.Short(most))
	}
	return &d
}

func (f fields) names(name string, in *pb.Names) *[]string {
	if in == nil {
		return nil
	}
	name = "settings." + name + ".names"
	if len(in.GetNames()) > mostNames {
		f.Fail(name, "has %d entries; at most %d are allowed", len(in.GetNames()), mostNames)
	}
	for i, n := range in.GetNames() {
		f.Name(fmt.Sprintf("%s[%d]", name, i), n)
	}
	names := slices.Clone(in.GetNames())
	return &names
}

func sessionProto(s Session) *pb.Session {
	set := s.Settings
	out := &pb.Session{
		Name:        s.Name,
		Description: s.Description,
		CreatedAt:   timestamppb.New(s.CreatedAt),
		Settings: &pb.SessionSettings{
			Ageing:              durationpb.New(set.Ageing),
			MailboxLimit:        &set.MailboxLimit,
			MaxAttempts:         proto.Int32(int32(set.MaxAttempts)),
			SendRate:            &set.SendRate,
			SendBurst:           proto.Int32(int32(set.SendBurst)),
			MessageLimit:        proto.Int32(int32(set.MessageLimit)),
			PayloadLimit:        proto.Int32(int32(set.PayloadLimit)),
			BreakerFailures:     proto.Int32(int32(set.BreakerLimit)),
			BreakerTime:         durationpb.New(set.BreakerTime),
			ResponseTime:        durationpb.New(set.ResponseTime),
			EscalateTo:          &pb.Names{Names: set.EscalateTo},
			Directors:           &pb.Names{Names: set.Directors},
			MessageRetention:    durationpb.New(set.KeepMessages),
			EventRetention:      durationpb.New(set.KeepEvents),
			DeadLetterRetention: durationpb.New(set.KeepDead),
			FoldCase:            &set.FoldCase,
			StaleAfter:          durationpb.New(set.StaleAfter),
			BlockerEscalation:   durationpb.New(set.BlockerTime),
			UnknownTypes:        pb.TypePolicy(set.UnknownTypes),
			InvalidPayloads:     pb.TypePolicy(set.BadPayloads),
			ArtifactLimit:       &set.Artifact,
			ArtifactTotalLimit:  &set.Artifacts,
		},
		Revision: s.Revision,
		State:    pb.SessionState_SESSION_STATE_OPEN,
	}
	if !s.ClosedAt.IsZero() {
		out.State, out.ClosedAt = pb.SessionState_SESSION_STATE_CLOSED, timestamppb.New(s.ClosedAt)
	}
	return out
}
