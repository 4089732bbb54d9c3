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
			w := apptest.Start(t, apptest.WithFakeClock())
			lead, critic := w.Agent("lead-1", "lead"), w.Agent("critic-1", "critic")
			in := &pb.OpenDecisionRequest{Kind: row.kind, To: toAgent("critic-1"), Title: "The title", TaskId: "t-1",
				Content: &pb.DecisionContent{Body: "The body", Payload: `{"a":1}`, Files: []*pb.FileReference{{Path: "a.go", Line: 7}}}}
			if row.kind == custom {
				in.Verdicts, in.MessageType, in.OutcomeType = []string{"yes", "revise", "defer"}, "ballot", "result"
			}
			d := openDecision(lead, in)
			if d.GetState() != open || d.GetRound() != 1 || d.GetMaxRounds() != 3 || d.GetOpener() != "lead-1" || d.GetThreadId() != d.GetId() {
				t.Errorf("opened: %v", d)
			}
			asked := receives(critic, row.ask)[row.ask]
			var request struct {
				ID       string          `json:"decision_id"`
				Verdicts []string        `json:"verdicts"`
				Payload  json.RawMessage `json:"payload"`
			}
			apptest.NoError(t, json.Unmarshal([]byte(asked.GetPayload()), &request))
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
			done := apptest.Must(t, critic.Decide, ruling)
			if done.GetDecision().GetState() != row.state {
				t.Errorf("after the verdict: %v", done.GetDecision())
			}
			receives(critic)
			notice := receives(lead, row.outcome)[row.outcome]
			var answer struct {
				ID       string `json:"decision_id"`
				Verdict  string `json:"verdict"`
				By       string `json:"decided_by"`
				Feedback []struct{ Severity, Text string }
			}
			apptest.NoError(t, json.Unmarshal([]byte(notice.GetPayload()), &answer))
			if answer.ID != d.GetId() || answer.Verdict != row.verdict || answer.By != "critic-1" || len(answer.Feedback) != 1 ||
				answer.Feedback[0].Severity != "blocker" {
				t.Errorf("payload of the notice: %s", notice.GetPayload())
			}
			says := row.verdict + ": Because"
			if row.verdict == "defer" {
				says += "; until " + ruling.GetUntil().AsTime().Format(time.RFC3339)
			}
			if says += "; its feedback is in decision " + d.GetId(); !strings.HasSuffix(notice.GetSubject(), says) {
				t.Errorf("the notice %q does not end with %q", notice.GetSubject(), says)
			}
			whole := get(lead, d.GetId())
			if v := whole.GetRounds(); len(v) != 1 || v[0].GetReason() != "Because" || v[0].GetFeedback()[0].GetLine() != 7 ||
				(row.verdict == "defer") != (v[0].GetUntil() != nil) || (row.state == decided) != (whole.GetVerdict() == row.verdict) {
				t.Errorf("verdicts: %v", whole)
			}
			if row.state == decided {
				_, err := critic.Decide(critic.Ctx, ruling)
				apptest.Refused(t, err, codes.FailedPrecondition, "DECISION_CLOSED")
				if want := d.GetId() + " is already decided: the verdict of critic-1 on round 1 is " + row.verdict; !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %s", err, want)
				}
			}
		})
	}
}

func TestDecide_VerdictOutsideTheDecisionIsRefused(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	lead, critic := w.Agent("lead-1", "lead"), w.Agent("critic-1", "critic")
	d := openDecision(lead, &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1")})
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
		apptest.Refuses(t, critic.Decide, row.in, codes.InvalidArgument, "INVALID_ARGUMENT")
	}
	stop := openDecision(lead, &pb.OpenDecisionRequest{Kind: shutdown, To: toAgent("critic-1")})
	for _, until := range []*timestamppb.Timestamp{nil, timestamppb.New(w.Clock.Now()), timestamppb.New(w.Clock.Now().Add(366 * 24 * time.Hour))} {
		apptest.Refuses(t, critic.Decide, &pb.DecideRequest{Id: stop.GetId(), Verdict: "defer", Until: until},
			codes.InvalidArgument, "INVALID_ARGUMENT")
	}
	apptest.Refuses(t, critic.Decide, &pb.DecideRequest{Id: d.GetId(), Verdict: "approve", Round: 2},
		codes.FailedPrecondition, "DECISION_CLOSED")
	apptest.Refuses(t, critic.Decide, &pb.DecideRequest{Id: "d-1", Verdict: "approve"},
		codes.NotFound, "DECISION_NOT_FOUND")
	if got := get(critic, d.GetId()); got.GetState() != open {
		t.Errorf("after refused verdicts: %v", got)
	}
}

func TestResubmit_RoundsCountUntilTheLastRevisionEscalates(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	lead, critic, boss := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic"), w.Agent("boss", "lead")
	d := openDecision(lead, &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), MaxRounds: 2, Title: "Login"})
	decide(critic, d.GetId(), "revise")
	apptest.Refuses(t, critic.ResubmitDecision, &pb.ResubmitDecisionRequest{Id: d.GetId()},
		codes.PermissionDenied, "NOT_YOUR_DECISION")
	again := resubmit(lead, d.GetId())
	if again.GetState() != open || again.GetRound() != 2 {
		t.Errorf("second round: %v", again)
	}
	apptest.Refuses(t, lead.ResubmitDecision, &pb.ResubmitDecisionRequest{Id: d.GetId()},
		codes.FailedPrecondition, "DECISION_NOT_REVISING")
	if m := receives(critic, "submit_for_review")["submit_for_review"]; m.GetBody() != "again" || m.GetSubject() != "Login (round 2 of 2)" {
		t.Errorf("second request: %v", m)
	}
	if got := decide(critic, d.GetId(), "revise").GetDecision(); got.GetState() != escalated || got.GetEscalatedTo() != "lead" {
		t.Errorf("revision of the last round: %v", got)
	}
	receives(critic)
	receives(boss, "escalate")
	receives(lead, "revision_requested", "escalate")
	apptest.Refuses(t, critic.Decide, &pb.DecideRequest{Id: d.GetId(), Verdict: "approve"},
		codes.PermissionDenied, "NOT_YOUR_DECISION")
	decide(boss, d.GetId(), "revise")
	if third := resubmit(lead, d.GetId()); third.GetState() != escalated || third.GetRound() != 3 {
		t.Errorf("third round: %v", third)
	}
	decide(boss, d.GetId(), "approve")
	whole := get(lead, d.GetId())
	var got []string
	for _, v := range whole.GetRounds() {
		got = append(got, fmt.Sprintf("%d %s %s %v", v.GetRound(), v.GetVerdict(), v.GetDecidedBy(), v.GetEscalated()))
	}
	want := []string{"1 revise critic-1 false", "2 revise critic-1 false", "2 revise boss true", "3 approve boss true"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	receives(boss)
}

func TestDeadline_DecisionEscalatesAndAnEscalatedAgentDecides(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	lead, critic, boss := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic"), w.Agent("boss", "overseer")
	soon := w.Clock.Now().Add(time.Minute)
	d := openDecision(lead, &pb.OpenDecisionRequest{Kind: plan, To: toRole("critic"), Deadline: timestamppb.New(soon)})
	free := openDecision(lead, &pb.OpenDecisionRequest{Kind: plan, To: toAgent("critic-1"), Deadline: timestamppb.New(soon.Add(time.Hour))})
	done := decide(critic, free.GetId(), "revise").GetDecision()
	if done.GetState() != revising {
		t.Fatal(done)
	}
	w.Restart()
	advance(w, 2*time.Minute, "decision.escalated")
	if got := get(lead, d.GetId()); got.GetState() != escalated || got.GetNote() != "no verdict came by the deadline" || got.GetEscalatedTo() != "overseer" {
		t.Errorf("after the deadline: %v", got)
	}
	if m := receives(boss, "escalate")["escalate"]; m.GetSender() != "system" {
		t.Errorf("escalation: %v", m)
	}
	apptest.Refuses(t, critic.Decide, &pb.DecideRequest{Id: d.GetId(), Verdict: "approve"},
		codes.PermissionDenied, "NOT_YOUR_DECISION")
	if got := decide(boss, d.GetId(), "approve").GetDecision(); got.GetVerdict() != "approve" {
		t.Errorf("verdict after the escalation: %v", got)
	}
	if later := resubmit(lead, free.GetId()); later.GetDeadline().AsTime() != soon.Add(time.Hour) {
		t.Errorf("deadline of the second round: %v", later)
	}
}

func TestGet_WaitEndsWithTheVerdictAndSurvivesARestart(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	lead, critic := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic")
	d := openDecision(lead, &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1")})
	outcome := make(chan *pb.Decision, 1)
	go func() {
		for got := d; ; {
			if got.GetState() != open {
				outcome <- got
				return
			}
			out, err := lead.GetDecision(lead.Ctx, &pb.GetDecisionRequest{Id: d.GetId(), Wait: durationpb.New(time.Hour)})
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
	decide(critic, d.GetId(), "approve")
	if got := <-outcome; got.GetState() != decided || got.GetRounds()[0].GetDecidedBy() != "critic-1" {
		t.Errorf("the wait returned: %v", got)
	}
}

func TestOpen_WaitReturnsTheVerdict(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	lead, critic := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic")
	outcome := make(chan *pb.Decision, 1)
	go func() {
		out, err := lead.OpenDecision(lead.Ctx, &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), Wait: durationpb.New(time.Hour)})
		if err != nil {
			t.Error(err)
		}
		outcome <- out.GetDecision()
	}()
	id := w.Root().AwaitEvents("decision.opened", 1, 0)[0]
	decide(critic, fmt.Sprint(id.GetRevision()), "revise")
	if got := <-outcome; got.GetState() != revising || got.GetRounds()[0].GetVerdict() != "revise" {
		t.Errorf("opened with wait: %v", got)
	}
}

func TestOpen_WaitWithoutAVerdictReturnsTheOpenDecision(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	lead := w.Agent("builder-1", "builder")
	w.Agent("critic-1", "critic")
	got := openDecision(lead, &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), Wait: durationpb.New(time.Millisecond),
		Content: &pb.DecisionContent{Body: "the work"}})
	if got.GetState() != open || got.GetContent().GetBody() != "the work" {
		t.Errorf("after the wait: %v", got)
	}
}

func TestDecide_OfManyDecidersExactlyOneDecides(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	lead := w.Agent("builder-1", "builder")
	var critics []*apptest.Actor
	for i := range 8 {
		critics = append(critics, w.Agent(fmt.Sprintf("critic-%d", i), "critic"))
	}
	for range 5 {
		d := openDecision(lead, &pb.OpenDecisionRequest{Kind: review, To: toRole("critic")})
		won := make(chan string, len(critics))
		for _, c := range critics {
			go func() {
				_, err := c.Decide(c.Ctx, &pb.DecideRequest{Id: d.GetId(), Verdict: "approve"})
				if err == nil {
					won <- c.Name
					return
				}
				apptest.Refused(t, err, codes.FailedPrecondition, "DECISION_CLOSED")
				won <- ""
			}()
		}
		var winners []string
		for range critics {
			if name := <-won; name != "" {
				winners = append(winners, name)
			}
		}
		if got := get(lead, d.GetId()); len(winners) != 1 || got.GetRounds()[0].GetDecidedBy() != winners[0] || len(got.GetRounds()) != 1 {
			t.Errorf("decided by %v: %v", winners, got)
		}
	}
}

func TestDecide_OnlyTheAddresseeMay(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	lead, critic, other, boss := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic"), w.Agent("builder-2", "builder"), w.Agent("boss", "lead")
	toOne := openDecision(lead, &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1")})
	toAll := openDecision(lead, &pb.OpenDecisionRequest{Kind: review, To: toRole("builder")})
	for _, row := range []struct {
		who *apptest.Actor
		id  string
	}{{lead, toOne.GetId()}, {other, toOne.GetId()}, {boss, toOne.GetId()}, {w.Root(), toOne.GetId()}, {lead, toAll.GetId()}, {critic, toAll.GetId()}} {
		apptest.Refuses(t, row.who.Decide, &pb.DecideRequest{Id: row.id, Verdict: "approve"},
			codes.PermissionDenied, "NOT_YOUR_DECISION")
	}
	receives(lead)
	receives(other, "submit_for_review")
	decide(other, toAll.GetId(), "approve")
	apptest.Refuses(t, other.CancelDecision, &pb.CancelDecisionRequest{Id: toOne.GetId()},
		codes.PermissionDenied, "NOT_YOUR_DECISION")
	out := apptest.Must(t, w.Root().CancelDecision, &pb.CancelDecisionRequest{Id: toOne.GetId(), Reason: "obsolete"})
	if out.GetDecision().GetState() != cancelled || out.GetDecision().GetNote() != "obsolete" {
		t.Errorf("cancelled: %v", out)
	}
	receives(critic, "decision_cancelled")
	apptest.Refuses(t, critic.Decide, &pb.DecideRequest{Id: toOne.GetId(), Verdict: "approve"},
		codes.FailedPrecondition, "DECISION_CLOSED")
	again := apptest.Must(t, lead.CancelDecision, &pb.CancelDecisionRequest{Id: toOne.GetId()})
	if again.GetDecision().GetRevision() != out.GetDecision().GetRevision() {
		t.Errorf("cancelled again: %v", again)
	}
	apptest.Refuses(t, lead.CancelDecision, &pb.CancelDecisionRequest{Id: toAll.GetId()},
		codes.FailedPrecondition, "DECISION_CLOSED")
}

func TestOpen_RefusesWhatCannotBeDecided(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	builder := w.Agent("builder-1", "builder")
	w.Agent("critic-1", "critic")
	openDecision(builder, &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"), Scope: "taken"})
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
		{codes.InvalidArgument, "INVALID_ARGUMENT", &pb.OpenDecisionRequest{Kind: review, To: toAgent("critic-1"),
			Content: &pb.DecisionContent{Files: []*pb.FileReference{{}}}}},
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
		apptest.Refuses(t, builder.OpenDecision, row.in, row.code, row.reason)
	}
	openDecision(builder, &pb.OpenDecisionRequest{Kind: plan, To: toAgent("critic-1"), Scope: "taken"})
	out := apptest.Must(t, builder.ListDecisions, &pb.ListDecisionsRequest{})
	if len(out.GetDecisions()) != 2 {
		t.Errorf("decisions after the refusals: %v", out)
	}
}

func TestOpen_RepeatedRequestOpensNothingAgain(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	builder, critic := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic")
	in := &pb.OpenDecisionRequest{RequestId: uuid.NewString(), Kind: review, To: toAgent("critic-1"), Scope: "login"}
	d := openDecision(builder, in)
	if again := openDecision(builder, in); again.GetId() != d.GetId() {
		t.Errorf("opened again: %v", again)
	}
	verdict := &pb.DecideRequest{RequestId: uuid.NewString(), Id: d.GetId(), Verdict: "revise"}
	for range 2 {
		out := apptest.Must(t, critic.Decide, verdict)
		if out.GetDecision().GetState() != revising || out.GetDecision().GetRounds()[0].GetVerdict() != "revise" {
			t.Errorf("decided: %v", out)
		}
	}
	next := &pb.ResubmitDecisionRequest{RequestId: uuid.NewString(), Id: d.GetId()}
	for range 2 {
		out := apptest.Must(t, builder.ResubmitDecision, next)
		if out.GetDecision().GetRound() != 2 {
			t.Errorf("resubmitted: %v", out)
		}
	}
	in.Scope = "logout"
	apptest.Refuses(t, builder.OpenDecision, in, codes.AlreadyExists, "REQUEST_ID_REUSED")
}

func TestOpen_SessionHasAThousandUnfinishedDecisions(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	w.Root().Configure(&pb.SessionSettings{
		SendRate: new(1e6), SendBurst: new(int32(1e6)), MailboxLimit: new(int64(10)),
	})
	builder, critic := w.Agent("builder-1", "builder"), w.Agent("critic-1", "critic")
	var first string
	for i := range 1000 {
		if d := openDecision(builder, &pb.OpenDecisionRequest{Kind: plan, To: toAgent("critic-1")}); i == 0 {
			first = d.GetId()
		}
	}
	apptest.Refuses(t, builder.OpenDecision, &pb.OpenDecisionRequest{Kind: plan, To: toAgent("critic-1")},
		codes.ResourceExhausted, "TOO_MANY_DECISIONS")
	decide(critic, first, "approve")
	openDecision(builder, &pb.OpenDecisionRequest{Kind: plan, To: toAgent("critic-1")})
}
