package bridge_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// open opens a decision for an agent of the folder.
func (d *team) open(as pb.DecisionServiceClient, in *pb.OpenDecisionRequest) *pb.Decision {
	d.t.Helper()
	out, err := as.OpenDecision(d.t.Context(), in)
	apptest.NoError(d.t, err)
	return out.GetDecision()
}

// awaitVerdict waits for a verdict of a decision.
func (d *team) awaitVerdict(id string) *pb.Decision {
	d.t.Helper()
	out, err := pb.NewDecisionServiceClient(d.broker.Operator()).GetDecision(d.t.Context(),
		&pb.GetDecisionRequest{Id: id, Wait: durationpb.New(apptest.Patience)})
	apptest.NoError(d.t, err)
	return out.GetDecision()
}

func TestAnswers_FileDecidesShutdownInEachFormat(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		file   string // keeps scout in the folder
		answer func(d *team)
		sent   string // the folder in which the answer is not any more
	}{
		"jsonl": {"mailbox/scout.jsonl", func(d *team) {
			line := object(d.t, d.awaitLines("scout", 1)[0])
			if metadata := line["Metadata"].(map[string]any); line["Type"] != "ShutdownRequest" ||
				metadata["decision_id"] != metadata["thread_id"] {
				d.t.Errorf("the request is %v", line)
			}
			// As a program answers that knows no threads.
			d.appendLine("lead",
				`{"FromAgentId":"scout","ToAgentId":"lead","Type":"ShutdownResponse","Content":"Accept: all is saved"}`+"\n")
		}, ""},
		"maildir": {"messages/inbox/scout/.keep", func(d *team) {
			request := d.object("messages/inbox/scout/" + d.awaitFiles("messages/inbox/scout", 1)[0])
			d.write("messages/outbox/scout/1.json",
				fmt.Sprintf(`{"to":"lead","type":"response","in_reply_to":%q,"status":"accepted",
				"body":"all is saved"}`, request["id"]))
		}, "messages/outbox/scout"},
		"agent-messages": {agentRoot + "inbox/scout/.keep", func(d *team) {
			request := d.object(agentRoot + "inbox/scout/" + d.awaitFiles(agentRoot+"inbox/scout", 1)[0])
			d.write(agentRoot+"inbox/lead/r1.json", fmt.Sprintf(`{"message_id":"r1","from_agent":"scout","to_agent":"lead",
				"message_type":"response","in_reply_to":%q,"payload":{"accepted":true,"reason":"all is saved"}}`, request["message_id"]))
		}, agentRoot + "inbox/lead"},
	}
	for format, test := range tests {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			d := newTeam(t, format)
			lead := d.broker.Registered("lead", "lead")
			d.write(test.file, "")
			d.start()
			d.awaitAgent("scout")
			decision := d.open(pb.NewDecisionServiceClient(lead),
				&pb.OpenDecisionRequest{Kind: pb.DecisionKind_DECISION_KIND_SHUTDOWN,
					To: &pb.OpenDecisionRequest_Agent{Agent: "scout"}, Title: "The work is done"})
			test.answer(d)
			got := d.awaitVerdict(decision.GetId())
			if v := got.GetRounds(); got.GetVerdict() != "accept" || v[0].GetDecidedBy() != "scout" ||
				!strings.HasSuffix(v[0].GetReason(), "all is saved") {
				t.Errorf("the decision is %v", got)
			}
			if test.sent != "" {
				d.awaitFiles(test.sent, 0)
			}
			if sent := d.sentBy("scout"); len(sent) > 0 {
				t.Errorf("scout has sent %v", sent)
			}
		})
	}
}

func TestAnswers_VerdictIsReadFromFieldsAndElseFromTheFirstWord(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	calls := pb.NewDecisionServiceClient(lead)
	d.write("messages/inbox/scout/.keep", "")
	d.start()
	d.awaitAgent("scout")
	until := time.Now().Add(30 * 24 * time.Hour).UTC().Truncate(time.Second)
	const plan, review, shutdown = pb.DecisionKind_DECISION_KIND_PLAN, pb.DecisionKind_DECISION_KIND_REVIEW, pb.DecisionKind_DECISION_KIND_SHUTDOWN
	const custom = pb.DecisionKind_DECISION_KIND_CUSTOM
	tests := []struct {
		kind         pb.DecisionKind
		file, reason string // of the file, after its thread
		verdict      string
	}{
		{shutdown, `"type":"shutdown_response","labels":{"accepted":"false","reason":"busy"}`, "busy", "reject"},
		{shutdown,
			`"type":"ShutdownResponse","status":"deferred","until":"` + until.Format(time.RFC3339) + `","body":"Finishing"`, "Finishing", "defer"},
		{shutdown, `"type":"shutdown.accepted"`, "", "accept"},
		{plan, `"type":"plan_approval","approved":false,"feedback":"too large"`, "too large", "reject"},
		{plan, `"type":"PlanApproval","body":"Approve."`, "", "approve"},
		{plan, `"type":"response","payload":{"verdict":"revise","notes":"name the files"}`, "name the files", "revise"},
		{review, `"type":"review_approved","body":"good"`, "good", "approve"},
		{review, `"type":"changes-requested","body":"see notes"`, "see notes", "revise"},
		{review, `"type":"response","status":"unknown","body":"rejected, the tests fail"`,
			"rejected, the tests fail", "reject"},
		{custom, `"type":"response","verdict":"Blue"`, "", "blue"},
	}
	for i, test := range tests {
		in := &pb.OpenDecisionRequest{Kind: test.kind, To: &pb.OpenDecisionRequest_Agent{Agent: "scout"}, Title: "decide"}
		if test.kind == custom {
			in.Verdicts = []string{"red", "blue"}
		}
		decision := d.open(calls, in)
		d.write(fmt.Sprintf("messages/outbox/scout/%d.json", i), fmt.Sprintf(`{"to":"lead","thread_id":%q,%s}`,
			decision.GetId(), test.file))
		got := d.awaitVerdict(decision.GetId()).GetRounds()
		if len(got) != 1 || got[0].GetVerdict() != test.verdict || got[0].GetReason() != test.reason {
			t.Errorf("%s: %v", test.file, got)
		}
		if got := got[0].GetUntil().AsTime(); test.verdict == "defer" && !got.Equal(until) {
			t.Errorf("deferred until %v, not %v", got, until)
		}
	}
}

func TestAnswers_AnswerWithoutAVerdictAndOtherMailInTheThreadAreMail(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	d.write("messages/inbox/scout/.keep", "")
	stop := d.start()
	d.awaitAgent("scout")
	decision := d.open(pb.NewDecisionServiceClient(lead),
		&pb.OpenDecisionRequest{Kind: pb.DecisionKind_DECISION_KIND_SHUTDOWN,
			To: &pb.OpenDecisionRequest_Agent{Agent: "scout"}})
	for i, file := range []string{`"type":"shutdown_response","body":"Finishing the current task"`,
		`"type":"question","body":"accept what?"`} {
		d.write(fmt.Sprintf("messages/outbox/scout/%d.json", i), fmt.Sprintf(`{"to":"lead","thread_id":%q,%s}`,
			decision.GetId(), file))
	}
	d.write("messages/outbox/scout/3.json", `{"to":"lead","thread_id":"d-999999","type":"response","body":"accept"}`)
	if got := d.claim(lead, 3); got[0].GetBody() != "Finishing the current task" ||
		got[1].GetBody() != "accept what?" || got[2].GetBody() != "accept" {
		t.Errorf("lead has received %v", got)
	}
	if text := stop(); !strings.Contains(text,
		"sends an answer of scout to "+decision.GetId()+" as mail: its verdict cannot be read; use one of accept, defer, reject") {
		t.Errorf("the bridge logged\n%s", text)
	}
	out, err := pb.NewDecisionServiceClient(lead).GetDecision(t.Context(),
		&pb.GetDecisionRequest{Id: decision.GetId()})
	if err != nil || out.GetDecision().GetState() != pb.DecisionState_DECISION_STATE_OPEN {
		t.Errorf("the decision is %v, %v", out, err)
	}
}

func TestAnswers_PlanOfAFileIsADecision(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "jsonl")
	lead := d.broker.Registered("lead", "lead")
	calls := pb.NewDecisionServiceClient(lead)
	d.appendLine("scout", "")
	d.start()
	d.awaitAgent("scout")
	submit := func(text string) *pb.Message {
		d.appendLine("lead",
			`{"FromAgentId":"scout","ToAgentId":"lead","Type":"PlanSubmission","Content":"`+text+`","Metadata":{"taskId":"T9"}}`+"\n")
		return d.claim(lead, 1)[0]
	}
	first := submit("Read first.\\nThen write.")
	if first.GetType() != "plan_submission" || first.GetSubject() != "Read first." ||
		first.GetBody() != "Read first.\nThen write." ||
		!strings.Contains(first.GetPayload(), `"payload":{"taskId":"T9"}`) {
		t.Errorf("the request is %v", first)
	}
	decide := func(verdict string) {
		if _, err := calls.Decide(t.Context(), &pb.DecideRequest{Id: first.GetThreadId(), Verdict: verdict,
			Reason: "so"}); err != nil {
			t.Fatal(err)
		}
	}
	decide("revise")
	d.awaitLines("scout", 1)
	if second := submit("Write at once."); second.GetThreadId() != first.GetThreadId() ||
		!strings.HasSuffix(second.GetSubject(), "(round 2 of 3)") {
		t.Errorf("the second request is %v", second)
	}
	decide("approve")
	line := object(t, d.awaitLines("scout", 2)[1])
	if line["Type"] != "PlanApproval" || !strings.Contains(line["Content"].(string), "approve: so") {
		t.Errorf("the verdict is %v", line)
	}
	// A plan for an agent of the folder is mail: its readers have it.
	d.appendLine("boss", "")
	d.awaitAgent("boss")
	d.appendLine("boss", `{"FromAgentId":"scout","ToAgentId":"boss","Type":"PlanSubmission","Content":"plan"}`+"\n")
	d.awaitSent("scout", 3) // two requests, and this one
	out, err := calls.ListDecisions(t.Context(), &pb.ListDecisionsRequest{})
	if err != nil || len(out.GetDecisions()) != 1 {
		t.Errorf("the decisions are %v, %v", out, err)
	}
}

func TestAnswers_HandoffsCrossTheBridgeInBothDirections(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	calls := pb.NewHandoffServiceClient(lead)
	d.write(agentRoot+"inbox/scout/.keep", "")
	d.start()
	d.awaitAgent("scout")
	created, err := calls.CreateHandoff(t.Context(), &pb.CreateHandoffRequest{Title: "Login", ToAgent: "scout"})
	apptest.NoError(t, err)
	id := created.GetHandoff().GetId()
	request := d.object(agentRoot + "inbox/scout/" + d.awaitFiles(agentRoot+"inbox/scout", 1)[0])
	if payload := request["payload"].(map[string]any); request["message_type"] != "handoff_request" ||
		payload["handoff_id"] != id {
		t.Errorf("the request is %v", request)
	}
	d.write(agentRoot+"inbox/lead/a1.json",
		`{"message_id":"a1","from_agent":"scout","to_agent":"lead","message_type":"handoff_accepted",
		"subject":"Handoff accepted","payload":{"handoff_id":"`+id+`","notes":"read and understood"}}`)
	got, err := calls.GetHandoff(t.Context(), &pb.GetHandoffRequest{Id: id, Wait: durationpb.New(apptest.Patience)})
	if h := got.GetHandoff(); err != nil || h.GetState() != pb.HandoffState_HANDOFF_STATE_ACCEPTED ||
		h.GetSettledBy() != "scout" ||
		h.GetNotes() != "read and understood" {
		t.Errorf("the handoff is %v, %v", h, err)
	}
	d.archived(agentRoot + "inbox/lead/a1.json")

	d.write(agentRoot+"handoffs/handoff_1/HANDOFF.md", "# The whole story")
	d.write(agentRoot+"handoffs/handoff_1/artifacts/design.md", "the design")
	d.write(agentRoot+"inbox/lead/h1.json",
		`{"message_id":"h1","from_agent":"scout","to_agent":"lead","message_type":"handoff_request",
		"subject":"Handoff ready: Build it","payload":{"handoff_id":"handoff_1","handoff_dir":".agent-messages/handoffs/handoff_1"}}`)
	d.archived(agentRoot + "inbox/lead/h1.json")
	list, err := calls.ListHandoffs(t.Context(), &pb.ListHandoffsRequest{ToAgent: "lead"})
	if err != nil || len(list.GetHandoffs()) != 1 {
		t.Fatalf("the handoffs are %v, %v", list, err)
	}
	got, err = calls.GetHandoff(t.Context(), &pb.GetHandoffRequest{Id: list.GetHandoffs()[0].GetId()})
	apptest.NoError(t, err)
	h := got.GetHandoff()
	parts := []any{h.GetFrom(), h.GetTitle(), h.GetContent().GetBackground(), h.GetContent().GetArtifacts()}
	if diff := cmp.Diff([]any{"scout", "Build it", "# The whole story",
		[]string{"handoffs/handoff_1/artifacts/design.md"}}, parts); diff != "" {
		t.Error(diff)
	}
	if names := d.artifacts(); len(names) != 1 || names[0] != "handoffs/handoff_1/artifacts/design.md" {
		t.Errorf("the artifacts are %v", names)
	}
	apptest.NoError(t, apptest.Err(calls.AcceptHandoff(t.Context(), &pb.AcceptHandoffRequest{Id: h.GetId()})))
	d.await(agentRoot+"inbox/scout", "the notice", func() bool { return len(d.names(agentRoot+"inbox/scout")) == 2 })
}

func TestAnswers_AnswerGivenBeforeAKillIsNotGivenAgainDaysLater(t *testing.T) {
	d := newTeamWith(t, "maildir", apptest.WithFakeClock())
	lead := d.broker.Registered("lead", "lead")
	d.write("messages/inbox/scout/.keep", "")
	stop := d.start()
	d.awaitAgent("scout")
	decision := d.open(pb.NewDecisionServiceClient(lead),
		&pb.OpenDecisionRequest{Kind: pb.DecisionKind_DECISION_KIND_SHUTDOWN,
			To: &pb.OpenDecisionRequest_Agent{Agent: "scout"}})
	const text = `{"to":"lead","type":"shutdown_response","body":"accept"}`
	d.write("messages/outbox/scout/1.json", text)
	d.awaitVerdict(decision.GetId())
	d.awaitFiles("messages/outbox/scout", 0)
	d.awaitFiles(".bridge/sending/scout", 0)
	stop()
	id := strings.TrimSpace(d.text(".bridge/id"))
	acts, err := pb.NewStateServiceClient(d.broker.Operator()).ListState(t.Context(),
		&pb.ListStateRequest{Namespace: "bridge", KeyPrefix: id + "/acts/"})
	if err != nil || len(acts.GetEntries()) != 1 {
		t.Fatalf("the state has %v, %v", acts, err)
	}
	d.write(".bridge/sending/scout/"+strings.TrimPrefix(acts.GetEntries()[0].GetKey(), id+"/acts/")+"-1.json", text)
	d.broker.Clock.Advance(2 * time.Hour) // the broker has forgotten the request id
	d.start()
	d.awaitFiles(".bridge/sending/scout", 0)
	d.awaitSent("scout", 0)
}

func TestAnswers_AnswerToAnOrdinaryMessageDecidesNothing(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	d.write("messages/inbox/scout/.keep", "")
	d.start()
	d.awaitAgent("scout")
	decision := d.open(pb.NewDecisionServiceClient(lead),
		&pb.OpenDecisionRequest{Kind: pb.DecisionKind_DECISION_KIND_SHUTDOWN, To: &pb.OpenDecisionRequest_Agent{Agent: "scout"}})
	handoff, err := pb.NewHandoffServiceClient(lead).CreateHandoff(t.Context(),
		&pb.CreateHandoffRequest{Title: "Login", ToAgent: "scout"})
	apptest.NoError(t, err)
	ordinary := d.send(lead, toAgent("scout", "are you there?"))
	for i, file := range []string{`"type":"shutdown_response","in_reply_to":"` + ordinary.GetId() + `"`,
		`"type":"shutdown_response","thread_id":"talk"`, `"type":"handoff_accepted","thread_id":"talk"`} {
		d.write(fmt.Sprintf("messages/outbox/scout/%d.json", i), fmt.Sprintf(`{"to":"lead","body":"accept",%s}`, file))
	}
	d.claim(lead, 3)
	out, err := pb.NewHandoffServiceClient(lead).GetHandoff(t.Context(), &pb.GetHandoffRequest{Id: handoff.GetHandoff().GetId()})
	if err != nil || out.GetHandoff().GetState() != pb.HandoffState_HANDOFF_STATE_PENDING {
		t.Errorf("the handoff is %v, %v", out, err)
	}
	// The id that the file has itself is no thread of others.
	d.write("messages/outbox/scout/9.json", `{"id":"own","to":"lead","type":"shutdown_response","body":"accept"}`)
	if got := d.awaitVerdict(decision.GetId()); got.GetVerdict() != "accept" {
		t.Errorf("the decision is %v", got)
	}
}

func TestAnswers_SecondPlanWithAnIDIsRejectedUnlessItIsACopy(t *testing.T) {
	t.Parallel()
	d := newTeamWith(t, "agent-messages", apptest.WithFakeClock())
	lead := d.broker.Registered("lead", "lead")
	d.write(agentRoot+"inbox/scout/.keep", "")
	d.start()
	d.awaitAgent("scout")
	plan := func(file, text string) {
		d.write(agentRoot+"inbox/lead/"+file, `{"message_id": "p1", "from_agent": "scout", "to_agent": "lead",
			"message_type": "plan_submission", "subject": "A plan", "payload": "`+text+`"}`)
	}
	plan("a.json", "read first")
	d.archived(agentRoot + "inbox/lead/a.json")
	d.broker.Clock.Advance(2 * time.Hour) // the broker has forgotten the request id
	plan("b.json", "read first")
	d.archived(agentRoot + "inbox/lead/b.json")
	plan("c.json", "write at once")
	d.awaitFiles(agentRoot+"rejected", 2)
	if text := d.text(agentRoot + "rejected/inbox-lead-c.json.error"); !strings.Contains(text,
		"another message of scout has its id") {
		t.Errorf("the reason is %q", text)
	}
	out, err := pb.NewDecisionServiceClient(lead).ListDecisions(t.Context(), &pb.ListDecisionsRequest{})
	if err != nil || len(out.GetDecisions()) != 1 {
		t.Errorf("the decisions are %v, %v", out, err)
	}
}
