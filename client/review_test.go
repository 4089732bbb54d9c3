package client_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// reviewing is a broker with a producer, a critic and a lead.
type reviewing struct {
	*testing.T
	producer, critic, lead *client.Client
	worker                 *client.Client // of the producer as well
	daemon                 *daemon
}

func newReviewing(t *testing.T) *reviewing {
	d := newDaemon(t)
	producer := d.agent(t, "producer", "builder")
	return &reviewing{t, producer, d.agent(t, "critic", "reviewer"), d.agent(t, "lead", "lead"), producer, d}
}

// toCritic is a submission of the scope login.
func toCritic(rounds int) client.Submission {
	return client.Submission{
		Scope: "login", To: &pb.Target{To: &pb.Target_Agent{Agent: "critic"}}, MaxRounds: rounds,
		Message: &pb.Message{Subject: "The login page", Labels: map[string]string{"area": "web"}},
	}
}

type submitted struct {
	review *client.Review
	err    error
}

// submit submits in the background and returns where the verdict comes, once the work is before the critic.
func (r *reviewing) submit(ctx context.Context, rounds int) <-chan submitted {
	r.Helper()
	before := r.find().Submitted.GetRevision()
	verdicts := make(chan submitted, 1)
	go func() {
		review, err := r.producer.SubmitReview(ctx, toCritic(rounds))
		verdicts <- submitted{review, err}
	}()
	for event, err := range r.lead.FollowEvents(r.Context(), client.EventOptions{After: before, Filter: &pb.EventFilter{Types: []string{"token.passed"}}}) {
		if err != nil {
			r.Fatal(err)
		}
		now := r.find().Submitted.GetRevision()
		if event.GetSource() == "producer" && now > before && event.GetRevision() > now {
			break
		}
	}
	return verdicts
}

// find returns the review of login; an empty one if there is none.
func (r *reviewing) find() *client.Review {
	r.Helper()
	found, err := r.lead.FindReview(r.Context(), "login")
	if err != nil {
		r.Fatal(err)
	}
	if found == nil {
		return &client.Review{}
	}
	return found
}

func (r *reviewing) decide(c *client.Client, d client.Decision, words string) *client.Review {
	r.Helper()
	review, err := c.DecideReview(r.Context(), "login", d, &pb.Message{Body: words})
	if err != nil {
		r.Fatal(err)
	}
	return review
}

// verdict waits for the end of a submission.
func (r *reviewing) verdict(of <-chan submitted, want client.Decision, round int) *client.Review {
	r.Helper()
	s := <-of
	if s.err != nil {
		r.Fatal(s.err)
	}
	if s.review.Decision() != want || s.review.Round != round {
		r.Fatalf("%s in round %d, want %s in round %d", s.review.Decision(), s.review.Round, want, round)
	}
	return s.review
}

// holder returns who has the turn.
func (r *reviewing) holder() string {
	r.Helper()
	answer, err := r.lead.Tokens().GetToken(r.Context(), &pb.GetTokenRequest{Type: client.ReviewToken, Scope: "login"})
	if err != nil {
		r.Fatal(err)
	}
	return answer.GetToken().GetAgent()
}

// sent counts the messages of the review.
func (r *reviewing) sent() int {
	r.Helper()
	list, err := r.lead.Messages().ListMessages(r.Context(), &pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: &pb.MessageFilter{ThreadId: "review:login"}, PageSize: 1000,
	})
	if err != nil {
		r.Fatal(err)
	}
	return len(list.GetItems())
}

func TestReview_GoesInRoundsUntilItIsApproved(t *testing.T) {
	r := newReviewing(t)
	first := r.submit(t.Context(), 0)
	if got := r.holder(); got != "critic" {
		t.Errorf("the turn is with %q after the submission", got)
	}
	r.decide(r.critic, client.Revise, "the error of Close is dropped")
	review := r.verdict(first, client.Revise, 1)
	if got := review.Verdict.GetBody(); got != "the error of Close is dropped" {
		t.Errorf("the critic's words are %q", got)
	}
	if got := r.holder(); got != "producer" {
		t.Errorf("the turn is with %q after the first verdict", got)
	}
	second := r.submit(t.Context(), 0)
	if got := r.find().Submitted.GetLabels()["area"]; got != "web" {
		t.Errorf("the label area is %q", got)
	}
	r.decide(r.critic, client.Approved, "")
	r.verdict(second, client.Approved, 2)
	if got := r.holder(); got != "" {
		t.Errorf("the turn is with %q after the review", got)
	}
	list, err := r.lead.Messages().ListMessages(t.Context(), &pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: &pb.MessageFilter{ThreadId: "review:login"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := list.GetThread(); got.GetOutcome() != "approved by critic in round 2" || len(got.GetOpenQuestions()) != 0 {
		t.Errorf("the thread: %v", got)
	}
	for _, c := range []*client.Client{r.producer, r.critic} {
		summary, err := c.Messages().GetInboxSummary(t.Context(), &pb.GetInboxSummaryRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range summary.GetByType() {
			if n.GetType() != "token_passed" {
				t.Errorf("%s has %v left", c.Identity().Agent, n)
			}
		}
	}
}

func TestReview_ProducerThatCrashedGetsTheVerdictAndSendsNothingTwice(t *testing.T) {
	r := newReviewing(t)
	ctx, crash := context.WithCancel(t.Context())
	first := r.submit(ctx, 0)
	crash()
	if s := <-first; s.err == nil {
		t.Fatalf("%+v", s.review)
	}
	again := make(chan submitted, 1)
	go func() {
		review, err := r.producer.SubmitReview(t.Context(), toCritic(0))
		again <- submitted{review, err}
	}()
	r.decide(r.critic, client.Revise, "not yet")
	r.verdict(again, client.Revise, 1)
	if got := r.sent(); got != 2 {
		t.Errorf("%d messages, want a submission and a verdict", got)
	}

	// The verdict comes while nobody waits.
	ctx, crash = context.WithCancel(t.Context())
	second := r.submit(ctx, 0)
	crash()
	<-second
	r.decide(r.critic, client.Rejected, "no")
	review, err := r.producer.SubmitReview(t.Context(), toCritic(0))
	if err != nil || review.Decision() != client.Rejected || review.Round != 2 {
		t.Fatalf("%+v, %v", review, err)
	}
	if got := r.sent(); got != 4 {
		t.Errorf("%d messages, want two submissions and two verdicts", got)
	}
}

// ackVerdict finishes the verdict as another consumer of the producer does.
func (r *reviewing) ackVerdict() {
	r.Helper()
	id := r.find().Verdict.GetId()
	if _, err := r.worker.Messages().AckMessages(r.Context(), &pb.AckMessagesRequest{Ids: []string{id}}); err != nil {
		r.Fatal(err)
	}
}

func TestReview_VerdictThatAnotherConsumerHasFinishedIsFound(t *testing.T) {
	r := newReviewing(t)
	slow := newRelay(t, r.daemon, pb.MessageService_Receive_FullMethodName, pb.EventService_SubscribeEvents_FullMethodName)
	producer, err := client.Dial(t.Context(), client.WithAddress(slow.address), client.WithAgent("producer"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(producer.Close)
	r.producer = producer
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	first := r.submit(ctx, 0)
	r.decide(r.critic, client.Revise, "not yet")
	r.ackVerdict()
	close(slow.free) // it has waited since the submission
	r.verdict(first, client.Revise, 1)

	// Nobody waits when it comes.
	dying, crash := context.WithCancel(ctx)
	second := r.submit(dying, 0)
	crash()
	<-second
	r.decide(r.critic, client.Approved, "")
	r.ackVerdict()
	review, err := r.producer.SubmitReview(ctx, toCritic(0))
	if err != nil || review.Decision() != client.Approved || review.Round != 2 {
		t.Fatalf("%+v, %v", review, err)
	}
	if got := r.sent(); got != 4 {
		t.Errorf("%d messages, want two submissions and two verdicts", got)
	}
	if got := r.holder(); got != "" {
		t.Errorf("the turn is with %q after the review", got)
	}
}

func TestReview_CriticThatCrashedAfterItsWordPassesTheTurnWhenAskedAgain(t *testing.T) {
	r := newReviewing(t)
	first := r.submit(t.Context(), 0)
	// The verdict is out, and the turn is still the critic's.
	if _, err := r.critic.Tokens().AcquireToken(t.Context(), &pb.AcquireTokenRequest{Type: client.ReviewToken, Scope: "login"}); err != nil {
		t.Fatal(err)
	}
	s := r.find().Submitted
	labels := map[string]string{"review": "login", "round": "1", "max_rounds": "3"}
	if _, err := r.critic.Messages().SendMessages(t.Context(), &pb.SendMessagesRequest{Messages: []*pb.Message{{
		Target: &pb.Target{To: &pb.Target_Agent{Agent: "producer"}}, Type: "review_approve", ThreadId: s.GetThreadId(), InReplyTo: s.GetId(), Labels: labels,
	}}}); err != nil {
		t.Fatal(err)
	}
	r.decide(r.critic, client.Approved, "")
	r.verdict(first, client.Approved, 1)
	if got := r.sent(); got != 2 {
		t.Errorf("%d messages, want a submission and a verdict", got)
	}
}

func TestReview_LastRoundWithoutApprovalIsDecidedByTheLead(t *testing.T) {
	r := newReviewing(t)
	first := r.submit(t.Context(), 1)
	if got := r.decide(r.critic, client.Revise, "still wrong"); got.Escalated == nil || got.Verdict != nil {
		t.Fatalf("%+v", got)
	}
	if _, err := r.critic.DecideReview(t.Context(), "login", client.Approved, nil); err == nil {
		t.Error("the critic decides although it is the lead's turn")
	}
	r.decide(r.lead, client.Approved, "good enough")
	if got := r.verdict(first, client.Approved, 1).Verdict.GetSender(); got != "lead" {
		t.Errorf("%s has decided", got)
	}
}

func TestReview_OthersAreToldWhoseItIs(t *testing.T) {
	r := newReviewing(t)
	if _, err := r.critic.DecideReview(t.Context(), "login", client.Approved, nil); !errors.Is(err, client.ErrNothingToReview) {
		t.Errorf("nothing was submitted: %v", err)
	}
	first := r.submit(t.Context(), 0)
	if _, err := r.lead.SubmitReview(t.Context(), toCritic(0)); status.Code(err) != codes.Aborted {
		t.Errorf("another producer: %v", err)
	}
	list, err := r.critic.ListReviews(t.Context())
	if err != nil || len(list) != 1 || list[0].Scope != "login" || list[0].Producer != "producer" || list[0].Verdict != nil {
		t.Errorf("%+v, %v", list, err)
	}
	r.decide(r.critic, client.Approved, "")
	r.verdict(first, client.Approved, 1)
	if _, err := r.critic.DecideReview(t.Context(), "login", client.Rejected, nil); !errors.Is(err, client.ErrNothingToReview) {
		t.Errorf("it is decided: %v", err)
	}
}
