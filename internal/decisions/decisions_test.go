package decisions_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestDecide_EveryVerdictOfEveryKindNotifiesTheOpener(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		kind    pb.DecisionKind
		verdict string
		ask     string
		outcome string
		state   pb.DecisionState
	}{
		{review, "approve", "submit_for_review", "review_approved", decided},
		{review, "revise", "submit_for_review", "revision_requested", revising},
		{review, "reject", "submit_for_review", "review_rejected", decided},
		{plan, "approve", "plan_submission", "plan_approval", decided},
		{plan, "revise", "plan_submission", "plan_approval", revising},
		{plan, "reject", "plan_submission", "plan_approval", decided},
		{shutdown, "accept", "shutdown_request", "shutdown_response", decided},
		{shutdown, "defer", "shutdown_request", "shutdown_response", decided},
		{shutdown, "reject", "shutdown_request", "shutdown_response", decided},
		{custom, "yes", "ballot", "result", decided},
		{custom, "revise", "ballot", "result", revising},
		{custom, "defer", "ballot", "result", decided},
	} {
		t.Run(row.kind.String()+" "+row.verdict, func(t *testing.T) {
			w := newWorld(t)
			lead, critic := w.agent("lead-1", "lead"), w.agent("critic-1", "critic")
			in := &pb.OpenDecisionRequest{Kind: row.kind, To: toAgent("critic-1"), Title: "The title", TaskId: "t-1",
				Content: &pb.DecisionContent{Body: "The body", Payload: `{"a":1}`, Files: []*pb.FileReference{{Path: "a.go", Line: 7}}}}
			if row.kind == custom {
				in.Verdicts, in.MessageType, in.OutcomeType = []string{"yes", "revise", "defer"}, "ballot", "result"
			}
			d := lead.open(in)
			if d.GetState() != open || d.GetRound() != 1 || d.GetMaxRounds() != 3 || d.GetOpener() != "lead-1" || d.GetThreadId() != d.GetId() {
				t.Errorf("opened: %v", d)
			}
			asked := critic.receives(row.ask)[row.ask]
			var request struct {
				ID       string          `json:"decision_id"`
				Verdicts []string        `json:"verdicts"`
				Payload  json.RawMessage `json:"payload"`
			}
			must(t, json.Unmarshal([]byte(asked.GetPayload()), &request))
			if request.ID != d.GetId() || !slices.Contains(request.Verdicts, row.verdict) || string(request.Payload) != `{"a":1}` {
				t.Errorf("payload of the request: %s", asked.GetPayload())
			}
			if asked.GetSender() != "lead-1" || asked.GetBody() != "The body" || asked.GetSubject() != "The title" || asked.GetTaskId() != "t-1" {
				t.Errorf("request: %v", asked)
			}
			ruling := &pb.DecideRequest{Id: d.GetId(), Verdict: row.verdict, Reason: "Because",
				Feedback: []*pb.Feedback{{Severity: pb.FeedbackSeverity_FEEDBACK_SEVERITY_BLOCKER, File: "a.go", Line: 7, Text: "No error check"}}}
			if row.verdict == "defer" {
				ruling.Until = timestamppb.New(w.Clock.Now().Add(time.Hour))
			}
			done, err := critic.Decide(critic.ctx, ruling)
			must(t, err)
			if done.GetDecision().GetState() != row.state {
				t.Errorf("after the verdict: %v", done.GetDecision())
			}
			critic.receives()
			notice := lead.receives(row.outcome)[row.outcome]
			var answer struct {
				ID       string `json:"decision_id"`
				Verdict  string `json:"verdict"`
				By       string `json:"decided_by"`
				Feedback []struct{ Severity, Text string }
			}
			must(t, json.Unmarshal([]byte(notice.GetPayload()), &answer))
			if answer.ID != d.GetId() || answer.Verdict != row.verdict || answer.By != "critic-1" || len(answer.Feedback) != 1 ||
				answer.Feedback[0].Severity != "blocker" {
				t.Errorf("payload of the notice: %s", notice.GetPayload())
			}
			says := row.verdict + ": Because"
			if row.verdict == "defer" {
				says += "; until " + ruling.GetUntil().AsTime().Format(time.RFC3339)
			}
			if says += "; feedback: brokerctl decision get " + d.GetId(); !strings.HasSuffix(notice.GetSubject(), says) {
				t.Errorf("the notice %q does not end with %q", notice.GetSubject(), says)
			}
			whole := lead.get(d.GetId())
			if v := whole.GetRounds(); len(v) != 1 || v[0].GetReason() != "Because" || v[0].GetFeedback()[0].GetLine() != 7 ||
				(row.verdict == "defer") != (v[0].GetUntil() != nil) || (row.state == decided) != (whole.GetVerdict() == row.verdict) {
				t.Errorf("verdicts: %v", whole)
			}
			if row.state == decided {
				_, err = critic.Decide(critic.ctx, ruling)
				refused(t, err, codes.FailedPrecondition, "DECISION_CLOSED")
				if want := d.GetId() + " is already decided: the verdict of critic-1 on round 1 is " + row.verdict; !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %s", err, want)
				}
			}
		})
	}
}

func TestDecide_VerdictOutsideTheDecisionIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, critic := w.agent("lead-1", "lead"), w.agent("critic-1", "critic")
	d := lead.open(&pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1")})
	later := timestamppb.New(w.Clock.Now().Add(time.Hour))
	for _, row := range []struct {
		field string
		in    *pb.DecideRequest
	}{
		{"verdict", &pb.DecideRequest{Verdict: "accept"}},
		{"verdict", &pb.DecideRequest{Verdict: ""}},
		{"until", &pb.DecideRequest{Verdict: "approve", Until: later}},
		{"feedback[0].text", &pb.DecideRequest{Verdict: "approve", Feedback: []*pb.Feedback{{}}}},
	} {
		row.in.Id = d.GetId()
		_, err := critic.Decide(critic.ctx, row.in)
		refused(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	}
	stop := lead.open(&pb.OpenDecisionRequest{Kind: shutdown, To: toAgent("critic-1")})
	for _, until := range []*timestamppb.Timestamp{nil, timestamppb.New(w.Clock.Now()), timestamppb.New(w.Clock.Now().Add(366 * 24 * time.Hour))} {
		_, err := critic.Decide(critic.ctx, &pb.DecideRequest{Id: stop.GetId(), Verdict: "defer", Until: until})
		refused(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	}
	_, err := critic.Decide(critic.ctx, &pb.DecideRequest{Id: d.GetId(), Verdict: "approve", Round: 2})
	refused(t, err, codes.FailedPrecondition, "DECISION_CLOSED")
	_, err = critic.Decide(critic.ctx, &pb.DecideRequest{Id: "d-1", Verdict: "approve"})
	refused(t, err, codes.NotFound, "DECISION_NOT_FOUND")
	if got := critic.get(d.GetId()); got.GetState() != open {
		t.Errorf("after refused verdicts: %v", got)
	}
}

func TestResubmit_RoundsCountUntilTheLastRevisionEscalates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, critic, boss := w.agent("builder-1", "builder"), w.agent("critic-1", "critic"), w.agent("boss", "lead")
	d := lead.open(&pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), MaxRounds: 2, Title: "Login"})
	critic.decide(d.GetId(), "revise")
	_, err := critic.ResubmitDecision(critic.ctx, &pb.ResubmitDecisionRequest{Id: d.GetId()})
	refused(t, err, codes.PermissionDenied, "NOT_YOUR_DECISION")
	again := lead.resubmit(d.GetId())
	if again.GetState() != open || again.GetRound() != 2 {
		t.Errorf("second round: %v", again)
	}
	_, err = lead.ResubmitDecision(lead.ctx, &pb.ResubmitDecisionRequest{Id: d.GetId()})
	refused(t, err, codes.FailedPrecondition, "DECISION_NOT_REVISING")
	if m := critic.receives("submit_for_review")["submit_for_review"]; m.GetBody() != "again" || m.GetSubject() != "Login (round 2 of 2)" {
		t.Errorf("second request: %v", m)
	}
	if got := critic.decide(d.GetId(), "revise").GetDecision(); got.GetState() != escalated || got.GetEscalatedTo() != "lead" {
		t.Errorf("revision of the last round: %v", got)
	}
	critic.receives()
	boss.receives("escalate")
	lead.receives("revision_requested", "escalate")
	_, err = critic.Decide(critic.ctx, &pb.DecideRequest{Id: d.GetId(), Verdict: "approve"})
	refused(t, err, codes.PermissionDenied, "NOT_YOUR_DECISION")
	boss.decide(d.GetId(), "revise")
	if third := lead.resubmit(d.GetId()); third.GetState() != escalated || third.GetRound() != 3 {
		t.Errorf("third round: %v", third)
	}
	boss.decide(d.GetId(), "approve")
	whole := lead.get(d.GetId())
	var got []string
	for _, v := range whole.GetRounds() {
		got = append(got, fmt.Sprintf("%d %s %s %v", v.GetRound(), v.GetVerdict(), v.GetDecidedBy(), v.GetEscalated()))
	}
	want := []string{"1 revise critic-1 false", "2 revise critic-1 false", "2 revise boss true", "3 approve boss true"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	boss.receives()
}

func TestDeadline_DecisionEscalatesAndAnEscalatedAgentDecides(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, critic, boss := w.agent("builder-1", "builder"), w.agent("critic-1", "critic"), w.agent("boss", "overseer")
	soon := w.Clock.Now().Add(time.Minute)
	d := lead.open(&pb.OpenDecisionRequest{Kind: plan, To: toRole("critic"), Deadline: timestamppb.New(soon)})
	free := lead.open(&pb.OpenDecisionRequest{Kind: plan, To: toAgent("critic-1"), Deadline: timestamppb.New(soon.Add(time.Hour))})
	done := critic.decide(free.GetId(), "revise").GetDecision()
	if done.GetState() != revising {
		t.Fatal(done)
	}
	w.Restart()
	w.awaitEvents(1, func() { w.Clock.Advance(2 * time.Minute) }, "decision.escalated")
	if got := lead.get(d.GetId()); got.GetState() != escalated || got.GetNote() != "no verdict came by the deadline" || got.GetEscalatedTo() != "overseer" {
		t.Errorf("after the deadline: %v", got)
	}
	if m := boss.receives("escalate")["escalate"]; m.GetSender() != "system" {
		t.Errorf("escalation: %v", m)
	}
	_, err := critic.Decide(critic.ctx, &pb.DecideRequest{Id: d.GetId(), Verdict: "approve"})
	refused(t, err, codes.PermissionDenied, "NOT_YOUR_DECISION")
	if got := boss.decide(d.GetId(), "approve").GetDecision(); got.GetVerdict() != "approve" {
		t.Errorf("verdict after the escalation: %v", got)
	}
	if later := lead.resubmit(free.GetId()); later.GetDeadline().AsTime() != soon.Add(time.Hour) {
		t.Errorf("deadline of the second round: %v", later)
	}
}

func TestGet_WaitEndsWithTheVerdictAndSurvivesARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, critic := w.agent("builder-1", "builder"), w.agent("critic-1", "critic")
	d := lead.open(&pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1")})
	outcome := make(chan *pb.Decision, 1)
	go func() {
		for got := d; ; {
			if got.GetState() != open {
				outcome <- got
				return
			}
			out, err := lead.GetDecision(lead.ctx, &pb.GetDecisionRequest{Id: d.GetId(), Wait: durationpb.New(time.Hour)})
			if err != nil {
				t.Errorf("a wait across a restart: %v", err)
				outcome <- nil
				return
			}
			got = out.GetDecision()
		}
	}()
	w.Restart()
	w.Restart()
	critic.decide(d.GetId(), "approve")
	if got := <-outcome; got.GetState() != decided || got.GetRounds()[0].GetDecidedBy() != "critic-1" {
		t.Errorf("the wait returned: %v", got)
	}
}

func TestOpen_WaitReturnsTheVerdict(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, critic := w.agent("builder-1", "builder"), w.agent("critic-1", "critic")
	outcome := make(chan *pb.Decision, 1)
	go func() {
		out, err := lead.OpenDecision(lead.ctx, &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), Wait: durationpb.New(time.Hour)})
		if err != nil {
			t.Error(err)
		}
		outcome <- out.GetDecision()
	}()
	id := w.awaitEvents(1, nil, "decision.opened")[0]
	critic.decide(fmt.Sprint(id.GetRevision()), "revise")
	if got := <-outcome; got.GetState() != revising || got.GetRounds()[0].GetVerdict() != "revise" {
		t.Errorf("opened with wait: %v", got)
	}
}

func TestOpen_WaitWithoutAVerdictReturnsTheOpenDecision(t *testing.T) {
	t.Parallel()
	w := &world{apptest.Start(t), t}
	lead := w.agent("builder-1", "builder")
	w.agent("critic-1", "critic")
	got := lead.open(&pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), Wait: durationpb.New(time.Millisecond),
		Content: &pb.DecisionContent{Body: "the work"}})
	if got.GetState() != open || got.GetContent().GetBody() != "the work" {
		t.Errorf("after the wait: %v", got)
	}
}

func TestDecide_OfManyDecidersExactlyOneDecides(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("builder-1", "builder")
	var critics []*actor
	for i := range 8 {
		critics = append(critics, w.agent(fmt.Sprintf("critic-%d", i), "critic"))
	}
	for range 5 {
		d := lead.open(&pb.OpenDecisionRequest{Kind: review, To: toRole("critic")})
		won := make(chan string, len(critics))
		for _, c := range critics {
			go func() {
				_, err := c.Decide(c.ctx, &pb.DecideRequest{Id: d.GetId(), Verdict: "approve"})
				if err == nil {
					won <- c.name
					return
				}
				refused(t, err, codes.FailedPrecondition, "DECISION_CLOSED")
				won <- ""
			}()
		}
		var winners []string
		for range critics {
			if name := <-won; name != "" {
				winners = append(winners, name)
			}
		}
		if got := lead.get(d.GetId()); len(winners) != 1 || got.GetRounds()[0].GetDecidedBy() != winners[0] || len(got.GetRounds()) != 1 {
			t.Errorf("decided by %v: %v", winners, got)
		}
	}
}

func TestDecide_OnlyTheAddresseeMay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, critic, other, boss := w.agent("builder-1", "builder"), w.agent("critic-1", "critic"), w.agent("builder-2", "builder"), w.agent("boss", "lead")
	toOne := lead.open(&pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1")})
	toAll := lead.open(&pb.OpenDecisionRequest{Kind: review, To: toRole("builder")})
	for _, row := range []struct {
		who *actor
		id  string
	}{{lead, toOne.GetId()}, {other, toOne.GetId()}, {boss, toOne.GetId()}, {w.operator(), toOne.GetId()}, {lead, toAll.GetId()}, {critic, toAll.GetId()}} {
		_, err := row.who.Decide(row.who.ctx, &pb.DecideRequest{Id: row.id, Verdict: "approve"})
		refused(t, err, codes.PermissionDenied, "NOT_YOUR_DECISION")
	}
	lead.receives()
	other.receives("submit_for_review")
	other.decide(toAll.GetId(), "approve")
	_, err := other.CancelDecision(other.ctx, &pb.CancelDecisionRequest{Id: toOne.GetId()})
	refused(t, err, codes.PermissionDenied, "NOT_YOUR_DECISION")
	out, err := w.operator().CancelDecision(lead.ctx, &pb.CancelDecisionRequest{Id: toOne.GetId(), Reason: "obsolete"})
	must(t, err)
	if out.GetDecision().GetState() != cancelled || out.GetDecision().GetNote() != "obsolete" {
		t.Errorf("cancelled: %v", out)
	}
	critic.receives("decision_cancelled")
	_, err = critic.Decide(critic.ctx, &pb.DecideRequest{Id: toOne.GetId(), Verdict: "approve"})
	refused(t, err, codes.FailedPrecondition, "DECISION_CLOSED")
	again, err := lead.CancelDecision(lead.ctx, &pb.CancelDecisionRequest{Id: toOne.GetId()})
	must(t, err)
	if again.GetDecision().GetRevision() != out.GetDecision().GetRevision() {
		t.Errorf("cancelled again: %v", again)
	}
	_, err = lead.CancelDecision(lead.ctx, &pb.CancelDecisionRequest{Id: toAll.GetId()})
	refused(t, err, codes.FailedPrecondition, "DECISION_CLOSED")
}

func TestOpen_RefusesWhatCannotBeDecided(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder := w.agent("builder-1", "builder")
	w.agent("critic-1", "critic")
	builder.open(&pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), Scope: "taken"})
	for _, row := range []struct {
		code   codes.Code
		reason string
		in     *pb.OpenDecisionRequest
	}{
		{codes.InvalidArgument, "INVALID_ARGUMENT", &pb.OpenDecisionRequest{To: toAgent("critic-1")}},
		{codes.InvalidArgument, "INVALID_ARGUMENT", &pb.OpenDecisionRequest{Kind: review}},
		{codes.InvalidArgument, "INVALID_ARGUMENT", &pb.OpenDecisionRequest{Kind: review, To: toAgent("builder-1")}},
		{codes.InvalidArgument, "INVALID_ARGUMENT", &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), Verdicts: []string{"yes"}}},
		{codes.InvalidArgument, "INVALID_ARGUMENT", &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), MessageType: "x"}},
		{codes.InvalidArgument, "INVALID_ARGUMENT", &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), PassToken: true}},
		{codes.InvalidArgument, "INVALID_ARGUMENT", &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), MaxRounds: 101}},
		{codes.InvalidArgument, "INVALID_ARGUMENT", &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), Wait: durationpb.New(time.Hour + 1)}},
		{codes.InvalidArgument, "INVALID_ARGUMENT", &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), Deadline: timestamppb.New(w.Clock.Now())}},
		{codes.InvalidArgument, "INVALID_ARGUMENT", &pb.OpenDecisionRequest{Kind: custom, To: toAgent("critic-1")}},
		{codes.InvalidArgument, "INVALID_ARGUMENT", &pb.OpenDecisionRequest{Kind: custom, To: toAgent("critic-1"), Verdicts: []string{"a", "a"}}},
		{codes.InvalidArgument, "INVALID_ARGUMENT", &pb.OpenDecisionRequest{Kind: shutdown, To: toRole("critic")}},
		{codes.NotFound, "AGENT_NOT_FOUND", &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-2")}},
		{codes.NotFound, "ROLE_NOT_FOUND", &pb.OpenDecisionRequest{Kind: review, To: toRole("judge")}},
		{codes.NotFound, "ROLE_NOT_FOUND", &pb.OpenDecisionRequest{Kind: review, To: toRole("builder")}},
		{codes.PermissionDenied, "NOT_A_DIRECTOR", &pb.OpenDecisionRequest{Kind: shutdown, To: toAgent("critic-1")}},
		{codes.AlreadyExists, "DECISION_UNFINISHED", &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), Scope: "taken"}},
		{codes.FailedPrecondition, "TOKEN_NOT_HELD", &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), Scope: "login", PassToken: true}},
	} {
		_, err := builder.OpenDecision(builder.ctx, row.in)
		refused(t, err, row.code, row.reason)
	}
	builder.open(&pb.OpenDecisionRequest{Kind: plan, To: toAgent("critic-1"), Scope: "taken"})
	out, err := builder.ListDecisions(builder.ctx, &pb.ListDecisionsRequest{})
	must(t, err)
	if len(out.GetDecisions()) != 2 {
		t.Errorf("decisions after the refusals: %v", out)
	}
}

func TestOpen_RepeatedRequestOpensNothingAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, critic := w.agent("builder-1", "builder"), w.agent("critic-1", "critic")
	in := &pb.OpenDecisionRequest{RequestId: uuid.NewString(), Kind: review, To: toAgent("critic-1"), Scope: "login"}
	d := builder.open(in)
	if again := builder.open(in); again.GetId() != d.GetId() {
		t.Errorf("opened again: %v", again)
	}
	verdict := &pb.DecideRequest{RequestId: uuid.NewString(), Id: d.GetId(), Verdict: "revise"}
	for range 2 {
		out, err := critic.Decide(critic.ctx, verdict)
		must(t, err)
		if out.GetDecision().GetState() != revising || out.GetDecision().GetRounds()[0].GetVerdict() != "revise" {
			t.Errorf("decided: %v", out)
		}
	}
	next := &pb.ResubmitDecisionRequest{RequestId: uuid.NewString(), Id: d.GetId()}
	for range 2 {
		out, err := builder.ResubmitDecision(builder.ctx, next)
		must(t, err)
		if out.GetDecision().GetRound() != 2 {
			t.Errorf("resubmitted: %v", out)
		}
	}
	in.Scope = "logout"
	_, err := builder.OpenDecision(builder.ctx, in)
	refused(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
}

func TestOpen_SessionHasAThousandUnfinishedDecisions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	operator := w.operator()
	_, err := operator.sessions.ConfigureSession(operator.ctx, &pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{
		SendRate: ptr(1e6), SendBurst: ptr(int32(1e6)), MailboxLimit: ptr(int64(10)),
	}})
	must(t, err)
	builder, critic := w.agent("builder-1", "builder"), w.agent("critic-1", "critic")
	var first string
	for i := range 1000 {
		if d := builder.open(&pb.OpenDecisionRequest{Kind: plan, To: toAgent("critic-1")}); i == 0 {
			first = d.GetId()
		}
	}
	_, err = builder.OpenDecision(builder.ctx, &pb.OpenDecisionRequest{Kind: plan, To: toAgent("critic-1")})
	refused(t, err, codes.ResourceExhausted, "TOO_MANY_DECISIONS")
	critic.decide(first, "approve")
	builder.open(&pb.OpenDecisionRequest{Kind: plan, To: toAgent("critic-1")})
}

func ptr[T any](v T) *T { return &v }
