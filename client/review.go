package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// A review is a conversation and a token: the thread "review:SCOPE" holds what was submitted and decided, and the
// token (review, SCOPE) says whose turn it is. Both are the broker's, so either side may crash and ask again.
//
//	producer                          critic
//	SubmitReview ── review_submit ──►
//	             ── token ──────────► DecideReview
//	             ◄─ review_approve, review_revise or review_reject ──
//	             ◄─────────── token ──
const (
	// ReviewToken is the type of the tokens of reviews.
	ReviewToken = "review"

	// The types of the messages of a review.
	reviewSubmit   = "review_submit"
	reviewApprove  = "review_approve"
	reviewRevise   = "review_revise"
	reviewReject   = "review_reject"
	reviewEscalate = "review_escalate"

	// The labels of these messages.
	labelReview = "review"
	labelRound  = "round"
	labelRounds = "max_rounds"

	// DefaultMaxRounds is after how many rounds without approval a review is escalated.
	DefaultMaxRounds = 3

	maxScope     = 100 // bytes: the thread's name has 128
	maxReviews   = 10  // pages of ListReviews
	turnAtATime  = time.Minute
	handoverTime = 10 * time.Second // between a submission or verdict and the token that follows it
)

// ErrNothingToReview says that nothing was submitted under a scope, or that it has been decided.
var ErrNothingToReview = errors.New("nothing waits for a review")

// A Decision is what came of one round of a review.
type Decision string

// The decisions.
const (
	Approved Decision = "approved" // the review is over
	Revise   Decision = "revise"   // the producer goes on, and submits again
	Rejected Decision = "rejected" // the review is over
)

// message returns the type of the message that tells of a decision.
func (d Decision) message() string {
	return map[Decision]string{Approved: reviewApprove, Revise: reviewRevise, Rejected: reviewReject}[d]
}

// A Submission is work for a review.
type Submission struct {
	// Scope names what is reviewed, such as a feature: 1 to 100 bytes. There is one review of a scope at a time.
	Scope string
	// To is the critic: an agent, or a role of which one takes it.
	To *pb.Target
	// Message carries the work: subject, body, payload, files and artifacts. Its target, type, thread and reply fields are filled in.
	Message *pb.Message
	// MaxRounds is after how many rounds without approval the review is escalated; 0 = DefaultMaxRounds.
	MaxRounds int
	// NoWait makes SubmitReview return once the work is submitted, with no verdict unless there is
	// one already.
	NoWait bool
}

// A Review is how a review stands.
type Review struct {
	Scope     string
	Round     int // from 1
	MaxRounds int
	Producer  string
	Submitted *pb.Message // of this round
	Escalated *pb.Message // who decides after MaxRounds was told by this; nil if nobody was
	Verdict   *pb.Message // of this round; nil until it is decided
}

// Decision returns what was decided; empty while nothing is.
func (r *Review) Decision() Decision {
	for _, d := range []Decision{Approved, Revise, Rejected} {
		if r.Verdict.GetType() == d.message() {
			return d
		}
	}
	return ""
}

// open reports whether the review goes on.
func (r *Review) open() bool { return r != nil && (r.Decision() == "" || r.Decision() == Revise) }

// SubmitReview sends work to a critic, passes the turn to it, and waits until ctx ends for the verdict, with which the turn comes back:
// after Revise the calling agent holds the token (ReviewToken, scope) again, otherwise it is free. Called again after a crash
// it goes on waiting for the verdict of what was submitted before, or returns the one that has come, and sends nothing. It does not
// matter whether another consumer of the agent has finished the verdict's delivery meanwhile.
//
// ABORTED (codes.Aborted) if another agent's work is under review in this scope; INVALID_ARGUMENT
// if the critic is the calling agent.
func (c *Client) SubmitReview(ctx context.Context, s Submission) (*Review, error) {
	if s.Scope == "" || len(s.Scope) > maxScope {
		return nil, fmt.Errorf("submit for review: the scope has %d bytes; 1 to %d are allowed", len(s.Scope), maxScope)
	}
	if s.To.GetAgent() == c.identity.Agent && c.identity.Agent != "" {
		return nil, fmt.Errorf("submit for review: %w",
			status.Errorf(codes.InvalidArgument, "%s submits the work and cannot review it: name another agent, or role:NAME", c.identity.Agent))
	}
	r, err := c.FindReview(ctx, s.Scope)
	if err != nil {
		return nil, fmt.Errorf("submit for review: %w", err)
	}
	if r.open() && r.Producer != c.identity.Agent {
		return nil, fmt.Errorf("submit for review: %w",
			status.Errorf(codes.Aborted, "round %d of review %s is %s's; choose another scope, or wait until it is decided", r.Round, s.Scope, r.Producer))
	}
	news, err := c.isNews(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("submit for review: %w", err)
	}
	if !news {
		if r, err = c.hand(ctx, s, r); err != nil {
			return nil, fmt.Errorf("submit for review: %w", err)
		}
		if s.NoWait && r.Verdict == nil {
			return r, nil
		}
		if err := c.awaitVerdict(ctx, r); err != nil {
			return nil, fmt.Errorf("wait for the review of %s: %w", s.Scope, err)
		}
	}
	if err := c.takeBack(ctx, r); err != nil {
		return nil, fmt.Errorf("take the review of %s back: %w", s.Scope, err)
	}
	return r, nil
}

// hand submits the next round unless one is under review, and passes the turn to the critic.
func (c *Client) hand(ctx context.Context, s Submission, last *Review) (*Review, error) {
	r := last
	if r == nil || r.Verdict != nil {
		var err error
		if r, err = c.submit(ctx, s, last); err != nil {
			return nil, err
		}
	}
	if r.Escalated != nil {
		return r, c.passReview(ctx, r, r.Escalated.GetTarget())
	}
	return r, c.passReview(ctx, r, r.Submitted.GetTarget())
}

// submit takes the turn and sends the next round; last is the one before, or nil.
func (c *Client) submit(ctx context.Context, s Submission, last *Review) (*Review, error) {
	if s.MaxRounds <= 0 {
		s.MaxRounds = DefaultMaxRounds
	}
	r := &Review{Scope: s.Scope, Round: 1, MaxRounds: s.MaxRounds, Producer: c.identity.Agent}
	if last.open() {
		r.Round, r.MaxRounds = last.Round+1, last.MaxRounds
	}
	if err := c.takeReview(ctx, s.Scope); err != nil {
		return nil, err
	}
	m := &pb.Message{}
	if s.Message != nil {
		m = proto.CloneOf(s.Message)
	}
	m.Target, m.Type, m.ThreadId, m.RequiresResponse = s.To, reviewSubmit, reviewThread(s.Scope), true
	if err := c.sendReview(ctx, r, m); err != nil {
		return nil, err
	}
	r.Submitted = m
	return r, nil
}

// DecideReview answers what was submitted under a scope, and passes the turn back to its producer. The message carries the critic's
// words; it may be nil. Revise in the last round escalates: the first role that the session names (setting escalate_to) and that another
// agent has gets the work and the turn, and decides. Called again after a crash it does what was left to do.
//
// ErrNothingToReview if there is nothing to decide; ABORTED (codes.Aborted) if the turn is somebody else's.
func (c *Client) DecideReview(ctx context.Context, scope string, d Decision, m *pb.Message) (*Review, error) {
	r, err := c.decide(ctx, scope, d, m)
	if err != nil {
		return nil, fmt.Errorf("decide review %s: %w", scope, err)
	}
	return r, nil
}

func (c *Client) decide(ctx context.Context, scope string, d Decision, m *pb.Message) (*Review, error) {
	r, err := c.FindReview(ctx, scope)
	switch {
	case err != nil:
		return nil, err
	case r == nil:
		return nil, fmt.Errorf("%w: nothing was submitted", ErrNothingToReview)
	case r.Verdict != nil && (r.Decision() != d || r.Verdict.GetSender() != c.identity.Agent):
		return nil, fmt.Errorf("%w: %s has decided round %d: %s", ErrNothingToReview, r.Verdict.GetSender(), r.Round, r.Decision())
	}
	if r.Verdict == nil {
		if err := c.takeReview(ctx, scope); err != nil {
			return nil, err
		}
		if d == Revise && r.Round >= r.MaxRounds && r.Escalated == nil {
			if done, err := c.escalate(ctx, r, m); done || err != nil {
				return r, err
			}
		}
		verdict := reviewMessage(m)
		verdict.Target = &pb.Target{To: &pb.Target_Agent{Agent: r.Producer}}
		verdict.Type, verdict.InReplyTo = d.message(), r.Submitted.GetId()
		if err := c.sendReview(ctx, r, verdict); err != nil {
			return nil, err
		}
		r.Verdict = verdict
	}
	if d != Revise {
		outcome := fmt.Sprintf("%s by %s in round %d", d, c.identity.Agent, r.Round)
		if _, err := c.Messages().ResolveThread(ctx, &pb.ResolveThreadRequest{ThreadId: reviewThread(scope), Outcome: outcome}); err != nil {
			return nil, err
		}
	}
	for _, done := range []*pb.Message{r.Submitted, r.Escalated} {
		if err := c.finishMail(ctx, done); err != nil {
			return nil, err
		}
	}
	return r, c.passReview(ctx, r, &pb.Target{To: &pb.Target_Agent{Agent: r.Producer}})
}

// escalate hands the decision to those whom the session names; false if there is nobody.
func (c *Client) escalate(ctx context.Context, r *Review, m *pb.Message) (bool, error) {
	role, err := c.escalationRole(ctx)
	if err != nil || role == "" {
		return false, err
	}
	told := reviewMessage(m)
	told.Target, told.Type = &pb.Target{To: &pb.Target_Role{Role: role}}, reviewEscalate
	if told.GetSubject() == "" {
		told.Subject = fmt.Sprintf("review %s is not approved after %d rounds: decide it", r.Scope, r.Round)
	}
	if err := c.sendReview(ctx, r, told); err != nil {
		return false, err
	}
	r.Escalated = told
	if err := c.finishMail(ctx, r.Submitted); err != nil {
		return false, err
	}
	return true, c.passReview(ctx, r, told.GetTarget())
}

// escalationRole returns the first role that the session escalates to and that another agent has.
func (c *Client) escalationRole(ctx context.Context) (string, error) {
	session, err := c.Sessions().GetSession(ctx, &pb.GetSessionRequest{})
	if err != nil {
		return "", err
	}
	for _, role := range session.GetSession().GetSettings().GetEscalateTo().GetNames() {
		list, err := c.Agents().ListAgents(ctx, &pb.ListAgentsRequest{Role: role, PageSize: 2})
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(list.GetAgents(), func(a *pb.Agent) bool { return a.GetName() != c.identity.Agent }) {
			return role, nil
		}
	}
	return "", nil
}

// FindReview returns how the newest review of a scope stands; nil if there never was one.
func (c *Client) FindReview(ctx context.Context, scope string) (*Review, error) {
	found, err := c.reviews(ctx, &pb.MessageFilter{ThreadId: reviewThread(scope)})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// ListReviews returns the newest round of every review among the session's last 10,000 messages of reviews, newest first.
func (c *Client) ListReviews(ctx context.Context) ([]*Review, error) {
	return c.reviews(ctx, &pb.MessageFilter{Types: []string{reviewSubmit, reviewApprove, reviewRevise, reviewReject, reviewEscalate}})
}

// reviews reads messages from the newest back, and puts the newest round of each scope together.
func (c *Client) reviews(ctx context.Context, filter *pb.MessageFilter) ([]*Review, error) {
	var found []*Review
	known := map[string]*Review{}
	request := &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: filter, PageSize: 1000, NewestFirst: true}
	for range maxReviews {
		page, err := c.Messages().ListMessages(ctx, request)
		if err != nil {
			return nil, err
		}
		for _, item := range page.GetItems() {
			m := item.GetMessage()
			scope := m.GetLabels()[labelReview]
			if scope == "" || m.GetThreadId() != reviewThread(scope) {
				continue
			}
			r := known[scope]
			if r == nil {
				r = &Review{Scope: scope}
				known[scope] = r
				found = append(found, r)
			}
			r.learn(m)
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	return slices.DeleteFunc(found, func(r *Review) bool { return r.Submitted == nil }), nil
}

// learn takes a message into account that is older than those before.
func (r *Review) learn(m *pb.Message) {
	if r.Submitted != nil {
		return
	}
	switch m.GetType() {
	case reviewSubmit:
		r.Submitted, r.Producer = m, m.GetSender()
		r.Round, _ = strconv.Atoi(m.GetLabels()[labelRound])
		r.MaxRounds, _ = strconv.Atoi(m.GetLabels()[labelRounds])
	case reviewEscalate:
		r.Escalated = m
	case reviewApprove, reviewRevise, reviewReject:
		r.Verdict = m
	}
}

// sendReview sends a message of a review, and fills in what the broker stamps.
func (c *Client) sendReview(ctx context.Context, r *Review, m *pb.Message) error {
	m.ThreadId = reviewThread(r.Scope)
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	m.Labels[labelReview], m.Labels[labelRound], m.Labels[labelRounds] = r.Scope, strconv.Itoa(r.Round), strconv.Itoa(r.MaxRounds)
	answer, err := c.Messages().SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{m}})
	if err != nil {
		return err
	}
	result := answer.GetResults()[0]
	if n := result.GetRecipientCount(); n > 0 && n == result.GetRefusedCount() {
		return status.Errorf(codes.ResourceExhausted, "the mailbox of %s is full; try again when it has been read", result.GetRecipients()[0].GetMailbox())
	}
	m.Id, m.Revision, m.Sender = result.GetId(), result.GetRevision(), c.identity.Agent
	return nil
}

// takeReview takes the turn, which may still be on its way.
func (c *Client) takeReview(ctx context.Context, scope string) error {
	answer, err := c.acquireReview(ctx, scope, handoverTime)
	if err != nil || answer.GetOutcome() == pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
		return err
	}
	if _, err := c.Tokens().ReleaseToken(ctx, &pb.ReleaseTokenRequest{Type: ReviewToken, Scope: scope}); err != nil {
		return err
	}
	holder := "somebody else"
	if o := answer.GetObstacles(); len(o) > 0 {
		holder = o[0].GetAgent()
	}
	return status.Errorf(codes.Aborted, "the turn is with %s (brokerctl token get %s %s)", holder, ReviewToken, scope)
}

func (c *Client) acquireReview(ctx context.Context, scope string, wait time.Duration) (*pb.AcquireTokenResponse, error) {
	return c.Tokens().AcquireToken(ctx, &pb.AcquireTokenRequest{
		Type: ReviewToken, Scope: scope, Wait: durationpb.New(wait), Reason: "review of " + scope,
	})
}

// passReview passes the turn on, if it is still here.
func (c *Client) passReview(ctx context.Context, r *Review, to *pb.Target) error {
	request := &pb.PassTokenRequest{Type: ReviewToken, Scope: r.Scope, Note: fmt.Sprintf("round %d", r.Round)}
	switch to := to.GetTo().(type) {
	case *pb.Target_Agent:
		request.To = &pb.PassTokenRequest_Agent{Agent: to.Agent}
	case *pb.Target_Role:
		request.To = &pb.PassTokenRequest_Role{Role: to.Role}
	default:
		return errors.New("a review goes to an agent or a role")
	}
	_, err := c.Tokens().PassToken(ctx, request)
	if Reason(err) == "TOKEN_LOST" {
		return nil // passed before a crash, or taken away: it is the other's turn either way
	}
	return err
}

// finishMail finishes the agent's own delivery of a message, if it has one.
func (c *Client) finishMail(ctx context.Context, m *pb.Message) error {
	if m == nil {
		return nil
	}
	_, err := c.Messages().AckMessages(ctx, &pb.AckMessagesRequest{Ids: []string{m.GetId()}})
	switch status.Code(err) {
	case codes.NotFound, codes.FailedPrecondition, codes.PermissionDenied:
		return nil // it was another's, or somebody else has finished it
	}
	return err
}

func reviewThread(scope string) string { return "review:" + scope }

// reviewMessage returns a copy of what the caller wants to say.
func reviewMessage(m *pb.Message) *pb.Message {
	if m == nil {
		return &pb.Message{}
	}
	return proto.CloneOf(m)
}
