package catalog_test

import (
	"strings"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/msgtype"
)

// designTypes are the names of types that five designs of messages between agents use, as each writes them, with the
// canonical name: H, a bus of a test harness; T, mailboxes of a team; P, a protocol over SQLite; F, a router of files;
// K, a skill for messages.
var designTypes = map[string][][2]string{
	"H": {
		{"task_assignment", "task_assignment"}, {"task_accepted", "task_accepted"}, {"task_rejected", "task_rejected"},
		{"task_started", "task_started"}, {"task_progress", "task_progress"}, {"task_complete", "task_complete"},
		{"task_blocked", "task_blocked"}, {"task_failed", "task_failed"},
		{"submit_for_review", "submit_for_review"}, {"review_feedback", "review_feedback"},
		{"review_approved", "review_approved"}, {"review_rejected", "review_rejected"},
		{"revision_requested", "revision_requested"},
		{"request_token", "token_request"}, {"token_granted", "token_granted"}, {"token_denied", "token_denied"},
		{"token_released", "token_released"},
		{"request_file_lock", "lock_request"}, {"file_lock_granted", "lock_granted"}, {"file_lock_denied", "lock_denied"},
		{"file_lock_released", "lock_released"},
		{"request_clarification", "clarification"}, {"provide_clarification", "response"},
		{"request_input", "input"}, {"provide_input", "response"},
		{"nudge", "nudge"}, {"halt", "halt"}, {"resume", "resume"}, {"terminate", "terminate"}, {"escalate", "escalate"},
		{"state_changed", "state_changed"}, {"file_modified", "file_modified"}, {"test_result", "test_result"},
		{"error_occurred", "error_occurred"},
	},
	"T": {
		{"Text", "text"}, {"StatusUpdate", "status_update"}, {"ShutdownRequest", "shutdown_request"},
		{"ShutdownResponse", "shutdown_response"}, {"PlanSubmission", "plan_submission"},
		{"PlanApproval", "plan_approval"}, {"TaskAssignment", "task_assignment"}, {"Broadcast", "broadcast"},
	},
	"P": {
		{"context.query", "context_query"}, {"context.response", "context_response"}, {"task.claim", "task_claim"},
		{"task.update", "task_update"}, {"task.complete", "task_complete"}, {"vote.initiate", "vote_initiate"},
		{"vote.cast", "vote_cast"}, {"broadcast", "broadcast"}, {"heartbeat", "heartbeat"},
	},
	"F": {
		{"Request", "request"}, {"Response", "response"}, {"Handoff", "handoff_request"}, {"Progress", "progress_update"},
		{"Completed", "task_complete"}, {"Blocked", "blocker_notification"}, {"Review", "submit_for_review"},
		{"Feedback", "feedback"}, {"Question", "question"}, {"Announcement", "announcement"}, {"Alert", "alert"},
	},
	"K": {
		{"interface_contract", "interface_contract"}, {"decision_announcement", "decision_announcement"},
		{"blocker_notification", "blocker_notification"}, {"handoff_request", "handoff_request"},
		{"resource_conflict", "lock_conflict"}, {"progress_update", "progress_update"}, {"question", "question"},
		{"response", "response"}, {"handoff_accepted", "handoff_accepted"}, {"context_updated", "context_updated"},
		{"acknowledgment", "acknowledgment"}, {"priority_request", "priority_request"},
		{"TaskCompleted", "task_complete"}, {"BlockerEncountered", "blocker_encountered"},
		{"BlockerResolved", "blocker_resolved"}, {"MilestoneReached", "milestone_reached"},
	},
}

func TestSend_EveryTypeOfTheDesignsIsKnownInFiveSpellings(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.Root().Configure(&pb.SessionSettings{UnknownTypes: pb.TypePolicy_TYPE_POLICY_REFUSE})
	o := w.Root()
	w.Agent("b", "")
	for design, names := range designTypes {
		for _, name := range names {
			snake := msgtype.Fold(name[0])
			var pascal strings.Builder
			for word := range strings.SplitSeq(snake, "_") {
				pascal.WriteString(strings.ToUpper(word[:1]) + word[1:])
			}
			for _, spelling := range []string{
				name[0], snake, pascal.String(), strings.ReplaceAll(snake, "_", "."), strings.ToUpper(snake),
			} {
				results, err := send(o, &pb.Message{Type: spelling, Body: "text"})
				if err != nil || len(results[0].Warnings) > 0 {
					t.Errorf("%s: %s: %v, %v", design, spelling, results, err)
					continue
				}
				m := get(o, results[0].Id)
				want := spelling
				if want == name[1] {
					want = ""
				}
				if m.Type != name[1] || m.TypeAsSent != want {
					t.Errorf("%s: %s is stored as %s, sent as %q; want %s", design, spelling, m.Type, m.TypeAsSent, name[1])
				}
			}
		}
	}
}

func TestSend_PayloadsOfTheDesignsFitTheSchemas(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.Root().Configure(&pb.SessionSettings{InvalidPayloads: pb.TypePolicy_TYPE_POLICY_REFUSE})
	o := w.Root()
	w.Agent("b", "")
	for _, c := range []struct{ kind, fits, broken string }{
		{"context.query", `{"query":"What is there?","aspects":["storage"]}`, `{"query":"What is there?","aspects":7}`},
		{"context.response", `{"context":{"storage":"SQLite"},"artifact_path":"a/b.md"}`, `{"context":7}`},
		{"context.response", `{"context":{},"artifact_path":null}`, `{"context":{},"artifact_path":["a"]}`},
		{"task.claim", `{"task_id":"t1"}`, `{"task_id":1}`},
		{"task.update", `{"task_id":"t1","status":"done","progress":0.5}`, `{"task_id":"t1","progress":[1]}`},
		{"vote.initiate", `{"topic":"Which?","options":["a","b"],"deadline":"2026-01-02T03:04:05Z"}`, `{"topic":["Which?"]}`},
		{"vote.cast", `{"vote_id":"v","option":"a","reasoning":"smaller"}`, `{"vote_id":"v","option":"a","reasoning":7}`},
		{"broadcast", `{"message":"The release is out.","severity":"info"}`, `{"message":7}`},
		{"heartbeat", `{"status":"working","current_task":"t1"}`, `{"status":7}`},
		{
			"priority_request",
			`{"urgency":"high","blocked_agent":"b1","required_artifact":"model","current_eta":"unknown","requested_eta":"soon"}`,
			`{"blocked_agent":["b1"]}`,
		},
	} {
		for _, payload := range []string{c.fits, `{}`, `{"other":{"deep":[1]}}`} {
			if _, err := send(o, &pb.Message{Type: c.kind, Payload: payload}); err != nil {
				t.Errorf("%s with %s: %v", c.kind, payload, err)
			}
		}
		if _, err := send(o, &pb.Message{Type: c.kind, Payload: c.broken}); err == nil {
			t.Errorf("%s with %s was accepted", c.kind, c.broken)
		}
	}
	for _, kind := range []string{"broadcast", "heartbeat"} { // had no schema before
		if _, err := send(o, &pb.Message{Type: kind, Payload: `"text"`}); err != nil {
			t.Errorf("%s with a text as its payload: %v", kind, err)
		}
	}
}
